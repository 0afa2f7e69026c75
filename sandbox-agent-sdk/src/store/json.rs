//! JSON as stores keep it.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::MAX_DEPTH;

/// What a value takes in memory besides its text.
const OVERHEAD: usize = 32;
/// How much deeper a text may be than a value in it: records and lines of transcripts have members of their own.
const WRAPPING: usize = 8;

/// How many bytes a value takes, about; `None` if it is nested too deeply to be kept.
pub(super) fn measure(value: &Value) -> Option<usize> {
    within(value, MAX_DEPTH)
}

fn within(value: &Value, depth: usize) -> Option<usize> {
    let inside = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => {
            let depth = depth.checked_sub(1)?;
            items.iter().map(|item| within(item, depth)).sum::<Option<usize>>()?
        }
        Value::Object(members) => {
            let depth = depth.checked_sub(1)?;
            let member =
                |(name, value): (&String, &Value)| Some(OVERHEAD + name.len() + within(value, depth)?);
            members.iter().map(member).sum::<Option<usize>>()?
        }
    };
    Some(OVERHEAD + inside)
}

/// Reads what a store keeps. The parser's own limit is lower than [`MAX_DEPTH`], because what servers send up to that
/// limit is kept inside of something else.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text).or_else(|error| {
        if depth(text) > MAX_DEPTH + WRAPPING {
            return Err(error);
        }
        // So deep, reading it recursively does no harm.
        let mut deserializer = serde_json::Deserializer::from_str(text);
        deserializer.disable_recursion_limit();
        let value = T::deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    })
}

/// How deeply a text is nested.
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

    use super::{MAX_DEPTH, depth, measure, read};

    fn nested(levels: usize) -> Value {
        (0..levels).fold(
            json!(1),
            |inside, level| {
                if level % 2 == 0 { json!([inside]) } else { json!({ "\"[{\\": inside }) }
            },
        )
    }

    #[test]
    fn whatever_is_measured_can_be_read_again() {
        for levels in [0, 1, 126, 127, 128, 129, MAX_DEPTH - 1, MAX_DEPTH] {
            let value = nested(levels);
            assert!(measure(&value).is_some(), "{levels}");
            assert_eq!(depth(&value.to_string()), levels);
            assert_eq!(read::<Value>(&value.to_string()).unwrap(), value, "{levels}");
            // As in a record, or a line of a transcript.
            let line = json!({"event": {"payload": value}});
            assert_eq!(read::<Value>(&line.to_string()).unwrap(), line, "{levels}");
        }
        assert_eq!(measure(&nested(MAX_DEPTH + 1)), None);
    }

    #[test]
    fn what_is_too_deep_or_spoilt_is_an_error_and_no_overflow() {
        for text in
            ["[".repeat(1 << 20), "[1".to_owned(), "{\"a\":".repeat(200), String::new(), "1 2".to_owned()]
        {
            assert!(read::<Value>(&text).is_err(), "{}", &text[..text.len().min(20)]);
        }
    }

    #[test]
    fn everything_in_a_value_counts() {
        let text = "x".repeat(1000);
        for value in [json!(text), json!([text]), json!({"a": {"b": text}}), json!({ &text: 1 })] {
            assert!((1000..1300).contains(&measure(&value).unwrap()), "{value}");
        }
        assert!(measure(&json!(vec![0; 1000])).unwrap() >= 32_000);
    }
}
