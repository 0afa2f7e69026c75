//! JSON text as it was received. The functions are public for the crates of this project, and not part of the API.

mod decoded;
mod reserved;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use crate::printable::{OneLine, PrintableJson, safe_error};

/// A JSON value as text, cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Bytes);

impl Json {
    /// The memory limit of [`to_value`](Self::to_value), and the default of
    /// [`Limits::decoded`](crate::Limits#structfield.decoded).
    pub const DECODED_LIMIT: usize = 64 << 20;

    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Returns the text.
    ///
    /// Parse it with [`parse`](Self::parse) or [`to_value`](Self::to_value): a hostile text can exhaust the stack if
    /// `serde_json` parses it as a [`Value`] directly.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("null")
    }

    /// Returns the text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Parses the text as a type.
    ///
    /// # Errors
    /// If the text is not valid JSON, is nested too deep, has a [reserved](JsonError::Reserved) member name or does not
    /// match the type.
    pub fn parse<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        from_slice(&self.0)
    }

    /// Parses the text as a value of at most [`DECODED_LIMIT`](Self::DECODED_LIMIT) bytes.
    ///
    /// # Errors
    /// The errors of [`to_value_within`](Self::to_value_within).
    pub fn to_value(&self) -> Result<Value, JsonError> {
        self.to_value_within(Self::DECODED_LIMIT)
    }

    /// Parses the text as a value that takes at most about `limit` bytes of memory.
    ///
    /// # Errors
    /// [`JsonError`] if the text is not valid JSON, is nested too deep, has a reserved member name, or exceeds the limit.
    pub fn to_value_within(&self, limit: usize) -> Result<Value, JsonError> {
        decode(&self.0, limit)
    }
}

/// Parses JSON text from the wire. Every type that may contain a [`Value`] is parsed with this function.
///
/// # Errors
/// The errors of [`Json::parse`].
pub fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> serde_json::Result<T> {
    check_names(text)?;
    serde_json::from_str(text)
}

/// Parses JSON text from the wire like [`from_str`].
///
/// # Errors
/// The errors of [`Json::parse`].
pub fn from_slice<'a, T: Deserialize<'a>>(text: &'a [u8]) -> serde_json::Result<T> {
    check_names(text)?;
    serde_json::from_slice(text)
}

/// Checks that JSON text has no [reserved](JsonError::Reserved) member name, before another parser reads it.
///
/// # Errors
/// If it has one.
pub fn check_names(text: impl AsRef<[u8]>) -> serde_json::Result<()> {
    reserved::check(text.as_ref()).map_err(serde::de::Error::custom)
}

/// Whether a member name is [reserved](JsonError::Reserved).
pub fn is_reserved(name: &str) -> bool {
    reserved::is_reserved(name)
}

/// Reads JSON text as a value that takes at most about `limit` bytes of memory.
pub(crate) fn decode(text: &[u8], limit: usize) -> Result<Value, JsonError> {
    decoded::decode(text, limit)
}

/// Checks that JSON text takes at most about `limit` bytes of memory once it is parsed, as a value or as another type.
/// Does not check whether the text is JSON.
pub(crate) fn check_size(text: &[u8], limit: usize) -> Result<(), JsonError> {
    // A value needs two bytes of text, itself and what separates it from the next, so that only large text is read twice.
    let values = text.len() / 2 + 1;
    if values.saturating_mul(size_of::<Value>()).saturating_add(text.len()) <= limit {
        return Ok(());
    }
    // A value begins the text or follows one of these; a member with its value takes less than eight values.
    let values = memchr::memchr3_iter(b',', b'[', b'{', text).count().saturating_add(1);
    if values.saturating_mul(8 * size_of::<Value>()).saturating_add(text.len()) <= limit {
        return Ok(());
    }
    match decode(text, limit) {
        Err(error @ JsonError::TooLarge { .. }) => Err(error),
        _ => Ok(()),
    }
}

/// The error of parsing JSON text as a value.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// The text is not JSON.
    #[error("invalid JSON")]
    Invalid(#[source] Arc<serde_json::Error>),
    /// The value is nested too deep.
    #[error("JSON is nested deeper than {limit} levels")]
    TooDeep {
        /// The maximum number of levels.
        limit: usize,
    },
    /// The value takes too much memory.
    #[error("JSON takes more than {limit} bytes once decoded")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// An object has a member whose name starts with `$serde_json::private::`.
    ///
    /// `serde_json` would read a value that differs from the text.
    #[error("JSON has a reserved member name")]
    Reserved,
}

/// Safe to print: characters that a terminal acts on are written as JSON escapes. The text is in [`Json::as_str`].
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&PrintableJson(self.as_str()), f)
    }
}

/// Like `Display`, in one line.
impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&OneLine(self), f)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_slice(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

/// A typed value with its JSON.
///
/// It contains only the JSON if this version of the crate does not know the value.
#[derive(Debug, Clone)]
pub struct Typed<T> {
    /// Boxed, because most values are large and are moved several times.
    value: Result<Box<T>, Arc<serde_json::Error>>,
    raw: Json,
}

impl<T: DeserializeOwned> Typed<T> {
    /// Reads text. Bytes that are not UTF-8 are replaced, as the event stream format requires.
    pub(crate) fn read(raw: Bytes) -> Self {
        Self::read_with(raw, |_| None)
    }

    /// Reads JSON, first with a faster function that does not support every value.
    pub(crate) fn read_with(raw: Bytes, fast: impl FnOnce(&str) -> Option<T>) -> Self {
        // Parsing text that is known to be UTF-8 is faster than parsing bytes.
        let (value, raw) = match std::str::from_utf8(&raw) {
            Ok(text) => (fast(text).map_or_else(|| from_str(text), Ok), raw),
            Err(_) => {
                let text = String::from_utf8_lossy(&raw).into_owned();
                (from_str(&text), Bytes::from(text))
            }
        };
        Self { value: value.map(Box::new).map_err(|error| Arc::new(safe_error(error))), raw: Json(raw) }
    }
}

impl<T: DeserializeOwned> Typed<T> {
    /// Reads text that takes at most `limit` bytes once it is decoded; larger text does not fit the type.
    pub(crate) fn read_within(raw: Bytes, limit: usize) -> Self {
        match check_size(&raw, limit) {
            Ok(()) => Self::read(raw),
            Err(error) => Self { value: Err(Arc::new(serde::de::Error::custom(error))), raw: Json(raw) },
        }
    }
}

impl<T> Typed<T> {
    /// Returns the value, if it matches its type.
    pub fn known(&self) -> Option<&T> {
        self.value.as_deref().ok()
    }

    /// Returns the value, or the error if it does not match its type.
    pub fn into_known(self) -> Result<T, Arc<serde_json::Error>> {
        self.value.map(|value| *value)
    }

    /// Returns the JSON, as received.
    pub fn raw(&self) -> &Json {
        &self.raw
    }

    /// Why the text cannot be read at all: it is not JSON, or is nested too deep.
    pub(crate) fn unreadable(&self) -> Option<&serde_json::Error> {
        self.value.as_ref().err().map(|error| &**error).filter(|error| error.is_syntax() || error.is_eof())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_as_a_type_up_to_the_limit_and_not_above() {
        let text = Bytes::from(format!("[{}0]", "0,".repeat(999)));
        let size = 1_001 * size_of::<Value>();
        for (limit, fits) in [(size - 1, false), (size, true), (size + 1, true)] {
            let typed = Typed::<Vec<u8>>::read_within(text.clone(), limit);
            assert_eq!(typed.known().is_some(), fits, "{limit}");
            assert!(typed.unreadable().is_none() && typed.raw().as_bytes() == text, "{limit}");
        }
        assert!(check_size(b"[0,0,", 4 * size_of::<Value>()).is_ok(), "this is reported where it is read");
    }

    #[test]
    fn debug_is_one_line() {
        let json = Json::new(Bytes::from_static(b"[1,\n2]"));
        assert_eq!((format!("{json:?}"), json.to_string()), ("[1,\\n2]".to_owned(), "[1,\n2]".to_owned()));
    }

    #[test]
    fn an_error_of_a_typed_value_is_safe_to_print() {
        #[derive(Debug, serde::Deserialize)]
        enum Known {
            One,
        }
        let text = Bytes::from_static(b"\"\\u001b]0;owned\\u0007\"");
        let error = Typed::<Known>::read(text).into_known().map(|_| Known::One).unwrap_err();
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
        assert!(error.to_string().contains("owned"));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced_also_where_no_type_reads_them() {
        #[derive(serde::Deserialize)]
        struct Known {
            id: u8,
        }
        let typed = Typed::<Known>::read(Bytes::from_static(b"{\"id\":1,\"unknown\":\"a\xffb\"}"));
        assert_eq!(typed.known().map(|known| known.id), Some(1));
        assert_eq!(typed.raw().as_str(), "{\"id\":1,\"unknown\":\"a\u{fffd}b\"}");
    }
}
