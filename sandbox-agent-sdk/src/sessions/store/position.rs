//! Positions in a server's stream.

use serde::{Deserialize, Serialize};

use super::StoreError;
use super::limits::check_number;

/// A position in a server's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamPosition {
    /// The incarnation of the server, which the store counts for each endpoint.
    pub incarnation: u64,
    /// The number of the last message that was read.
    pub offset: u64,
    /// The fingerprint of that message. If it is unchanged when read again, the server has not restarted.
    pub fingerprint: Fingerprint,
}

impl StreamPosition {
    /// The position before the first message of an incarnation.
    pub(in crate::sessions) fn beginning(incarnation: u64) -> Self {
        Self { incarnation, offset: 0, fingerprint: Fingerprint(0) }
    }

    /// Returns the later of two positions. A position in a later incarnation is later.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        let is_later = (other.incarnation, other.offset) > (self.incarnation, self.offset);
        if is_later { other } else { self }
    }

    /// Returns the later of two optional positions.
    #[must_use]
    pub fn later_of(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.later(other)),
            (one, other) => one.or(other),
        }
    }

    /// Whether every store can hold it.
    pub(super) fn check(self) -> Result<(), StoreError> {
        check_number("an incarnation", self.incarnation)?;
        check_number("an offset", self.offset)
    }
}

/// A hash of a stream message. Every program and every version computes the same hash. See
/// [`fingerprint`](crate::stream::StreamPosition#structfield.fingerprint).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub u64);

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
}
