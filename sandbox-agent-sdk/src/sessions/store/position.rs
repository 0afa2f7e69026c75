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
    /// The fingerprint of that message. Reading it again shows that the server is the same.
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

/// A hash of a message of a stream: [`fingerprint`](crate::stream::StreamPosition#structfield.fingerprint). It is the same in
/// every program and version.
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
