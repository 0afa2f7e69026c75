//! Estimates the memory of decoded JSON.

use serde_json::{Map, Value};

/// The size of one value.
const VALUE: usize = size_of::<Value>();
/// The size of an object entry without its value and the text of its name: name, hash, index entry.
const MEMBER: usize = size_of::<String>() + 24;
/// Lists grow by doubling, so up to half of their capacity is unused.
const GROWTH: usize = 2;
/// The overhead of one allocation.
const ALLOCATION: usize = 16;

/// Returns an upper bound of the memory that a JSON text needs as a [`Value`].
///
/// Reads the text once and allocates nothing.
pub(crate) fn decoded_size(text: &[u8]) -> usize {
    let (mut values, mut members, mut strings) = (1_usize, 0_usize, 0_usize);
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b'"' => {
                strings += 1;
                rest = behind_string(rest);
            }
            // Each of these precedes one value. An empty list or object counts as one value too many.
            b',' | b'[' | b'{' => values += 1,
            b':' => members += 1,
            _ => {}
        }
    }
    let places = values.saturating_mul(VALUE).saturating_add(members.saturating_mul(MEMBER));
    places
        .saturating_mul(GROWTH)
        .saturating_add(strings.saturating_mul(ALLOCATION))
        .saturating_add(text.len())
}

/// Returns the text after the end of a string.
fn behind_string(mut text: &[u8]) -> &[u8] {
    while let Some(place) = memchr::memchr2(b'"', b'\\', text) {
        let skipped = if text[place] == b'\\' { 2 } else { 1 };
        let is_end = text[place] == b'"';
        text = text.get(place + skipped..).unwrap_or_default();
        if is_end {
            return text;
        }
    }
    &[]
}

/// Returns the approximate memory of a decoded value.
pub(crate) fn value_size(value: &Value) -> usize {
    VALUE
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => ALLOCATION + text.len(),
            Value::Array(items) => ALLOCATION + items.iter().map(value_size).sum::<usize>(),
            Value::Object(members) => members_size(members),
        }
}

/// Returns the approximate memory of the fields of a decoded object.
pub(crate) fn members_size(members: &Map<String, Value>) -> usize {
    let member = |(name, value): (&String, &Value)| MEMBER + name.len() + value_size(value);
    if members.is_empty() { 0 } else { ALLOCATION + members.iter().map(member).sum::<usize>() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{decoded_size, value_size};

    #[test]
    fn the_bound_is_never_below_what_is_decoded_and_not_far_above_for_ordinary_messages() {
        let ordinary = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hello \"you\" \\ there"}});
        let shapes = [
            ordinary.clone(),
            json!([0, 0, 0, 0, 0, 0, 0, 0]),
            json!([[], [], [], {}, {}]),
            json!({"a": {"b": {"c": [1, {"d": null}]}}}),
            json!("a, [string] {with} \"signs\": \\"),
            json!(null),
        ];
        for value in shapes {
            let text = value.to_string();
            assert!(decoded_size(text.as_bytes()) >= value_size(&value), "{text}");
        }
        let text = ordinary.to_string();
        assert!(decoded_size(text.as_bytes()) <= 3 * value_size(&ordinary));
        let long = json!({"text": "x".repeat(1 << 20)}).to_string();
        assert!(decoded_size(long.as_bytes()) < long.len() + 1024, "a long text takes what it takes");
    }

    #[test]
    fn texts_that_are_cut_or_odd_are_measured_too() {
        for text in ["", "\"", "\"\\", "[", "{\"", "\\", "]]}}", "\"a\\\\\",0"] {
            assert!(decoded_size(text.as_bytes()) >= text.len(), "{text}");
        }
        let dense = format!("[{}0]", "0,".repeat(1000));
        let value: Value = serde_json::from_str(&dense).unwrap();
        assert!(decoded_size(dense.as_bytes()) >= value_size(&value));
    }
}
