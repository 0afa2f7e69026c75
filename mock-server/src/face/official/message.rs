use serde_json::{Value, json};

/// The session-scoped methods.
const SESSION_SCOPED: [&str; 10] = [
    "session/prompt",
    "session/cancel",
    "session/close",
    "session/delete",
    "session/fork",
    "session/load",
    "session/resume",
    "session/set_config_option",
    "session/set_mode",
    "session/set_model",
];

/// An error response in plain text.
pub(super) type Refusal = &'static str;

/// Whether a method needs a session id.
pub(super) fn is_session_scoped(method: &str) -> bool {
    SESSION_SCOPED.contains(&method)
}

/// Returns the session in a message's parameters.
pub(super) fn session_of(message: &Value) -> Option<&str> {
    message.get("params")?.get("sessionId")?.as_str()
}

/// Returns the method of a message.
pub(super) fn method_of(message: &Value) -> Option<&str> {
    message.get("method")?.as_str()
}

/// Combines the session header and the parameters of a request or notification.
pub(super) fn reconcile(message: &mut Value, header: Option<&str>) -> Result<(), Refusal> {
    let Some(method) = method_of(message) else { return Ok(()) };
    let scoped = is_session_scoped(method);
    match (session_of(message), header) {
        (Some(own), Some(header)) if own != header => Err("Acp-Session-Id does not match params.sessionId"),
        (Some(_), _) => Ok(()),
        (None, Some(header)) => {
            let header = header.to_owned();
            match message.get_mut("params") {
                None | Some(Value::Null) => message["params"] = json!({ "sessionId": header }),
                Some(Value::Object(params)) => {
                    params.insert("sessionId".to_owned(), header.into());
                }
                Some(_) => return Err("params must be an object"),
            }
            Ok(())
        }
        (None, None) if scoped => Err("Acp-Session-Id header or params.sessionId required"),
        (None, None) => Ok(()),
    }
}

/// Checks the envelope. Returns a JSON-RPC error for the connection stream if it is invalid.
pub(super) fn fault_in(body: &str) -> Option<Value> {
    let error = |code: i64, message: &str| {
        let error = json!({ "code": code, "message": message, "data": { "line": body } });
        Some(json!({ "jsonrpc": "2.0", "id": null, "error": error }))
    };
    let Ok(value) = crate::json::from_slice::<Value>(body.as_bytes()) else {
        return error(-32700, "Parse error");
    };
    let id_is_valid = match value.get("id") {
        None | Some(Value::Null | Value::String(_)) => true,
        Some(Value::Number(number)) => number.is_i64(),
        Some(_) => false,
    };
    let both = value.get("result").is_some() && value.get("error").is_some();
    let speaks = value.get("jsonrpc").and_then(Value::as_str) == Some("2.0");
    if !value.is_object() || !id_is_valid || both || !speaks {
        return error(-32600, "Invalid request");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_parameters_must_not_name_different_sessions() {
        let scoped = |params: Value| json!({ "jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": params });
        let mut by_header = scoped(json!({ "prompt": [] }));
        assert!(reconcile(&mut by_header, Some("s")).is_ok());
        assert_eq!(by_header["params"]["sessionId"], "s");
        assert!(reconcile(&mut scoped(json!({ "sessionId": "s" })), None).is_ok());
        assert!(reconcile(&mut scoped(json!({ "sessionId": "s" })), Some("t")).is_err());
        assert!(reconcile(&mut scoped(json!([1])), Some("s")).is_err());
        assert!(reconcile(&mut scoped(Value::Null), None).is_err());
    }

    #[test]
    fn ids_are_strings_integers_or_null() {
        for id in ["1", "\"x\"", "null", "-5"] {
            assert_eq!(fault_in(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x"}}"#)), None, "{id}");
        }
        for id in ["1.0", "true", "18446744073709551615", "[]"] {
            let error = fault_in(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x"}}"#)).unwrap();
            assert_eq!(error["error"]["code"], -32600, "{id}");
        }
        assert_eq!(fault_in("{bad").unwrap()["error"]["code"], -32700);
    }
}
