//! Parses JSON straight into types, without a [`Value`] in between.
//!
//! A field of an unexpected type counts as absent, so that it does not make a whole message unreadable. If a field is
//! repeated, the last one counts. Whatever is skipped is parsed: JSON that cannot be decoded as a [`Value`], for example
//! because it is nested too deep, is an error here as well.

use std::borrow::Cow;
use std::fmt;

use acp_http_client::json::check_names;
use serde::Deserializer;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A type that is parsed from some JSON types; other JSON is `None`.
pub(crate) trait Lenient<'de>: Sized {
    /// Parses a string.
    fn text(_: &str) -> Option<Self> {
        None
    }

    /// Parses a string that is not borrowed from the JSON text.
    fn string(text: String) -> Option<Self> {
        Self::text(&text)
    }

    /// Parses `null`, a boolean or a number.
    fn scalar(_: Value) -> Option<Self> {
        None
    }

    /// Parses a list.
    ///
    /// # Errors
    /// If the JSON is not valid.
    fn list<A: SeqAccess<'de>>(list: A) -> Result<Option<Self>, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(list)).map(|_| None)
    }

    /// Parses an object.
    ///
    /// # Errors
    /// If the JSON is not valid.
    fn object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        // With `arbitrary_precision`, which another crate may enable, a number has this form.
        let value = Value::deserialize(MapAccessDeserializer::new(object))?;
        Ok(if value.is_number() { Self::scalar(value) } else { None })
    }

    /// Parses an object in place. Large types that consist of other large types override it, so that they are not moved.
    ///
    /// # Errors
    /// If the JSON is not valid.
    fn object_into<A: MapAccess<'de>>(object: A, place: &mut Option<Self>) -> Result<(), A::Error> {
        *place = Self::object(object)?;
        Ok(())
    }
}

/// Parses the value of a field.
///
/// # Errors
/// If the JSON is not valid.
pub(crate) fn value<'de, T: Lenient<'de>, A: MapAccess<'de>>(object: &mut A) -> Result<Option<T>, A::Error> {
    let mut value = None;
    value_into(object, &mut value)?;
    Ok(value)
}

/// Parses the value of a field in place: large types are not moved through the parser.
///
/// # Errors
/// If the JSON is not valid.
pub(crate) fn value_into<'de, T: Lenient<'de>, A: MapAccess<'de>>(
    object: &mut A,
    place: &mut Option<T>,
) -> Result<(), A::Error> {
    object.next_value_seed(Place(place))
}

/// Skips the value of a field.
///
/// # Errors
/// If the JSON is not valid.
pub(crate) fn skip<'de, A: MapAccess<'de>>(object: &mut A) -> Result<(), A::Error> {
    object.next_value::<Value>().map(drop)
}

/// Passes the name of each field of an object to `field`, which parses or skips its value.
///
/// # Errors
/// If the JSON is not valid, or an error of `field`.
pub(crate) fn fields<'de, A: MapAccess<'de>>(
    mut object: A,
    mut field: impl FnMut(Cow<'de, str>, &mut A) -> Result<(), A::Error>,
) -> Result<(), A::Error> {
    while let Some(name) = next_name(&mut object)? {
        field(name, &mut object)?;
    }
    Ok(())
}

/// Returns the name of the next field, borrowed from the JSON text if possible.
///
/// # Errors
/// If the JSON is not valid.
pub(crate) fn next_name<'de, A: MapAccess<'de>>(object: &mut A) -> Result<Option<Cow<'de, str>>, A::Error> {
    object.next_key_seed(Name)
}

/// Returns the value of a field that must be a string, borrowed from the JSON text if possible.
///
/// # Errors
/// If the JSON is not valid, or not a string.
pub(crate) fn next_text<'de, A: MapAccess<'de>>(object: &mut A) -> Result<Cow<'de, str>, A::Error> {
    object.next_value_seed(Name)
}

/// Parses JSON text; `None` if it has another type.
///
/// # Errors
/// If the JSON is not valid.
pub(crate) fn from_str<'de, T: Lenient<'de>>(
    text: &'de str,
    place: &mut Option<T>,
) -> serde_json::Result<()> {
    check_names(text)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    Place(place).deserialize(&mut deserializer)?;
    deserializer.end()
}

/// Parses a value that a deserializer has; `None` if it has another type.
///
/// # Errors
/// If the deserializer fails.
pub(crate) fn deserialize<'de, T: Lenient<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let mut value = None;
    Place(&mut value).deserialize(deserializer)?;
    Ok(value)
}

impl Lenient<'_> for String {
    fn text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn string(text: String) -> Option<Self> {
        Some(text)
    }
}

impl Lenient<'_> for u64 {
    fn scalar(value: Value) -> Option<Self> {
        value.as_u64()
    }
}

/// Any value except `null`.
impl<'de> Lenient<'de> for Value {
    fn text(text: &str) -> Option<Self> {
        Some(text.into())
    }

    fn string(text: String) -> Option<Self> {
        Some(text.into())
    }

    fn scalar(value: Value) -> Option<Self> {
        Some(value).filter(|value| !value.is_null())
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Option<Self>, A::Error> {
        Self::deserialize(SeqAccessDeserializer::new(list)).map(Some)
    }

    fn object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        Self::deserialize(MapAccessDeserializer::new(object)).map(Some)
    }
}

/// A list without the entries of an unexpected type.
impl<'de, T: Lenient<'de>> Lenient<'de> for Vec<T> {
    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        let (mut entries, mut entry) = (Self::new(), None);
        while list.next_element_seed(Place(&mut entry))?.is_some() {
            entries.extend(entry.take());
        }
        Ok(Some(entries))
    }
}

/// Where to store the next parsed value.
struct Place<'a, T>(&'a mut Option<T>);

impl<'de, T: Lenient<'de>> DeserializeSeed<'de> for Place<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Lenient<'de>> Visitor<'de> for Place<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        *self.0 = T::text(text);
        Ok(())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<(), E> {
        *self.0 = T::string(text);
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        *self.0 = T::scalar(Value::Null);
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        *self.0 = T::scalar(value.into());
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        *self.0 = T::scalar(value.into());
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        *self.0 = T::scalar(value.into());
        Ok(())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        *self.0 = T::scalar(value.into());
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        *self.0 = T::list(list)?;
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<(), A::Error> {
        T::object_into(object, self.0)
    }
}

/// The name of a field, or another string.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}
