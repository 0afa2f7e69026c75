//! Retries of a failing model, which agents report each in a way of their own.
//!
//! Measured with a model that answers 500: claude-agent-acp 0.49.0 reports each retry if it is asked to when a session is
//! opened. opencode 1.18.33, gemini-cli 0.61.0 and qwen-code 0.15.10 report nothing; codex-acp 0.16.0 writes to standard error.

use serde_json::{Map, Value, json};

/// The notification in which claude-agent-acp passes on messages of its own SDK.
pub(crate) const CLAUDE_MESSAGE: &str = "_claude/sdkMessage";

/// The namespace of claude-agent-acp in `_meta`.
const CLAUDE: &str = "claudeCode";

/// Asks an agent for its retries, in the parameters that open a session. `names` are those of the agent.
pub(crate) fn request_retries<'a>(params: &mut Map<String, Value>, names: impl IntoIterator<Item = &'a str>) {
    let is_claude = names.into_iter().any(|name| name.to_ascii_lowercase().contains("claude"));
    let meta = params.entry("_meta").or_insert_with(|| json!({}));
    if let (true, Some(meta)) = (is_claude, meta.as_object_mut()) {
        let wanted = json!([{"type": "system", "subtype": "api_retry"}]);
        // What the application asks of it is left alone.
        meta.entry(CLAUDE).or_insert_with(|| json!({"emitRawSDKMessages": wanted}));
    }
}

/// The notice, as parameters of a `session/update`, that a notification of claude-agent-acp amounts to.
pub(crate) fn retry_notice(params: &Value) -> Option<Value> {
    let session = params.get("sessionId")?.as_str()?;
    let message = params.get("message")?;
    if message.get("subtype")?.as_str()? != "api_retry" {
        return None;
    }
    let number = |member: &str| message.get(member).and_then(Value::as_u64);
    let mut title = "The model failed".to_owned();
    if let Some(status) = number("error_status") {
        title += &format!(" with status {status}");
    }
    if let Some(error) = message.get("error").and_then(Value::as_str) {
        title += &format!(" ({error})");
    }
    title += &format!(": retry {}", number("attempt")?);
    if let Some(all) = number("max_retries") {
        title += &format!(" of {all}");
    }
    if let Some(delay) = message.get("retry_delay_ms").and_then(Value::as_f64) {
        title += &format!(" in {:.1} s", delay / 1000.0);
    }
    let update = json!({
        "sessionUpdate": "notice", "severity": "warning", "title": title, "_meta": { CLAUDE: message },
    });
    Some(json!({"sessionId": session, "update": update}))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::retry_notice;

    #[test]
    fn only_retries_are_notices_and_what_is_missing_is_left_out() {
        let title = |message: Value| {
            let notice = retry_notice(&json!({"sessionId": "s", "message": message}))?;
            notice.pointer("/update/title").and_then(Value::as_str).map(str::to_owned)
        };
        let table = [
            (json!({"subtype": "api_retry", "attempt": 1}), Some("The model failed: retry 1")),
            (
                json!({"subtype": "api_retry", "attempt": 2, "max_retries": 10, "error_status": 529}),
                Some("The model failed with status 529: retry 2 of 10"),
            ),
            (json!({"subtype": "api_retry"}), None),
            (json!({"subtype": "init", "attempt": 1}), None),
            (json!("api_retry"), None),
        ];
        for (message, expected) in table {
            assert_eq!(title(message.clone()).as_deref(), expected, "{message}");
        }
        assert_eq!(retry_notice(&json!([])), None);
    }
}
