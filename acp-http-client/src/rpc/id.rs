//! Request ids.

use std::{
    fmt,
    io::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::printable::{OneLine, Printable, PrintableJson};

/// The id of a request: any JSON value, compared by its text.
///
/// `1` and `"1"` are different ids, and a number of any size is sent back unchanged. `Display` is safe to print;
/// [`as_json`](Self::as_json) returns the original text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Box<str>);

impl MessageId {
    pub(crate) fn from_json(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the JSON text of the id.
    pub fn as_json(&self) -> &str {
        &self.0
    }
}

/// In one line, even if the text has several.
impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&OneLine(PrintableJson(&self.0)), f)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Printable(self.0.trim_matches('"')), f)
    }
}

impl Serialize for MessageId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match RawValue::from_string(self.0.to_string()) {
            Ok(raw) => raw.serialize(serializer),
            Err(error) => Err(serde::ser::Error::custom(error)),
        }
    }
}

impl<'de> Deserialize<'de> for MessageId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self(raw.get().into()))
    }
}

/// Makes ids that no other client uses: replay buffers hold old responses, and servers match responses by id alone.
#[derive(Debug)]
pub(crate) struct Ids {
    /// The opening quote and the random part, up to the number.
    prefix: String,
    next: AtomicU64,
}

impl Ids {
    /// Takes the random part from the operating system.
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)?;
        Ok(Self::with_random(random))
    }

    /// Makes ids with this random part.
    pub(crate) fn with_random(random: [u8; 16]) -> Self {
        Self { prefix: format!("\"{:032x}-", u128::from_ne_bytes(random)), next: AtomicU64::new(1) }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The number that the next request will have.
    pub(crate) fn peek(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    pub(crate) fn id(&self, number: u64) -> MessageId {
        MessageId(format!("{}{number}\"", self.prefix).into())
    }

    /// Writes the id as JSON.
    pub(crate) fn write(&self, number: u64, text: &mut Vec<u8>) {
        text.extend_from_slice(self.prefix.as_bytes());
        // Writing to memory cannot fail.
        let _ = write!(text, "{number}\"");
    }

    /// The number of an id that this client made; `None` for other ids.
    pub(crate) fn number(&self, json: &str) -> Option<u64> {
        json.strip_prefix(&self.prefix)?.strip_suffix('"')?.parse().ok()
    }

    /// Finds one of our ids at the beginning of a message that was too large to be read.
    pub(crate) fn find(&self, head: &[u8]) -> Option<u64> {
        let start = memchr::memmem::find(head, self.prefix.as_bytes())?;
        // Only as the `id` of the message: an update may contain our ids as well.
        let before = head[..start].trim_ascii_end().strip_suffix(b":")?.trim_ascii_end();
        if !before.ends_with(b"\"id\"") {
            return None;
        }
        let start = start + self.prefix.len();
        let digits = head[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&head[start..start + digits]).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_strings_and_are_recognised() {
        let (ids, others) = (Ids::new().unwrap(), Ids::new().unwrap());
        let number = ids.next();
        let id = ids.id(number);
        assert_eq!(ids.number(id.as_json()), Some(number));
        assert_eq!(others.number(id.as_json()), None);
        assert_ne!(ids.prefix, others.prefix);
        for foreign in ["1", "\"1\"", "null", "1.5", "\"\"", "\"x-1\""] {
            assert_eq!(ids.number(foreign), None);
        }
    }

    #[test]
    fn an_id_is_found_in_the_beginning_of_a_message() {
        let ids = Ids::new().unwrap();
        let text = format!("{{\"id\":{},\"result\":\"xxxx", ids.id(42).as_json());
        assert_eq!(ids.find(text.as_bytes()), Some(42));
        assert_eq!(ids.find(b"{\"id\":\"other-42\""), None);
        let mention = format!("{{\"method\":\"x\",\"params\":{{\"about\":{}", ids.id(42).as_json());
        assert_eq!(ids.find(mention.as_bytes()), None);
    }

    #[test]
    fn an_id_is_safe_to_print_and_keeps_its_text() {
        let json = "\"a\u{9b}2J\u{202e}\"";
        let id = MessageId::from_json(json);
        assert_eq!(id.to_string(), "a\\u{9b}2J\\u{202e}");
        assert_eq!(format!("{id:?}"), "\"a\\u009b2J\\u202e\"");
        assert_eq!(id.as_json(), json);
        let id = MessageId::from_json("[1,\n2]");
        assert_eq!(format!("{id:?}"), "[1,\\n2]", "a log has no lines of the agent");
    }

    #[test]
    fn foreign_ids_keep_their_text() {
        for json in ["1", "1.50", "\"a\"", "null", "18446744073709551616"] {
            let id: MessageId = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&id).unwrap(), json);
        }
    }
}
