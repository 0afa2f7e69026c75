//! Recognises updates by their structure, without parsing them.

use std::ops::Range;

/// The beginning of an update, whether its members are in the usual order or sorted, and its end: that of the
/// parameters and of the message.
const UPDATE_HEAD: &[u8] = br#"{"jsonrpc":"2.0","method":"session/update","params":{"#;
const UPDATE_TAIL: &[u8] = b"}}";

/// Where the parameters of a `session/update` are, if the message has the form in which servers write it.
pub(super) fn params(message: &[u8]) -> Option<Range<usize>> {
    if !message.starts_with(UPDATE_HEAD) || !message.ends_with(UPDATE_TAIL) {
        return None;
    }
    let range = UPDATE_HEAD.len() - 1..message.len() - 1;
    let params = &message[range.clone()];
    // Otherwise other members follow the parameters.
    (!has_member_behind_object(params) || object_len(params) == Some(params.len())).then_some(range)
}

/// Whether a `}` is followed by a comma anywhere, in strings too. If not, no member follows the parameters: this is so
/// in most updates, and faster to see than where the parameters end.
fn has_member_behind_object(text: &[u8]) -> bool {
    memchr::memchr_iter(b'}', text).any(|at| text[at + 1..].trim_ascii_start().first() == Some(&b','))
}

/// The length of the object that text begins with, if its brackets are balanced.
///
/// Strings are skipped and nothing else is checked.
fn object_len(text: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0usize, 0);
    loop {
        match text.get(at)? {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            b'"' => at += string_len(&text[at + 1..])?,
            _ => {}
        }
        at += 1;
    }
}

/// The length of the rest of a string with its closing quote.
fn string_len(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        // Most strings are short, and a search pays only for long ones.
        let near = text[at..].iter().take(16).position(|byte| matches!(byte, b'"' | b'\\'));
        at += match near {
            Some(near) => near,
            None => memchr::memchr2(b'"', b'\\', &text[at..])?,
        };
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at = at.saturating_add(2).min(text.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_object_is_found_behind_strings_of_any_length() {
        for size in [0, 1, 15, 16, 17, 100] {
            for text in [
                "x".repeat(size),
                "\\\"".repeat(size),
                "\\\\".repeat(size),
                format!("{}}}", "é".repeat(size)),
            ] {
                let object = format!("{{\"a\":[\"{text}\",{{}}]}}");
                assert_eq!(
                    object_len(format!("{object},\"b\":1}}").as_bytes()),
                    Some(object.len()),
                    "{object}"
                );
                for cut in 0..object.len() {
                    assert_eq!(object_len(&object.as_bytes()[..cut]), None);
                }
            }
        }
    }
}
