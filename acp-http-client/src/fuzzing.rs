//! The bodies of the fuzz targets of this crate.
//!
//! Each function takes any bytes and panics if a property does not hold. The fuzzer calls them, and tests replay its
//! corpus. They are here because they need internals.

mod core;
mod message;
mod names;
mod sequence;
mod sse;

use bytes::Bytes;

use crate::Json;

pub use self::{
    core::ordered_core, message::message, names::member_names, sequence::sequence, sse::sse_decoder,
};

/// Creates JSON text as if it had been received, for fuzz targets of other crates.
pub fn json(text: &str) -> Json {
    Json::new(Bytes::copy_from_slice(text.as_bytes()))
}
