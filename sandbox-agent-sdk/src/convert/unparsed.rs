//! Agent output that is not a protocol message.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A line of agent output that is not a protocol message.
///
/// Examples are a stray print, a banner and a stack trace. An agent that prints such lines and then nothing more has
/// usually failed to start. The lines often show why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentUnparsed {
    /// Why the line is not a protocol message.
    pub error: String,
    /// The line.
    pub raw: String,
}

impl AgentUnparsed {
    /// Parses the parameters of `_sandboxagent/agent/unparsed`, or of the released server's
    /// `_adapter/invalid_stdout`.
    ///
    /// Parameters in another format are preserved as text, so that the line is not lost.
    #[must_use]
    pub fn from_params(params: &Value) -> Self {
        let text = |name: &str| params.get(name).and_then(Value::as_str).map(str::to_owned);
        Self {
            error: text("error").unwrap_or_default(),
            raw: text("raw").unwrap_or_else(|| params.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::AgentUnparsed;

    #[test]
    fn the_line_is_never_lost() {
        for (params, error, raw) in [
            (json!({"error": "expected value", "raw": "npm warn"}), "expected value", "npm warn"),
            (json!({"raw": ""}), "", ""),
            (json!({"error": "x", "raw": 5}), "x", r#"{"error":"x","raw":5}"#),
            (json!("text"), "", "\"text\""),
        ] {
            let unparsed = AgentUnparsed::from_params(&params);
            assert_eq!((unparsed.error.as_str(), unparsed.raw.as_str()), (error, raw));
        }
    }
}
