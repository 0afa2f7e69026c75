//! Counts of tokens.

use serde::Serialize;
use serde_json::Value;

/// Tokens by what they were used for. `None` where the agent does not say.
///
/// Agents differ in whether cached tokens are part of the input, and thoughts part of the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Tokens {
    /// Tokens that were sent to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<u64>,
    /// Tokens that the model wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// Tokens that were read from the model's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_read: Option<u64>,
    /// Tokens that were written to the model's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_write: Option<u64>,
    /// Tokens that the model thought with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thought: Option<u64>,
    /// All tokens, as the agent adds them up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

impl Tokens {
    /// Reads an object in any of the spellings agents use; `None` if it counts nothing.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let count = |names: &[&str]| names.iter().find_map(|name| value.get(*name).and_then(Value::as_u64));
        let tokens = Self {
            input: count(&["inputTokens", "input_tokens", "promptTokens"]),
            output: count(&["outputTokens", "output_tokens", "completionTokens"]),
            cached_read: count(&["cachedReadTokens", "cached_read_tokens", "cachedTokens"]),
            cached_write: count(&["cachedWriteTokens", "cached_write_tokens"]),
            thought: count(&["thoughtTokens", "thought_tokens"]),
            total: count(&["totalTokens", "total_tokens"]),
        };
        (tokens != Self::default()).then_some(tokens)
    }

    /// All tokens: the agent's own total, or else input and output together.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.total.unwrap_or_else(|| self.input.unwrap_or(0).saturating_add(self.output.unwrap_or(0)))
    }

    /// The sum, member by member. A total counts for both, also where only one of them has it.
    pub(super) fn plus(self, other: Self) -> Self {
        let add = |one: Option<u64>, two: Option<u64>| match (one, two) {
            (None, None) => None,
            (one, two) => Some(one.unwrap_or(0).saturating_add(two.unwrap_or(0))),
        };
        let total = match (self.total, other.total) {
            (None, None) => None,
            _ => Some(self.all().saturating_add(other.all())),
        };
        Self {
            input: add(self.input, other.input),
            output: add(self.output, other.output),
            cached_read: add(self.cached_read, other.cached_read),
            cached_write: add(self.cached_write, other.cached_write),
            thought: add(self.thought, other.thought),
            total,
        }
    }
}
