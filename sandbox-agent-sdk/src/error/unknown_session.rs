//! How agents and servers say that a session is unknown.

use super::Error;

/// Whether a failure means that the agent does not have the session.
pub(crate) fn is_unknown_session(error: &Error) -> bool {
    /// The code with which agents report that a resource does not exist.
    const NOT_FOUND: i64 = -32002;
    /// The code with which agents report that the user must log in.
    const LOGIN_REQUIRED: i64 = -32000;
    match error {
        Error::Http(http) => {
            let problem = error.problem();
            // Any server or proxy may send the status 404.
            let is_named = problem.is_some_and(|problem| {
                matches!(problem.short_kind(), "session_not_found" | "client_not_found")
            });
            let text =
                problem.map_or(http.body.as_str(), |problem| problem.detail.as_deref().unwrap_or_default());
            matches!(http.status, 404 | 410) && is_named
                || matches!(http.status, 400 | 404 | 410) && says_unknown_session(text)
        }
        Error::Rpc { error, .. } if error.code == LOGIN_REQUIRED => false,
        Error::Rpc { error, .. } => {
            let member = |name: &str| error.data.as_ref()?.get(name)?.as_str();
            let message = error.message.as_str();
            // A message about the session that the data names need not name it.
            let about = member("sessionId").map(|_| format!("session {message}"));
            let texts = [Some(message), about.as_deref(), member("details")];
            let is_named = texts.into_iter().flatten().any(says_unknown_session);
            let resource = || message.to_lowercase().starts_with("resource not found");
            let is_path = |text: &str| text.contains(['/', '\\']);
            is_named
                || error.code == NOT_FOUND
                    && resource()
                    && !is_path(message)
                    && !member("uri").is_some_and(is_path)
        }
        _ => false,
    }
}

/// A word of a text, without those that do not matter.
struct Word<'a> {
    text: &'a str,
    /// Whether a sentence or an id follows it.
    ends: bool,
    /// Whether the next word begins a clause.
    stops: bool,
}

/// Whether a text says that a session is unknown: a clause begins with these words, except for the id of the session. In
/// another clause something of the session may be unknown, such as its credentials.
fn says_unknown_session(text: &str) -> bool {
    const SESSION: [&str; 8] = [
        "session",
        "sessions",
        "sessionid",
        "session_id",
        "session-id",
        "acp-session-id",
        "conversation",
        "thread",
    ];
    let text = text.to_lowercase();
    let words = words_of(&text);
    let at = |n: usize| words.get(n).map(|word| word.text);
    let is_session = |n: usize| at(n).is_some_and(|word| SESSION.contains(&word));
    let begins = |n: usize| n == 0 || words[n - 1].stops || words[n - 1].text == "when";
    words.iter().enumerate().any(|(n, word)| match word.text {
        _ if is_session(n) => {
            let is_missing = match at(n + 1) {
                Some("not") => matches!(at(n + 2), Some("found" | "exist")),
                Some("doesn't") => at(n + 2) == Some("exist"),
                Some("unknown") => words[n + 1].ends,
                _ => false,
            };
            is_missing && begins(n)
        }
        "unknown" | "such" | "previous" | "no" => {
            let first = if n > 0 && at(n - 1) == Some("no") { n - 1 } else { n };
            let is_whole = words.get(n + 1).is_some_and(|word| word.ends) || at(n + 2) == Some("found");
            is_session(n + 1) && is_whole && begins(first)
        }
        _ => false,
    })
}

fn words_of(text: &str) -> Vec<Word<'_>> {
    /// Filler words that may occur between the others.
    const FILLERS: [&str; 9] = ["id", "is", "was", "does", "did", "could", "be", "the", "with"];
    let quotes = |c: char| matches!(c, '\'' | '"' | '`');
    let is_id = |word: &str| word.contains(|c: char| c.is_ascii_digit()) || word.starts_with(quotes);
    let mut words: Vec<Word<'_>> = Vec::new();
    for raw in text.split_whitespace() {
        let word = raw.trim_matches(|c: char| !c.is_alphanumeric() && !quotes(c));
        let stops = raw.ends_with(['.', ':', ',', ';']);
        match words.last_mut() {
            Some(last) if is_id(word) => (last.ends, last.stops) = (true, last.stops || stops),
            _ if word.is_empty() || is_id(word) || FILLERS.contains(&word) => {}
            _ => words.push(Word { text: word, ends: stops, stops }),
        }
    }
    if let Some(last) = words.last_mut() {
        last.ends = true;
    }
    words
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::is_unknown_session;
    use crate::Error;
    use crate::error::{HttpError, Problem, RpcError};

    #[test]
    fn agents_say_in_several_ways_that_they_do_not_have_a_session() {
        let table = [
            (-32002, "Resource not found: s1", Value::Null, true),
            (-32603, "Session not found", Value::Null, true),
            (-32602, "not found", json!({"sessionId": "s1"}), true),
            (
                -32603,
                "Internal error",
                json!({"details": "No previous sessions found for this project."}),
                true,
            ),
            (-32002, "no such session", Value::Null, true),
            (-32002, "Resource not found", json!({"uri": "0198-a"}), true),
            (-32602, "Session 'ses_1' does not exist", Value::Null, true),
            (-32602, "unknown session: ses_1", Value::Null, true),
            (-32602, "Session could not be found: ses_1", Value::Null, true),
            (-32603, "Internal error: session not found", Value::Null, true),
            (-32603, "failed to load session: Session s1 not found.", Value::Null, true),
            (-32603, "Internal error", json!({"details": "Request was aborted."}), false),
            (-32603, "Credentials for session not found", Value::Null, false),
            (-32603, "Credentials of 'user' session not found", Value::Null, false),
            (-32603, "the log file of unknown session", Value::Null, false),
            (-32603, "There is no session", Value::Null, false),
            (-32000, "Session not found", Value::Null, false),
            (-32603, "Unknown error", json!({"sessionId": "s1"}), false),
            (-32603, "failed to load session: model not found", Value::Null, false),
            (-32603, "model not found", json!({"sessionId": "s1"}), false),
            (-32602, "Unknown session mode: plan", Value::Null, false),
            (-32602, "no session mode `plan`", Value::Null, false),
            (-32002, "Resource not found: /work/notes.md", Value::Null, false),
            (-32002, "Resource not found", json!({"uri": "file:///work/notes.md"}), false),
            (-32002, "command not found", Value::Null, false),
            (-32603, "the model is overloaded", Value::Null, false),
            (-32000, "session is busy", Value::Null, false),
        ];
        for (code, message, data, unknown) in table {
            let mut error = RpcError::new(code, message);
            error.data = Some(data).filter(|data| !data.is_null());
            let error = Error::Rpc { error, status: None, executed: true };
            assert_eq!(is_unknown_session(&error), unknown, "{error}");
        }
    }

    #[test]
    fn a_refused_request_is_not_an_unknown_session_unless_the_server_reports_it() {
        let table = [
            (400, r#"{"detail":"session/prompt requires params.agent when sessionId 's' is unknown"}"#, true),
            (400, r#"{"title":"Bad Request","detail":"invalid JSON body: expected value"}"#, false),
            (400, "missing field `cwd`", false),
            (404, r#"{"type":"urn:sandbox-agent:error:session_not_found"}"#, true),
            (404, r#"{"type":"urn:sandbox-agent:error:client_not_found","sessionId":"s"}"#, true),
            (404, "unknown Acp-Session-Id", true),
            (404, "<html>404 Not Found</html>", false),
            (
                404,
                r#"{"type":"urn:sandbox-agent:error:invalid_request","detail":"endpoint not found"}"#,
                false,
            ),
            (500, "session not found", false),
        ];
        for (status, body, unknown) in table {
            let problem = Problem::from_json(body.as_bytes());
            let (what, body) = ("session/resume".to_owned(), body.to_owned());
            let http = HttpError { what, status, content_type: None, problem, body, retry_after: None };
            let error = Error::Http(Box::new(http));
            assert_eq!(is_unknown_session(&error), unknown, "{error}");
        }
    }
}
