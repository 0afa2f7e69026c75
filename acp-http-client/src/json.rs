//! JSON that is kept as it came.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use serde::{Serialize, Serializer, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::rpc::params_of;

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
    raw: Raw,
}

#[derive(Debug, Clone)]
enum Raw {
    Value(Json),
    /// The value stands in the `params` of this message, and is looked for when it is asked for.
    Message {
        message: Bytes,
        params: OnceLock<Json>,
    },
}

impl<T: DeserializeOwned> Typed<T> {
    pub(crate) fn read(raw: Bytes) -> Self {
        Self { value: serde_json::from_slice(&raw).map_err(Arc::new), raw: Raw::Value(Json(raw)) }
    }
}

impl<T> Typed<T> {
    /// A value that was read out of the `params` of a message.
    pub(crate) fn of_message(value: Box<T>, message: Bytes) -> Self {
        Self { value: Ok(value), raw: Raw::Message { message, params: OnceLock::new() } }
    }

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
        match &self.raw {
            Raw::Value(json) => json,
            Raw::Message { message, params } => params.get_or_init(|| Json(params_of(message))),
        }
    }
}
