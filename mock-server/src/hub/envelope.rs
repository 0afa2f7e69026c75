use serde_json::{Map, Value};

use crate::problem::Problem;

/// One JSON-RPC message, classified by its members.
#[derive(Debug, Clone)]
pub(crate) enum Envelope {
    /// `method` and `id`; an `id` of null counts.
    Request { id: Value, method: String, params: Value },
    /// `method` without `id`.
    Notification { method: String, params: Value },
    /// `id` without `method`: the response to an agent request.
    Answer { id: Value, message: Map<String, Value> },
}

impl Envelope {
    /// Parses a body by the rules of `/v1/rpc`.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Problem> {
        let value: Value = crate::json::from_slice(body)
            .map_err(|error| Problem::invalid_request(format!("invalid JSON body: {error}")))?;
        let Value::Object(message) = value else {
            return Err(Problem::invalid_request("request body must be a JSON-RPC object"));
        };
        match message.get("jsonrpc").map(Value::as_str) {
            Some(Some("2.0")) => {}
            Some(Some(_)) => return Err(Problem::invalid_request("jsonrpc must be '2.0'")),
            _ => return Err(Problem::invalid_request("jsonrpc must be a string")),
        }
        let params = message.get("params").cloned().unwrap_or(Value::Null);
        let id = message.get("id").cloned();
        let method = match message.get("method") {
            None => None,
            Some(Value::String(method)) => Some(method.clone()),
            Some(_) => return Err(Problem::invalid_request("method must be a string")),
        };
        let answers = message.contains_key("result") || message.contains_key("error");
        match (method, id) {
            (Some(_), _) if answers => {
                Err(Problem::invalid_request("a message has either a method or a result"))
            }
            (Some(method), Some(id)) => Ok(Self::Request { id, method, params }),
            (Some(method), None) => Ok(Self::Notification { method, params }),
            (None, Some(_)) if !answers => {
                Err(Problem::invalid_request("a response needs a result or an error"))
            }
            (None, Some(id)) => Ok(Self::Answer { id, message }),
            (None, None) => Err(Problem::invalid_request("a message needs a method or an id")),
        }
    }

    /// Returns the method, unless it is a response.
    pub(crate) fn method(&self) -> Option<&str> {
        match self {
            Self::Request { method, .. } | Self::Notification { method, .. } => Some(method),
            Self::Answer { .. } => None,
        }
    }

    /// Returns the parameters; null if there are none.
    pub(crate) fn params(&self) -> &Value {
        match self {
            Self::Request { params, .. } | Self::Notification { params, .. } => params,
            Self::Answer { .. } => &Value::Null,
        }
    }
}

/// Returns the session that a message is about.
pub(crate) fn session_of(params: &Value) -> Option<&str> {
    params.get("sessionId")?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_not_a_single_json_rpc_message_is_rejected() {
        for body in [
            "",
            "{bad",
            "[]",
            r#"[{"jsonrpc":"2.0","method":"x"}]"#,
            "42",
            "null",
            "{}",
            r#"{"id":1,"method":"x"}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#,
            r#"{"jsonrpc":2,"method":"x"}"#,
            r#"{"jsonrpc":"2.0"}"#,
            r#"{"jsonrpc":"2.0","method":"x","result":1}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","method":7}"#,
        ] {
            let problem = Envelope::parse(body.as_bytes()).unwrap_err();
            assert_eq!(problem.type_uri(), "urn:sandbox-agent:error:invalid_request", "{body}");
            assert!(problem.detail_text().unwrap_or_default().starts_with("invalid request: "), "{body}");
        }
    }

    #[test]
    fn an_id_of_null_makes_a_request() {
        let envelope = Envelope::parse(br#"{"jsonrpc":"2.0","id":null,"method":"x"}"#).unwrap();
        assert!(matches!(envelope, Envelope::Request { id: Value::Null, .. }));
    }
}
