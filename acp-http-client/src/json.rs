//! JSON that is kept as it came.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use serde::{Serialize, Serializer, de::DeserializeOwned};
use serde_json::value::RawValue;

/// A JSON value as text, cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Bytes);

impl Json {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("null")
    }

    /// The text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads it as a type.
    pub fn parse<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.0)
    }

    /// Reads it as a value, `null` if it is none.
    pub fn to_value(&self) -> serde_json::Value {
        self.parse().unwrap_or_default()
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_slice(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

/// A value of a known type, or one that this version does not know: the JSON is there in both cases.
#[derive(Debug, Clone)]
pub struct Typed<T> {
    /// Boxed: it passes through several hands on its way, and most values are large.
    value: Result<Box<T>, Arc<serde_json::Error>>,
    raw: Json,
}

impl<T: DeserializeOwned> Typed<T> {
    pub(crate) fn read(raw: Bytes) -> Self {
        // Text that is known to be UTF-8 is read more quickly than bytes that might be.
        let value = match std::str::from_utf8(&raw) {
            Ok(text) => serde_json::from_str(text),
            Err(_) => serde_json::from_slice(&raw),
        };
        Self { value: value.map(Box::new).map_err(Arc::new), raw: Json(raw) }
    }
}

impl<T> Typed<T> {
    /// The value, if it fits its type.
    pub fn known(&self) -> Option<&T> {
        self.value.as_deref().ok()
    }

    /// The value, or why it does not fit its type.
    pub fn into_known(self) -> Result<T, Arc<serde_json::Error>> {
        self.value.map(|value| *value)
    }

    /// The JSON it came as.
    pub fn raw(&self) -> &Json {
        &self.raw
    }

    /// Whether what does not fit is not even JSON.
    pub(crate) fn is_broken(&self) -> bool {
        self.value.as_ref().is_err_and(|error| error.is_syntax() || error.is_eof())
    }
}
