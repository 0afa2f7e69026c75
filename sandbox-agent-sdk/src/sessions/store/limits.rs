//! Limits that apply to every store.

use acp_http_client::json::{check_names, is_reserved};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::StoreError;
use crate::session::Timestamp;

/// The maximum length in bytes of an id, a key or the name of an agent. Databases limit the size of index entries.
pub const MAX_KEY_BYTES: usize = 512;

/// The maximum number of items on a page.
pub const MAX_PAGE: usize = 1000;

/// The maximum nesting depth of a payload or of a value in a record. It is more than twice the depth accepted from
/// servers.
pub const MAX_DEPTH: usize = 256;

/// The maximum number of earlier sessions of the agent in a record. The oldest ones are dropped.
pub const MAX_EARLIER_AGENT_SESSIONS: usize = 100;

/// The bytes of payloads that are read at once: events may contain images, and a page of them would not fit in memory.
pub(in crate::sessions) const PAGE_BYTES: usize = 8 << 20;
/// The items of a page by default.
pub(super) const DEFAULT_PAGE: usize = 100;
/// The memory of a value in addition to its text.
const OVERHEAD: usize = 32;
/// How much deeper a text may be than a value in it: records and transcript lines wrap the value.
const WRAPPING: usize = 8;

/// Rejects a key that some store cannot hold, so that all stores accept the same keys.
pub(super) fn check_key(what: &str, key: &str) -> Result<(), StoreError> {
    let invalid = |why: String| Err(StoreError::Invalid(format!("{what} {why}")));
    if key.is_empty() {
        return invalid("is empty".to_owned());
    }
    if key.len() > MAX_KEY_BYTES {
        return invalid(format!("has {} bytes; the limit is {MAX_KEY_BYTES}", key.len()));
    }
    if key.contains('\0') {
        return invalid("contains a NUL character".to_owned());
    }
    Ok(())
}

/// Rejects a number that databases cannot store: they have 63 bits.
pub(super) fn check_number(what: &str, number: u64) -> Result<(), StoreError> {
    match i64::try_from(number) {
        Ok(_) => Ok(()),
        Err(_) => Err(StoreError::Invalid(format!("{what} is too large: {number}"))),
    }
}

pub(super) fn check_moment(what: &str, moment: Timestamp) -> Result<(), StoreError> {
    check_number(what, moment.as_millis())
}

/// Rejects a value that could not be read again. Returns its approximate size in bytes.
pub(super) fn check_value(what: &str, value: &Value) -> Result<usize, StoreError> {
    measure(value, MAX_DEPTH).map_err(|why| StoreError::Invalid(format!("{what} {why}")))
}

fn measure(value: &Value, depth: usize) -> Result<usize, String> {
    let inner = || depth.checked_sub(1).ok_or_else(|| format!("is nested more than {MAX_DEPTH} levels deep"));
    let inside = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => {
            let depth = inner()?;
            items.iter().map(|item| measure(item, depth)).sum::<Result<usize, _>>()?
        }
        Value::Object(members) => {
            let depth = inner()?;
            let member = |(name, value): (&String, &Value)| match is_reserved(name) {
                true => Err("has a reserved member name".to_owned()),
                false => Ok(OVERHEAD + name.len() + measure(value, depth)?),
            };
            members.iter().map(member).sum::<Result<usize, _>>()?
        }
    };
    Ok(OVERHEAD + inside)
}

pub(super) fn page_size(limit: usize) -> usize {
    limit.clamp(1, MAX_PAGE)
}

/// Parses JSON of a store or a transcript. Accepts deeper nesting than the parser's own limit.
///
/// # Errors
/// If the text is not valid JSON, does not match the type, is nested more than [`MAX_DEPTH`] levels deep, or has a
/// member name that starts with `$serde_json::private::`, which the parser would read as another value.
pub fn read_json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    check_names(text)?;
    serde_json::from_str(text).or_else(|error| {
        if depth(text) > MAX_DEPTH + WRAPPING {
            return Err(error);
        }
        // At this depth recursion does no harm.
        let mut deserializer = serde_json::Deserializer::from_str(text);
        deserializer.disable_recursion_limit();
        let value = T::deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    })
}

/// Returns how deeply a text is nested.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    let (mut quoted, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{MAX_DEPTH, MAX_KEY_BYTES, StoreError, check_key, check_value, depth, read_json};

    fn nested(levels: usize) -> Value {
        (0..levels).fold(
            json!(1),
            |inside, level| {
                if level % 2 == 0 { json!([inside]) } else { json!({ "\"[{\\": inside }) }
            },
        )
    }

    #[test]
    fn every_accepted_value_can_be_read_again() {
        for levels in [0, 1, 126, 127, 128, 129, MAX_DEPTH - 1, MAX_DEPTH] {
            let value = nested(levels);
            assert!(check_value("v", &value).is_ok(), "{levels}");
            assert_eq!(depth(&value.to_string()), levels);
            assert_eq!(read_json::<Value>(&value.to_string()).unwrap(), value, "{levels}");
            // As in a record, or a line of a transcript.
            let line = json!({"event": {"payload": value}});
            assert_eq!(read_json::<Value>(&line.to_string()).unwrap(), line, "{levels}");
        }
        assert!(matches!(check_value("v", &nested(MAX_DEPTH + 1)), Err(StoreError::Invalid(_))));
    }

    #[test]
    fn text_that_is_too_deep_or_damaged_is_an_error() {
        for text in
            ["[".repeat(1 << 20), "[1".to_owned(), "{\"a\":".repeat(200), String::new(), "1 2".to_owned()]
        {
            assert!(read_json::<Value>(&text).is_err(), "{}", &text[..text.len().min(20)]);
        }
    }

    #[test]
    fn a_reserved_member_name_is_neither_stored_nor_read() {
        for name in ["$serde_json::private::RawValue", "$serde_json::private::Number"] {
            let value = json!({"a": [{ name: "1" }]});
            assert!(matches!(check_value("v", &value), Err(StoreError::Invalid(_))), "{name}");
            assert!(read_json::<Value>(&value.to_string()).is_err(), "{name}");
            assert!(read_json::<Value>(&value.to_string().replace('$', "\\u0024")).is_err(), "{name}");
        }
    }

    #[test]
    fn everything_in_a_value_counts() {
        let text = "x".repeat(1000);
        for value in [json!(text), json!([text]), json!({"a": {"b": text}}), json!({ &text: 1 })] {
            assert!((1000..1300).contains(&check_value("v", &value).unwrap()), "{value}");
        }
        assert!(check_value("v", &json!(vec![0; 1000])).unwrap() >= 32_000);
    }

    #[test]
    fn a_key_that_some_store_cannot_hold_is_refused() {
        for key in ["", "a\0b", &"x".repeat(MAX_KEY_BYTES + 1)] {
            assert!(matches!(check_key("k", key), Err(StoreError::Invalid(_))), "{}", key.len());
        }
        assert!(check_key("k", "'; drop table sessions; --\n\u{1F600}").is_ok());
    }
}
