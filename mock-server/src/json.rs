//! Parses JSON of clients and agents.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Wherever `serde_json` makes a `Value`, it replaces an object with this member by the JSON inside its string, whose
/// depth it counts from zero. A small message would overflow the stack.
const RESERVED: &str = "$serde_json::private::RawValue";

/// Parses JSON text in which no object has the reserved member.
pub(crate) fn from_slice<'a, T: Deserialize<'a>>(text: &'a [u8]) -> serde_json::Result<T> {
    // The name is written as it is, or with escapes.
    if contains(text, RESERVED.as_bytes()) || contains(text, b"\\u00") {
        serde_json::from_slice::<Checked>(text)?;
    }
    serde_json::from_slice(text)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Any JSON without the reserved member.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self, A::Error> {
        while let Some(name) = object.next_key::<Cow<'_, str>>()? {
            if name == RESERVED {
                return Err(A::Error::custom("a member has a reserved name"));
            }
            object.next_value::<Self>()?;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::from_slice;

    #[test]
    fn a_reserved_member_is_an_error_in_every_spelling() {
        for name in ["$serde_json::private::RawValue", "\\u0024serde_json::private::RawValue"] {
            let text = format!(r#"{{"a":[0,-1,1.5,true,null,"x",{{"{name}":"[[1]]"}}]}}"#);
            assert!(from_slice::<Value>(text.as_bytes()).is_err(), "{text}");
            let text = format!(r#"{{"a":[0,-1,1.5,true,null,"x",{{"b":"{name}"}}]}}"#);
            assert!(from_slice::<Value>(text.as_bytes()).is_ok(), "{text}");
        }
    }
}
