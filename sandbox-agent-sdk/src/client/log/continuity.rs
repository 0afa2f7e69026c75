//! Whether a new connection reads the same stream that a log has read before.

use std::collections::BTreeMap;

use crate::client::stream::StreamPosition;
use crate::event::{Gap, Origin};

/// How many events of the stream are remembered.
const KNOWN: usize = 1024;

/// What to do with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The log does not have it. What was undecided before is new too.
    New,
    /// It is new, and these events before it can no longer be read.
    Behind(Gap),
    /// The log has it already. What was undecided before is repeated too.
    Repeat,
    /// It is not known yet whether the server is the same one.
    Undecided,
}

/// Compares what a new connection replays with what was read before: servers do not report which incarnation they are.
///
/// The first replayed event with a remembered number decides. If its content is the same, so is the server.
#[derive(Debug, Default)]
pub(super) struct Continuity {
    /// The latest events: their numbers and fingerprints.
    known: BTreeMap<u64, u64>,
    incarnation: u64,
    /// The last number before the connection.
    known_to: u64,
    /// Whether the connection reads the same stream as the one before.
    is_same: Option<bool>,
}

impl Continuity {
    /// Begins after a position of an earlier connection or process.
    pub(super) fn after(position: StreamPosition) -> Self {
        let mut continuity = Self::default();
        if position.offset > 0 {
            continuity.known.insert(position.offset, position.fingerprint);
        }
        continuity
    }

    /// Compares an entry, and remembers it if it is new.
    pub(super) fn judge(&mut self, position: StreamPosition, origin: Origin) -> Verdict {
        if position.incarnation != self.incarnation {
            self.incarnation = position.incarnation;
            self.known_to = self.known.keys().next_back().copied().unwrap_or(0);
            self.is_same = self.known.is_empty().then_some(false);
        }
        let (is_replayed, known) = (origin == Origin::Replayed, self.known.get(&position.offset));
        let verdict = match (self.is_same, known) {
            (None, Some(known)) if is_replayed && *known == position.fingerprint => {
                self.is_same = Some(true);
                Verdict::Repeat
            }
            (None, None) if is_replayed && position.offset < self.known_to => Verdict::Undecided,
            (None, _) => {
                let from = self.known_to.saturating_add(1);
                let is_behind = is_replayed && position.offset > from;
                self.differs();
                match is_behind {
                    true => Verdict::Behind(Gap { from, to: position.offset - 1 }),
                    false => Verdict::New,
                }
            }
            (Some(true), _) if is_replayed && position.offset <= self.known_to => Verdict::Repeat,
            (Some(_), _) => Verdict::New,
        };
        if matches!(verdict, Verdict::New | Verdict::Behind(_)) {
            self.known.insert(position.offset, position.fingerprint);
            if self.known.len() > KNOWN {
                self.known.pop_first();
            }
        }
        verdict
    }

    /// The server is another one, or nothing proves that it is the same.
    pub(super) fn differs(&mut self) {
        self.known.clear();
        self.is_same = Some(false);
    }
}

#[cfg(test)]
mod tests {
    use super::{Continuity, Verdict};
    use crate::client::stream::StreamPosition;
    use crate::event::{Gap, Origin};

    use Origin::{Live, Replayed};
    use Verdict::{Behind, New, Repeat, Undecided};

    /// What a connection sends: numbers, contents and origins.
    type Sent = (u64, u64, Origin);

    #[test]
    fn the_first_event_that_can_be_compared_decides() {
        // A log that has the events 5 to 7 reads a new connection.
        let table: [(&str, &[Sent], &[Verdict]); 6] = [
            (
                "the same server",
                &[(4, 4, Replayed), (5, 5, Replayed), (6, 6, Replayed), (7, 7, Replayed), (8, 8, Replayed)],
                &[Undecided, Repeat, Repeat, Repeat, New],
            ),
            (
                "another server",
                &[(4, 4, Replayed), (5, 50, Replayed), (6, 6, Replayed)],
                &[Undecided, New, New],
            ),
            ("another server with the same content", &[(5, 5, Live), (6, 6, Live)], &[New, New]),
            ("a server without a past", &[(1, 1, Live), (5, 5, Replayed)], &[New, New]),
            (
                "a server that has forgotten",
                &[(10, 10, Replayed), (11, 11, Live)],
                &[Behind(Gap { from: 8, to: 9 }), New],
            ),
            ("nothing in between", &[(8, 8, Replayed), (9, 9, Live)], &[New, New]),
        ];
        for (name, sent, expected) in table {
            let mut continuity = Continuity::default();
            for offset in 5..=7 {
                assert_eq!(continuity.judge(StreamPosition::new(1, offset, offset), Live), New, "{name}");
            }
            let judge = |(offset, print, origin): &Sent| {
                continuity.judge(StreamPosition::new(2, *offset, *print), *origin)
            };
            assert_eq!(sent.iter().map(judge).collect::<Vec<_>>(), expected, "{name}");
        }
    }

    #[test]
    fn a_position_of_another_process_is_compared_in_the_same_way() {
        let mut continuity = Continuity::after(StreamPosition::new(9, 3, 33));
        let verdicts: Vec<_> = [(2, 22), (3, 33), (4, 44)]
            .map(|(offset, print)| continuity.judge(StreamPosition::new(1, offset, print), Replayed))
            .to_vec();
        assert_eq!(verdicts, [Undecided, Repeat, New]);
    }
}
