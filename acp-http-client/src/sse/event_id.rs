//! The ids of events.

use std::{borrow::Cow, fmt, sync::Arc};

use serde::{Serialize, Serializer};

use crate::printable::Printable;

/// The id of an event: a number on most servers, any text on some. It is cheap to clone.
///
/// `Display` is safe to print; [`as_text`](Self::as_text) returns the original id.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EventId(Kind);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    Number(u64),
    Text(Arc<str>),
}

impl EventId {
    pub(crate) fn read(value: &[u8]) -> Self {
        match number(value) {
            Some(number) => Self(Kind::Number(number)),
            None => Self(Kind::Text(String::from_utf8_lossy(value).into())),
        }
    }

    /// Whether it is the empty id, with which a server resets the last event id.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(&self.0, Kind::Text(text) if text.is_empty())
    }

    /// Whether a header carries it unchanged: without control characters, and without spaces at its ends. Bytes that are
    /// not UTF-8 were replaced, so that the server would not find it.
    pub(crate) fn fits_header(&self) -> bool {
        match &self.0 {
            Kind::Number(_) => true,
            Kind::Text(text) => {
                let is_control = |character: char| character < ' ' || character == '\u{7f}';
                !text.contains(is_control)
                    && !text.contains(char::REPLACEMENT_CHARACTER)
                    && text.trim_matches(' ').len() == text.len()
            }
        }
    }

    /// How many bytes it takes besides the value itself.
    pub(crate) fn size(&self) -> usize {
        match &self.0 {
            Kind::Number(_) => 0,
            Kind::Text(text) => text.len(),
        }
    }

    /// Returns the id as the server sent it. Invalid UTF-8 is replaced.
    pub fn as_text(&self) -> Cow<'_, str> {
        match &self.0 {
            Kind::Number(number) => Cow::Owned(number.to_string()),
            Kind::Text(text) => Cow::Borrowed(text),
        }
    }

    /// Returns the id as a number, if it is a plain decimal number without leading zeros.
    pub fn as_number(&self) -> Option<u64> {
        match self.0 {
            Kind::Number(number) => Some(number),
            Kind::Text(_) => None,
        }
    }
}

/// The number of an id that is written without sign and leading zeros. Returns `None` for the largest number, because
/// it has no successor.
fn number(value: &[u8]) -> Option<u64> {
    if value.is_empty() || (value[0] == b'0' && value.len() > 1) {
        return None;
    }
    let number = value.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    });
    number.filter(|number| *number < u64::MAX)
}

impl From<u64> for EventId {
    fn from(number: u64) -> Self {
        Self(Kind::Number(number))
    }
}

impl From<&str> for EventId {
    fn from(text: &str) -> Self {
        Self::read(text.as_bytes())
    }
}

impl From<String> for EventId {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Number(number) => number.fmt(f),
            Kind::Text(text) => fmt::Display::fmt(&Printable(&**text), f),
        }
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.as_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_text() {
        let table = [
            ("0", Some(0)),
            ("17", Some(17)),
            ("18446744073709551614", Some(u64::MAX - 1)),
            ("18446744073709551615", None),
            ("007", None),
            ("+1", None),
            ("a-1", None),
            ("", None),
        ];
        for (text, number) in table {
            let id = EventId::from(text);
            assert_eq!((&*id.as_text(), id.as_number()), (text, number));
            assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn an_id_fits_a_header_if_it_arrives_as_it_is() {
        let table = [("7", true), ("a b", true), ("a\u{200e}", true), ("a\u{7}", false), ("a\t", false)];
        for (text, fits) in table.into_iter().chain([("a ", false), (" a", false), ("a\u{7f}", false)]) {
            assert_eq!(EventId::from(text).fits_header(), fits, "{text:?}");
        }
        assert!(!EventId::read(b"a\xff").fits_header());
    }

    #[test]
    fn an_id_is_safe_to_print() {
        let id = EventId::from("a\u{1b}]0;x\u{7}");
        assert_eq!(format!("{id} {id:?}"), "a\\u{1b}]0;x\\u{7} a\\u{1b}]0;x\\u{7}");
        assert_eq!(id.as_text(), "a\u{1b}]0;x\u{7}");
        assert_eq!(serde_json::to_value(&id).unwrap(), "a\u{1b}]0;x\u{7}");
    }
}
