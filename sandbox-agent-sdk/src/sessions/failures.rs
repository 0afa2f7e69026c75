//! What failures mean for a stored session.

use crate::Error;

/// Whether a prompt did not run because the session, the agent or the connection was gone.
pub(super) fn is_lost_unsent(error: &Error) -> bool {
    match error {
        Error::AgentEnded(_) | Error::ConnectionEnded { .. } => !error.maybe_executed(),
        Error::NotConnected | Error::Unreachable(_) => true,
        error => is_unknown_session(error),
    }
}

/// Whether a failure says that the agent does not have the session.
pub(super) fn is_unknown_session(error: &Error) -> bool {
    /// The code of agents for a session that they do not have.
    const NOT_FOUND: i64 = -32002;
    /// The words of agents that use another code.
    const GONE: [&str; 5] = ["not found", "unknown", "no previous", "no such", "does not exist"];
    let says_gone = |words: &str, is_about_session: bool| {
        let words = words.to_lowercase();
        (is_about_session || words.contains("session")) && GONE.iter().any(|gone| words.contains(gone))
    };
    match error {
        Error::Http(http) if http.status == 400 => {
            let problem = error.problem();
            let detail = problem.and_then(|problem| problem.detail.as_deref()).unwrap_or_default();
            says_gone(detail, problem.is_some_and(|problem| problem.session_id().is_some()))
        }
        Error::Http(http) => matches!(http.status, 404 | 410),
        Error::Rpc { error, .. } => {
            let member = |name: &str| error.data.as_ref()?.get(name)?.as_str();
            let words = format!("{} {}", error.message, member("details").unwrap_or_default());
            error.code == NOT_FOUND || says_gone(&words, member("sessionId").is_some())
        }
        _ => false,
    }
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
            (-32603, "Internal error", json!({"details": "Request was aborted."}), false),
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
    fn a_refused_request_is_no_unknown_session_unless_the_server_says_so() {
        let table = [
            (400, r#"{"detail":"session/prompt requires params.agent when sessionId 's' is unknown"}"#, true),
            (400, r#"{"title":"Bad Request","detail":"invalid JSON body: expected value"}"#, false),
            (400, "missing field `cwd`", false),
            (404, r#"{"type":"urn:sandbox-agent:error:session_not_found"}"#, true),
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
