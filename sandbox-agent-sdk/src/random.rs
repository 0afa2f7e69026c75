//! Ids that nobody can guess.

use std::hash::{BuildHasher, RandomState};

/// An id that nobody else has and nobody can guess. The keys of a hasher come from the system's randomness, and what it
/// makes of a number cannot be foreseen without them.
pub(crate) fn random_id() -> String {
    let random = || RandomState::new().hash_one(0u8);
    format!("{:016x}{:016x}", random(), random())
}

/// A number below this one, for waiting times that should not be the same for all.
pub(crate) fn random_below(end: u32) -> u32 {
    let random = RandomState::new().hash_one(0u8);
    u32::try_from(random % u64::from(end.max(1))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::random_id;

    #[test]
    fn ids_are_never_the_same() {
        let ids: std::collections::HashSet<_> = (0..1000).map(|_| random_id()).collect();
        assert!(ids.len() == 1000 && ids.iter().all(|id| id.len() == 32));
    }
}
