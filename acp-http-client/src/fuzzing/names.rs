//! The check for member names that the parser reserves for itself.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use crate::json;

/// Checks that a text is refused if and only if an object in it has a reserved member name, however it is written, and
/// that a value that is accepted has as many levels as its text.
pub fn member_names(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    // Text that is not JSON, or is nested too deep, is refused in any case.
    let Ok(found) = serde_json::from_str::<Reserved>(&text) else {
        assert!(json::from_str::<Value>(&text).is_err(), "a text that is not JSON is read");
        return;
    };
    assert_eq!(json::check_names(text.as_bytes()).is_err(), found.0, "{text}");
    if found.0 {
        assert!(json::from_str::<Value>(&text).is_err());
        assert!(json::from_slice::<Value>(text.as_bytes()).is_err());
    }
}

/// Whether an object of a text has a reserved member name, found with the parser's own reading of names.
struct Reserved(bool);

impl<'de> Deserialize<'de> for Reserved {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Find)
    }
}

struct Find;

impl<'de> Visitor<'de> for Find {
    type Value = Reserved;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Reserved, A::Error> {
        let mut found = false;
        while let Some((name, value)) = members.next_entry::<Cow<'_, str>, Reserved>()? {
            found |= value.0 || name.starts_with("$serde_json::private::");
        }
        Ok(Reserved(found))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Reserved, A::Error> {
        let mut found = false;
        while let Some(item) = items.next_element::<Reserved>()? {
            found |= item.0;
        }
        Ok(Reserved(found))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Reserved, E> {
        Ok(Reserved(false))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Reserved, E> {
        Ok(Reserved(false))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Reserved, E> {
        Ok(Reserved(false))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Reserved, E> {
        Ok(Reserved(false))
    }

    fn visit_str<E>(self, _: &str) -> Result<Reserved, E> {
        Ok(Reserved(false))
    }

    fn visit_unit<E>(self) -> Result<Reserved, E> {
        Ok(Reserved(false))
    }
}
