//! How a session was restored.

use std::fmt;

use serde::Serialize;

/// How a session was restored in the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum RestoredBy {
    /// The agent still had the session. No request was sent.
    Attach,
    /// The agent resumed the session.
    Resume,
    /// The agent loaded the session from its own history.
    Load,
    /// The agent has a new session and receives the recent history as text with the next prompt.
    Replay,
}

impl RestoredBy {
    /// Returns the name under which the value is stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Resume => "resume",
            Self::Load => "load",
            Self::Replay => "replay",
        }
    }
}

impl fmt::Display for RestoredBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The result of restoring a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Restored {
    /// How the session was restored.
    pub by: RestoredBy,
    /// The number of stored prompts that are missing from the history that the agent replayed. If an agent loads the
    /// session and replays nothing, all of them are missing. `None` if the client did not request a replay, or if the
    /// agent does not replay prompts.
    pub unknown_prompts: Option<u64>,
    /// The number of stored turns whose agent messages are missing from that history.
    ///
    /// `None` if the agent does not replay its messages, or `unknown_prompts` is `None`.
    pub unknown_answers: Option<u64>,
}
