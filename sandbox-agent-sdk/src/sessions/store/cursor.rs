//! Where a page of sessions starts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::StoreError;
use super::limits::check_key;
use crate::session::Timestamp;

/// The start of the next page of sessions. It stays valid while other tasks or processes write.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cursor {
    pub(super) at: Timestamp,
    pub(super) id: String,
}

impl Cursor {
    /// Creates a cursor that starts after the session with this time and id. For implementors of stores.
    #[must_use]
    pub fn after(at: Timestamp, id: impl Into<String>) -> Self {
        Self { at, id: id.into() }
    }

    /// Returns the time by which the list is ordered.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns the id of the session after which the page starts.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Rejects a cursor with an invalid session id: not every store could search for it.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        check_key("a cursor", &self.id).map_err(|_| {
            let cursor = self.to_string().chars().take(64).collect();
            StoreError::BadCursor { cursor }
        })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.at.as_millis(), self.id)
    }
}

impl FromStr for Cursor {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let bad = || StoreError::BadCursor { cursor: text.chars().take(64).collect() };
        let (at, id) = text.split_once('.').ok_or_else(bad)?;
        // The standard library accepts signs and leading zeros; no cursor is written with them.
        let millis: u64 = at.parse().ok().filter(|millis: &u64| millis.to_string() == at).ok_or_else(bad)?;
        let cursor = Self { at: Timestamp::from_millis(millis), id: id.to_owned() };
        cursor.check().map(|()| cursor)
    }
}

impl TryFrom<String> for Cursor {
    type Error = StoreError;

    fn try_from(text: String) -> Result<Self, StoreError> {
        text.parse()
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> Self {
        cursor.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::Cursor;
    use crate::session::Timestamp;
    use crate::sessions::store::StoreError;

    #[test]
    fn a_cursor_survives_its_text_and_nothing_else_is_one() {
        for id in ["a", "1.2.3", "'; --", "\u{1F600}", "x y"] {
            let cursor = Cursor::after(Timestamp::from_millis(u64::MAX), id);
            assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
            let json = serde_json::to_string(&cursor).unwrap();
            assert_eq!(serde_json::from_str::<Cursor>(&json).unwrap(), cursor);
        }
        let long = format!("1.{}", "x".repeat(1 << 20));
        for text in [
            "",
            ".",
            "1",
            "1.",
            ".a",
            "-1.a",
            "+1.a",
            "01.a",
            "1 .a",
            "18446744073709551616.a",
            "1.a\0",
            &long,
        ] {
            let error = text.parse::<Cursor>().unwrap_err();
            // It is shown, though not all of it.
            assert!(matches!(&error, StoreError::BadCursor { cursor } if cursor.len() <= 64), "{error:?}");
        }
    }
}
