//! What every store agrees to keep.

use serde_json::Value;

use super::StoreError;
use super::json::measure;
use crate::session::Timestamp;

/// How many bytes an id, or the name of an agent, may have: databases cannot index keys of any length.
pub const MAX_KEY_BYTES: usize = 512;

/// How many items a page has at most.
pub const MAX_PAGE: usize = 1000;

/// How deeply a payload, or a value in a record, may be nested: what cannot be read again is not written. It is more
/// than twice of what is read from a server.
pub const MAX_DEPTH: usize = 256;

/// How many items a page has unless another number is asked for.
pub(super) const DEFAULT_PAGE: usize = 100;

/// Refuses a key that some store could not keep, so that all stores keep the same.
pub(super) fn check_key(what: &str, key: &str) -> Result<(), StoreError> {
    if key.is_empty() {
        return Err(StoreError::Invalid(format!("{what} is empty")));
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(StoreError::Invalid(format!("{what} has {} bytes, {MAX_KEY_BYTES} at most", key.len())));
    }
    if key.contains('\0') {
        return Err(StoreError::Invalid(format!("{what} has a NUL character")));
    }
    Ok(())
}

pub(super) fn page_size(limit: usize) -> usize {
    limit.clamp(1, MAX_PAGE)
}

/// Refuses a moment that databases cannot keep: they count in 63 bits.
pub(super) fn check_moment(what: &str, moment: Timestamp) -> Result<(), StoreError> {
    match i64::try_from(moment.as_millis()) {
        Ok(_) => Ok(()),
        Err(_) => Err(StoreError::Invalid(format!("{what} is too far in the future"))),
    }
}

/// Refuses a value that could not be read again, and tells how many bytes it takes, about.
pub(super) fn check_value(what: &str, value: &Value) -> Result<usize, StoreError> {
    measure(value)
        .ok_or_else(|| StoreError::Invalid(format!("{what} is nested more than {MAX_DEPTH} levels deep")))
}
