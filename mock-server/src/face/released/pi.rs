use serde_json::{Value, json};

/// Applies the released server's changes to messages of the agent `pi`.
pub(super) fn normalise(message: &mut Value) {
    let method = message.get("method").and_then(Value::as_str).map(str::to_owned);
    let Some(Value::Object(params)) = message.get_mut("params") else { return };
    match method.as_deref() {
        Some("initialize") => {
            let text = params.get("protocolVersion").and_then(Value::as_str);
            if let Some(number) = text.and_then(|text| text.trim().parse::<u64>().ok()) {
                params.insert("protocolVersion".to_owned(), number.into());
            }
        }
        Some("session/new") => {
            params.entry("mcpServers").or_insert_with(|| json!([]));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(mut message: Value) -> Value {
        normalise(&mut message);
        message
    }

    #[test]
    fn a_protocol_version_as_text_becomes_a_number() {
        for (version, expected) in
            [(json!("1"), json!(1)), (json!(1), json!(1)), (json!("new"), json!("new"))]
        {
            let message = json!({ "method": "initialize", "params": { "protocolVersion": version } });
            assert_eq!(normal(message)["params"]["protocolVersion"], expected);
        }
    }

    #[test]
    fn a_new_session_has_a_list_of_servers() {
        let message = |params: Value| json!({ "method": "session/new", "params": params });
        assert_eq!(normal(message(json!({})))["params"], json!({ "mcpServers": [] }));
        let own = json!({ "mcpServers": [1] });
        assert_eq!(normal(message(own.clone()))["params"], own);
    }

    #[test]
    fn other_messages_are_unchanged() {
        for message in [json!({ "method": "session/new" }), json!({ "method": "x", "params": {} }), json!({})]
        {
            assert_eq!(normal(message.clone()), message);
        }
    }
}
