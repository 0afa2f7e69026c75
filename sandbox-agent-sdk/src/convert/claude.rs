//! What claude-agent-acp reports beyond the protocol, if a client requests it when it opens a session.
//!
//! - Retries of a failing model. With a model that returns HTTP 500, version 0.49.0 reports each retry. opencode
//!   1.18.33, gemini-cli 0.61.0 and qwen-code 0.15.10 report nothing; codex-acp 0.16.0 writes to standard error.
//! - The end of an interrupted run. Version 0.49.0 may respond to a cancelled prompt before its run has ended, and sends
//!   text of the run until then, with new message ids. The result of the run is its last message: it arrived exactly
//!   once for each of 126 cancelled prompts.

use serde_json::{Map, Value, json};

/// The notification in which claude-agent-acp forwards messages of its SDK.
pub(crate) const CLAUDE_MESSAGE: &str = "_claude/sdkMessage";

/// The namespace of claude-agent-acp in `_meta`.
const CLAUDE: &str = "claudeCode";

/// The kind of message that ends an interrupted run.
const INTERRUPTED: &str = "error_during_execution";

/// Adds the request for these reports to the parameters that open a session. `names` are the names of the agent.
/// Returns whether it was added: a request of the application is left unchanged.
pub(crate) fn request_reports<'a>(
    params: &mut Map<String, Value>,
    names: impl IntoIterator<Item = &'a str>,
    retries: bool,
) -> bool {
    let is_claude = names.into_iter().any(|name| name.to_ascii_lowercase().contains("claude"));
    let meta = params.entry("_meta").or_insert_with(|| json!({}));
    let Some(meta) = meta.as_object_mut().filter(|meta| is_claude && !meta.contains_key(CLAUDE)) else {
        return false;
    };
    let mut wanted = vec![json!({"type": "result", "subtype": INTERRUPTED})];
    wanted.extend(retries.then(|| json!({"type": "system", "subtype": "api_retry"})));
    meta.insert(CLAUDE.to_owned(), json!({ "emitRawSDKMessages": wanted }));
    true
}

/// The session whose interrupted run has ended, according to a notification of claude-agent-acp.
pub(crate) fn interrupted_session(params: &Value) -> Option<&str> {
    let is_end =
        params.pointer("/message/type")? == "result" && params.pointer("/message/subtype")? == INTERRUPTED;
    params.get("sessionId")?.as_str().filter(|_| is_end)
}

/// Converts a notification of claude-agent-acp about a retry to a notice, as parameters of a `session/update`.
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
