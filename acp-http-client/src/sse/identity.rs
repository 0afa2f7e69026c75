//! Which events of a stream are new.

use super::{
    EventId, Fingerprint, Flow, Sequenced,
    sequence::{Accepted, Sequence},
    tail::{Recognised, Tail},
};
use crate::EventIds;

/// Recognises repeats, holes and restarts by the meaning of event ids in the dialect.
///
/// Numbers that contradict the dialect are opaque from then on: nothing is dropped, no gap and no restart is invented.
#[derive(Debug)]
pub(crate) enum Identity<T> {
    Sequence(Sequence<T>),
    Opaque(Tail),
}

impl<T> Identity<T> {
    pub(crate) fn new(ids: EventIds, resume_from: Option<EventId>) -> Self {
        match (ids, &resume_from) {
            (EventIds::Sequence, None) => Self::Sequence(Sequence::new(None)),
            (EventIds::Sequence, Some(id)) if id.as_number().is_some() => {
                Self::Sequence(Sequence::new(id.as_number()))
            }
            _ => Self::Opaque(Tail::new(resume_from)),
        }
    }

    /// The `Last-Event-ID` to open the stream with.
    pub(crate) fn resume_point(&self) -> Option<String> {
        match self {
            Self::Sequence(sequence) => sequence.resume_point().map(|number| number.to_string()),
            Self::Opaque(tail) => tail.last().map(|id| id.as_text().into_owned()),
        }
    }

    /// Whether a stream opened at `resume_point` begins with an event that was seen before, so that silence means
    /// another server.
    pub(crate) fn overlaps(&self) -> bool {
        matches!(self, Self::Sequence(sequence) if sequence.overlaps())
    }

    /// Whether the open stream has shown if the server is the same one, or can no longer show it.
    pub(crate) fn is_decided(&self) -> bool {
        match self {
            Self::Sequence(sequence) => sequence.is_decided(),
            Self::Opaque(_) => true,
        }
    }

    /// Whether numbers are dense: a hole is a loss.
    pub(crate) fn is_sequence(&self) -> bool {
        matches!(self, Self::Sequence(_))
    }

    /// Whether a server that honours `Last-Event-ID` continues where the stream broke.
    pub(crate) fn is_resumable(&self) -> bool {
        match self {
            Self::Sequence(sequence) => sequence.last().is_some(),
            Self::Opaque(tail) => tail.is_resumable(),
        }
    }

    /// The id of the last event before any missing event.
    pub(crate) fn last(&self) -> Option<EventId> {
        match self {
            Self::Sequence(sequence) => sequence.last().map(EventId::from),
            Self::Opaque(tail) => tail.last().cloned(),
        }
    }

    /// The number of the last event before any missing event.
    pub(crate) fn last_number(&self) -> Option<u64> {
        match self {
            Self::Sequence(sequence) => sequence.last(),
            Self::Opaque(_) => None,
        }
    }

    pub(crate) fn repeats(&self) -> u64 {
        match self {
            Self::Sequence(sequence) => sequence.repeats(),
            Self::Opaque(tail) => tail.repeats(),
        }
    }

    /// How long to wait for what is missing before `give_up` is called, or `None` if nothing is.
    pub(crate) fn hole_timeout(&self) -> Option<std::time::Duration> {
        match self {
            Self::Sequence(sequence) => sequence.hole_timeout(),
            Self::Opaque(_) => None,
        }
    }

    /// Accepts one event. If it is the response to a pending request, and so cannot have been seen before, `fresh`
    /// returns the highest number that was seen before that request was made.
    pub(crate) fn accept(
        &mut self,
        id: Option<&EventId>,
        print: Fingerprint,
        item: T,
        fresh: impl FnOnce(&T) -> Option<u64>,
        out: &mut Vec<Sequenced<T>>,
    ) -> Flow {
        if let Self::Sequence(sequence) = self {
            match sequence.accept(id.and_then(EventId::as_number), print, item, fresh, out) {
                Accepted::Taken(flow) => return flow,
                Accepted::NotASequence(item) => {
                    let mut tail = Tail::new(sequence.last().map(EventId::from));
                    sequence.release_all(out);
                    tail.accept(id, print);
                    *self = Self::Opaque(tail);
                    out.push(Sequenced::Item(item));
                    return Flow::Continue;
                }
            }
        }
        if let Self::Opaque(tail) = self {
            match tail.accept(id, print) {
                Recognised::New => out.push(Sequenced::Item(item)),
                Recognised::Alike => out.push(Sequenced::Alike(item)),
                Recognised::Repeat => {}
            }
        }
        Flow::Continue
    }

    /// Moves past an event that cannot be accepted, so that it is never fetched again.
    pub(crate) fn skip(&mut self, id: Option<&EventId>, out: &mut Vec<Sequenced<T>>) -> Flow {
        match self {
            Self::Sequence(sequence) => sequence.skip(id.map(EventId::as_number), out),
            Self::Opaque(tail) => {
                tail.skip(id);
                Flow::Continue
            }
        }
    }

    /// The stream was opened: at `resume_point`, or from the beginning of what the server has.
    pub(crate) fn reopened(&mut self) {
        match self {
            Self::Sequence(sequence) => sequence.reopened(),
            Self::Opaque(tail) => tail.reopened(),
        }
    }

    /// Reports every hole and releases the events that are held after it.
    pub(crate) fn give_up(&mut self, out: &mut Vec<Sequenced<T>>) {
        if let Self::Sequence(sequence) = self {
            sequence.give_up(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(identity: &mut Identity<String>, events: &[(&str, &str)]) -> Vec<Sequenced<String>> {
        let mut out = Vec::new();
        for (id, content) in events {
            let id = (!id.is_empty()).then(|| EventId::from(*id));
            let print = Fingerprint::of(content.as_bytes());
            identity.accept(id.as_ref(), print, (*content).to_owned(), |_| None, &mut out);
        }
        out
    }

    fn words(out: &[Sequenced<String>]) -> Vec<&str> {
        out.iter()
            .map(|out| match out {
                Sequenced::Item(word) | Sequenced::Alike(word) | Sequenced::Late(word) => word.as_str(),
                Sequenced::Unproven => "unproven",
                Sequenced::Gap { .. } => "gap",
                Sequenced::Restarted => "restarted",
            })
            .collect()
    }

    #[test]
    fn every_legal_id_delivers_every_event_once_under_every_dialect() {
        let words_sent = ["w0", "w1", "w2", "w3", "w4"];
        let rows: [[&str; 5]; 5] = [
            ["0", "0", "0", "0", "0"],
            ["x", "x", "x", "x", "x"],
            ["", "", "", "", ""],
            ["5", "4", "3", "2", "1"],
            ["7", "7", "7", "7", "7"],
        ];
        for ids in rows {
            for kind in [EventIds::Sequence, EventIds::Opaque] {
                let mut identity = Identity::new(kind, None);
                let events: Vec<_> = ids.into_iter().zip(words_sent).collect();
                let out = feed(&mut identity, &events);
                assert_eq!(words(&out), words_sent, "{ids:?} {kind:?}");
            }
        }
    }

    #[test]
    fn time_stamps_are_no_gaps_where_ids_are_opaque() {
        let mut identity = Identity::new(EventIds::Opaque, None);
        let out = feed(&mut identity, &[("1700000001", "a"), ("1700000101", "b"), ("1700002101", "c")]);
        assert_eq!(words(&out), ["a", "b", "c"]);
        assert_eq!(identity.resume_point().as_deref(), Some("1700002101"));
    }

    #[test]
    fn a_number_that_contradicts_the_dialect_makes_ids_opaque() {
        let mut identity = Identity::new(EventIds::Sequence, None);
        let out = feed(&mut identity, &[("1", "a"), ("2", "b"), ("2", "c"), ("2", "d")]);
        assert_eq!(words(&out), ["a", "b", "c", "d"]);
        assert!(!identity.is_sequence());
    }
}
