//! A fingerprint of an event's content.

/// How many bytes of an event its fingerprint covers, in addition to its length.
const HASHED_BYTES: usize = 4096;
/// An event larger than this is not fetched again to prove that the server is still the same one.
const SMALL_BYTES: usize = 256 * 1024;

/// Distinguishes a repeat from a new event under an old id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    /// Stands for an event that was skipped unread.
    pub(super) const SKIPPED: Self = Self(0);

    /// Whether the event is small enough to be fetched again.
    pub(super) fn is_small(self) -> bool {
        self.0 & 1 == 1
    }

    /// A fast hash that mixes sixteen bytes at a time. It is not a cryptographic hash.
    pub(crate) fn of(data: &[u8]) -> Self {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
        let (pairs, rest) = data[..data.len().min(HASHED_BYTES)].as_chunks::<16>();
        let (mut even, mut odd) = (FACTOR, !FACTOR);
        for pair in pairs {
            let pair = u128::from_le_bytes(*pair);
            even = mix(even, pair as u64);
            odd = mix(odd, (pair >> 64) as u64);
        }
        let hash = rest.iter().fold(mix(even, odd), |hash, byte| mix(hash, u64::from(*byte)));
        let small = u64::from(data.len() <= SMALL_BYTES);
        Self((mix(hash, data.len() as u64) & !1).max(2) | small)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_and_lengths_are_distinguished() {
        let long = vec![b'x'; 10_000];
        let texts: [&[u8]; 7] = [b"", b"a", b"b", b"ab", b"0123456789abcdef0", &long, &long[1..]];
        for (index, one) in texts.iter().enumerate() {
            for (other_index, other) in texts.iter().enumerate() {
                assert_eq!(Fingerprint::of(one) == Fingerprint::of(other), index == other_index);
            }
        }
    }
}
