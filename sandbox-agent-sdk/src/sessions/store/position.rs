//! Where an event stands in a server's stream.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// Where a reader of a server's stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamPosition {
    /// The run of the server, as the store counts them for the endpoint.
    pub incarnation: u64,
    /// The number of the last message that was read.
    pub offset: u64,
    /// The fingerprint of the messages up to there. Reading them again proves that the server is the same.
    pub fingerprint: Fingerprint,
}

impl StreamPosition {
    /// The later of two positions. A later incarnation is later.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        match (self.incarnation, self.offset).cmp(&(other.incarnation, other.offset)) {
            Ordering::Less => other,
            _ => self,
        }
    }

    /// The later of two positions that may be unknown.
    #[must_use]
    pub fn later_of(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.later(other)),
            (one, other) => one.or(other),
        }
    }
}

/// A hash of the last messages of a stream, at most [`WINDOW`](Self::WINDOW).
///
/// It is the same in every program and version: FNV-1a over the messages in order, each followed by its length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub u64);

impl Fingerprint {
    /// How many messages a fingerprint covers, if the stream has as many. A single message may be equal in two
    /// incarnations; several in a row contain a response to a request with a random id.
    pub const WINDOW: usize = 8;

    /// The fingerprint of these messages, the oldest first.
    #[must_use]
    pub fn of<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Self {
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        let mut hash = OFFSET;
        for message in messages {
            hash = message.iter().fold(hash, step);
            hash = (message.len() as u64).to_le_bytes().iter().fold(hash, step);
        }
        Self(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::{Fingerprint, StreamPosition};

    fn at(incarnation: u64, offset: u64) -> StreamPosition {
        StreamPosition { incarnation, offset, fingerprint: Fingerprint(offset) }
    }

    #[test]
    fn a_later_incarnation_is_later_whatever_its_offset() {
        for (one, other, later) in
            [(at(1, 5), at(1, 6), at(1, 6)), (at(1, 6), at(1, 5), at(1, 6)), (at(2, 1), at(1, 900), at(2, 1))]
        {
            assert_eq!(one.later(other), later);
            assert_eq!(StreamPosition::later_of(Some(one), Some(other)), Some(later));
        }
        assert_eq!(StreamPosition::later_of(None, Some(at(1, 1))), Some(at(1, 1)));
        assert_eq!(StreamPosition::later_of(Some(at(1, 1)), None), Some(at(1, 1)));
        assert_eq!(StreamPosition::later_of(None, None), None);
    }

    #[test]
    fn a_fingerprint_depends_on_every_byte_the_order_and_the_borders() {
        let of = |messages: &[&str]| Fingerprint::of(messages.iter().map(|text| text.as_bytes()));
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        let others = [of(&["b", "a"]), of(&["ab"]), of(&["ab", ""]), of(&["", "ab"]), of(&["a"]), of(&[])];
        for (n, other) in others.iter().enumerate() {
            assert_ne!(*other, of(&["a", "b"]));
            assert!(!others[..n].contains(other));
        }
        // It is stored, so that it must not change between versions.
        assert_eq!(of(&[]), Fingerprint(0xcbf2_9ce4_8422_2325));
    }
}
