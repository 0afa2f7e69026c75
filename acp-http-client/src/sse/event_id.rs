//! The ids of events.

use std::fmt;

use serde::{Serialize, Serializer};

/// The id of an event: a number with most servers, any text with some.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EventId(Kind);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    Number(u64),
    Text(Box<str>),
}

impl EventId {
    pub(crate) fn read(value: &[u8]) -> Self {
        match number(value) {
            Some(number) => Self(Kind::Number(number)),
            None => Self(Kind::Text(String::from_utf8_lossy(value).into())),
        }
    }

    /// Whether it is the empty id, by which a server takes back the last one.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(&self.0, Kind::Text(text) if text.is_empty())
    }

    /// The number it is, if it is one.
    pub fn as_number(&self) -> Option<u64> {
        match self.0 {
            Kind::Number(number) => Some(number),
            Kind::Text(_) => None,
        }
    }
}

/// The number an id stands for, if it is written the way a counter writes it. The largest number has no successor,
/// and no counter gets there.
fn number(value: &[u8]) -> Option<u64> {
    let digits = value.first().is_some_and(u8::is_ascii_digit) && (value == b"0" || value[0] != b'0');
    let text = std::str::from_utf8(value).ok().filter(|_| digits)?;
    text.parse().ok().filter(|number| *number < u64::MAX)
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

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Number(number) => number.fmt(f),
            Kind::Text(text) => f.write_str(text),
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
        serializer.collect_str(self)
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
            assert_eq!((id.to_string().as_str(), id.as_number()), (text, number));
        }
    }
}
