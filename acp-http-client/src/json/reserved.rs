//! Member names that `serde_json` treats specially.
//!
//! Wherever it makes a [`Value`](serde_json::Value), `serde_json` replaces `{"$serde_json::private::RawValue": "[1]"}` by the
//! JSON inside the string. The depth of that JSON is counted from zero, so a small message can exhaust the stack, and every
//! limit counts its values as text. `{"$serde_json::private::Number": "1"}` becomes a number if any crate of the application
//! enables `arbitrary_precision`.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use memchr::{memchr, memchr2};

use super::JsonError;

/// What all of these names begin with.
const PREFIX: &[u8] = b"$serde_json::private::";

/// The name under which `serde_json` passes a number to a visitor if `arbitrary_precision` is enabled.
pub(super) const NUMBER: &str = "$serde_json::private::Number";

/// Checks that no object of a JSON text has a reserved member name. Whether it is JSON at all is not checked.
pub(super) fn check(text: &[u8]) -> Result<(), JsonError> {
    if may_contain_name(text) && contains_name(text) { Err(JsonError::Reserved) } else { Ok(()) }
}

/// Whether a name has the prefix.
pub(super) fn is_reserved(name: &str) -> bool {
    name.as_bytes().starts_with(PREFIX)
}

/// A search that is much faster than parsing, and finds nothing in usual messages.
fn may_contain_name(text: &[u8]) -> bool {
    // Preparing a search costs more than searching a short message.
    static UNESCAPED: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(PREFIX));
    static ESCAPE: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\\u00"));
    // A name is written as it is, or with at least one of its characters escaped.
    let Some(first) = memchr2(PREFIX[0], b'\\', text) else { return false };
    let text = &text[first..];
    let is_escaped =
        |at: usize| text.get(at + 4..at + 6).and_then(byte).is_some_and(|byte| PREFIX.contains(&byte));
    memchr(PREFIX[0], text).is_some_and(|at| UNESCAPED.find(&text[at..]).is_some())
        || ESCAPE.find_iter(text).any(is_escaped)
}

fn contains_name(mut text: &[u8]) -> bool {
    while let Some(quote) = memchr(b'"', text) {
        let (is_reserved, rest) = read_string(&text[quote + 1..]);
        if is_reserved && rest.trim_ascii_start().starts_with(b":") {
            return true;
        }
        text = rest;
    }
    false
}

/// Returns whether a string has the prefix, and the text after its closing quote.
fn read_string(mut text: &[u8]) -> (bool, &[u8]) {
    let mut expected = PREFIX.iter();
    let is_reserved = loop {
        let Some(&next) = expected.next() else { break true };
        match text {
            [b'\\', b'u', b'0', b'0', high, low, rest @ ..] if byte(&[*high, *low]) == Some(next) => {
                text = rest
            }
            [first, rest @ ..] if *first == next => text = rest,
            _ => break false,
        }
    };
    while let Some(at) = memchr2(b'"', b'\\', text) {
        if text[at] == b'"' {
            return (is_reserved, &text[at + 1..]);
        }
        text = text.get(at + 2..).unwrap_or_default();
    }
    (false, &[])
}

/// The byte that two hexadecimal digits mean.
fn byte(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(text: &str) -> bool {
        check(text.as_bytes()).is_err()
    }

    #[test]
    fn a_reserved_name_is_found_in_every_spelling() {
        const NAME: &str = "$serde_json::private::RawValue";
        for at in 0..PREFIX.len() {
            for escaped in
                [format!("\\u{:04x}", NAME.as_bytes()[at]), format!("\\u{:04X}", NAME.as_bytes()[at])]
            {
                let name = format!("{}{escaped}{}", &NAME[..at], &NAME[at + 1..]);
                for text in
                    [format!(r#"{{"{name}":"1"}}"#), format!("[\"\\\\\",{{\"a\":0,\"{name}\" \r\n\t: 1}}]")]
                {
                    assert!(is_refused(&text), "{text}");
                }
            }
        }
        for text in [r#"{"$serde_json::private::Number":"1"}"#, r#"{"$serde_json::private::":1}"#] {
            assert!(is_refused(text), "{text}");
        }
    }

    #[test]
    fn text_that_only_mentions_the_name_is_accepted() {
        for text in [
            r#"{"text":"$serde_json::private::RawValue"}"#,
            r#"{"text":"{\"$serde_json::private::RawValue\":\"1\"}"}"#,
            r#"{"text":"\"$serde_json::private::RawValue\":"}"#,
            r#"{"$serde_json::private":1,"serde_json::private::RawValue":2,"x$serde_json::private::RawValue":3}"#,
            r#"["$serde_json::private::RawValue","\u0073"]"#,
            r#"{"\u0024serde":"\u003cb\u003e \u001b"}"#,
            "\"$serde_json::private::RawValue",
            "\"\\",
            "\"\\u00",
            "",
        ] {
            assert!(!is_refused(text), "{text}");
        }
    }

    #[test]
    fn usual_escapes_need_no_second_look() {
        for text in [r#"{"a":"\u001b[0m \u003cb\u003e \u0026 \u0027 \u00e9 \u2028"}"#, "\\u00", "\\u007"] {
            assert!(!may_contain_name(text.as_bytes()), "{text}");
        }
    }
}
