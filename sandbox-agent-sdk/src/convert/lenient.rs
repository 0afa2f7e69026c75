//! Parses JSON straight into types, without a [`Value`] in between.
//!
//! A field of an unexpected type counts as absent, so that it does not make a whole message unreadable. If a field is
//! repeated, the last one counts. Whatever is skipped is parsed: JSON that cannot be decoded as a [`Value`], for example
//! because it is nested too deep, is an error here as well.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

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
        Value::deserialize(MapAccessDeserializer::new(object)).map(|_| None)
    }
}

/// Parses the value of a field.
///
/// # Errors
/// If the JSON is not valid.
pub(crate) fn value<'de, T: Lenient<'de>, A: MapAccess<'de>>(object: &mut A) -> Result<Option<T>, A::Error> {
    object.next_value_seed(Expected(PhantomData))
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
pub(crate) fn from_str<'de, T: Lenient<'de>>(text: &'de str) -> serde_json::Result<Option<T>> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Expected(PhantomData).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Parses a value that a deserializer has; `None` if it has another type.
///
/// # Errors
/// If the deserializer fails.
pub(crate) fn deserialize<'de, T: Lenient<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Expected(PhantomData).deserialize(deserializer)
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
        let mut entries = Self::new();
        while let Some(entry) = list.next_element_seed(Expected(PhantomData))? {
            entries.extend(entry);
        }
        Ok(Some(entries))
    }
}

/// The value that is parsed next.
struct Expected<T>(PhantomData<T>);

impl<'de, T: Lenient<'de>> DeserializeSeed<'de> for Expected<T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Lenient<'de>> Visitor<'de> for Expected<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<T>, E> {
        Ok(T::text(text))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Option<T>, E> {
        Ok(T::string(text))
    }

    fn visit_unit<E: Error>(self) -> Result<Option<T>, E> {
        Ok(T::scalar(Value::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Option<T>, E> {
        Ok(T::scalar(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<T>, E> {
        Ok(T::scalar(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<T>, E> {
        Ok(T::scalar(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<T>, E> {
        Ok(T::scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Option<T>, A::Error> {
        T::list(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Option<T>, A::Error> {
        T::object(object)
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
