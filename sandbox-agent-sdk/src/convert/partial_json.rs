//! Parses the valid parts of JSON that the parser rejects as a whole.

use std::collections::BTreeMap;

use acp_http_client::json;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Parses an object without the fields that the parser rejects, such as those nested too deeply. Rejected
/// fields that are objects are parsed in the same way, down to `levels` levels.
pub(crate) fn readable_members(text: &str, levels: usize) -> Value {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).unwrap_or_default();
    let mut read = Map::new();
    for (name, member) in members {
        match json::from_str(member.get()) {
            Ok(value) => drop(read.insert(name, value)),
            Err(_) if levels > 0 && member.get().starts_with('{') => {
                read.insert(name, readable_members(member.get(), levels - 1));
            }
            Err(_) => {}
        }
    }
    read.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::readable_members;

    #[test]
    fn only_what_is_too_deep_is_left_out() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let text =
            format!(r#"{{"sessionId": "s", "data": {{"reason": "error", "deep": {deep}}}, "x": {deep}}}"#);
        assert_eq!(readable_members(&text, 1), json!({"sessionId": "s", "data": {"reason": "error"}}));
        assert_eq!(readable_members(&text, 0), json!({"sessionId": "s"}));
        assert_eq!(readable_members(&deep, 1), json!({}));
        assert_eq!(readable_members("", 1), json!({}));
    }
}
