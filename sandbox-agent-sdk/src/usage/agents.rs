//! What the usage reports of known agents count.

use super::Counts;

/// What the numbers of an agent count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// The tokens in the response to a prompt.
    pub(super) response: Counts,
    /// The tokens in the `_meta` of a chunk.
    pub(super) chunk: Counts,
    /// The cost in a `usage_update`.
    pub(super) cost: Counts,
}

/// The meaning defined by the protocol, for agents that were not measured.
const DEFAULT: Rules = Rules { response: Counts::Turn, chunk: Counts::Call, cost: Counts::Session };

/// Measured: opencode 1.18.33, claude-agent-acp 0.49.0, codex-acp 0.16.0, gemini-cli 0.61.0, qwen-code 0.15.10.
const KNOWN: &[(&str, Rules)] = &[
    ("opencode", Rules { response: Counts::Call, ..DEFAULT }),
    ("claude", Rules { cost: Counts::Process, ..DEFAULT }),
    ("codex", DEFAULT),
    ("gemini", DEFAULT),
    ("qwen", DEFAULT),
];

impl Default for Rules {
    fn default() -> Self {
        DEFAULT
    }
}

impl Rules {
    /// Returns the rules of an agent, by its requested name or its self-reported name.
    pub(crate) fn of(agent: &str) -> Self {
        let agent = agent.to_ascii_lowercase();
        KNOWN.iter().find(|(name, _)| agent.contains(name)).map_or(DEFAULT, |(_, rules)| *rules)
    }
}
