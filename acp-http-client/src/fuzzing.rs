//! The bodies of the fuzz targets of this crate.
//!
//! Each takes any bytes, and panics if what it checks does not hold. The fuzzer drives them, and the tests replay its
//! corpus. They are here because they reach internals.

mod core;
mod message;
mod sequence;
mod sse;

use bytes::Bytes;

use crate::Json;

pub use self::{core::ordered_core, message::message, sequence::sequence, sse::sse_decoder};

/// JSON text as it is received, for targets of other crates.
pub fn json(text: &str) -> Json {
    Json::new(Bytes::copy_from_slice(text.as_bytes()))
}
