//! Randomness.

use std::hash::{BuildHasher, RandomState};

/// A number in `0.0..1.0`; the keys of a hasher come from the system's randomness.
pub(crate) fn fraction() -> f64 {
    let bits = RandomState::new().hash_one(0u8) >> 11;
    bits as f64 / (1u64 << 53) as f64
}
