//! Ids that nobody can guess.

use std::hash::{BuildHasher, RandomState};

/// An id that nobody else has and nobody can guess. The keys of a hasher come from the system's randomness, and what it
/// makes of a number cannot be foreseen without them.
pub(crate) fn random_id() -> String {
    let random = || RandomState::new().hash_one(0u8);
    format!("{:016x}{:016x}", random(), random())
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
