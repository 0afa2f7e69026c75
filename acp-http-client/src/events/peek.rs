//! Looks into parameters without parsing them whole.

use std::borrow::Cow;

use serde::Deserialize;

/// The session that parameters name.
pub(crate) fn peek_session(params: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Peek<'a> {
        #[serde(borrow)]
        session_id: Option<Cow<'a, str>>,
    }
    if let Some(session) = first_session(params) {
        return Some(Cow::Borrowed(session));
    }
    // The first item of a list is not a session.
    if params.trim_ascii_start().starts_with(b"[") {
        return None;
    }
    serde_json::from_slice::<Peek<'_>>(params).ok()?.session_id
}

/// Whether an update with these parameters is part of a conversation.
pub(crate) fn is_conversation(params: &[u8]) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Update<'a> {
        #[serde(borrow)]
        session_update: Cow<'a, str>,
    }
    #[derive(Deserialize)]
    struct Peek<'a> {
        #[serde(borrow)]
        update: Update<'a>,
    }
    serde_json::from_slice::<Peek<'_>>(params).is_ok_and(|peek| {
        matches!(
            &*peek.update.session_update,
            "user_message_chunk"
                | "agent_message_chunk"
                | "agent_thought_chunk"
                | "tool_call"
                | "tool_call_update"
                | "plan"
        )
    })
}

/// The session, if it is the first member and has no escapes, as most servers write it.
fn first_session(params: &[u8]) -> Option<&str> {
    let rest = params.strip_prefix(br#"{"sessionId":""#)?;
    let end = memchr::memchr2(b'"', b'\\', rest)?;
    if rest[end] == b'"' { std::str::from_utf8(&rest[..end]).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_at_any_position_and_with_escapes() {
        let table = [
            (r#"{"sessionId":"s-1","update":{}}"#, Some("s-1")),
            (r#"{"sessionId":"","update":{}}"#, Some("")),
            (r#"{"sessionId":"a\"b\u00e9"}"#, Some("a\"bé")),
            (r#"{"update":{"sessionId":"other"},"sessionId":"s-1"}"#, Some("s-1")),
            (r#"{ "sessionId" : "s-1" }"#, Some("s-1")),
            (r#"{"sessionId":null}"#, None),
            (r#"{"sessionId":7}"#, None),
            (r#"{"sessionId":"unterminated"#, None),
            ("[]", None),
            ("", None),
        ];
        for (params, session) in table {
            assert_eq!(peek_session(params.as_bytes()).as_deref(), session, "{params}");
        }
        assert_eq!(peek_session(b"{\"sessionId\":\"\xff\"}"), None);
    }
}
