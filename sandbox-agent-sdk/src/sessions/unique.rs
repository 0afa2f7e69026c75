//! Unique ids that are not credentials.

use std::hash::{BuildHasher as _, RandomState};

use crate::client::random::{hex, random_bytes};

/// A unique id. It can be guessed if the operating system provides no randomness.
pub(super) fn unique_id() -> String {
    hex(&unique_bytes::<16>())
}

pub(super) fn unique_bytes<const N: usize>() -> [u8; N] {
    random_bytes().unwrap_or_else(|_| {
        let mut bytes = [0; N];
        for (index, chunk) in bytes.chunks_mut(8).enumerate() {
            // Each hasher has new keys.
            let number = RandomState::new().hash_one(index).to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
        bytes
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::unique_id;
    use crate::client::random::outage;

    #[test]
    fn ids_are_unique_even_without_randomness_of_the_system() {
        let ids: HashSet<_> = outage::during(|| (0..1000).map(|_| unique_id()).collect());
        assert!(ids.len() == 1000 && ids.iter().all(|id| id.len() == 32));
    }
}
