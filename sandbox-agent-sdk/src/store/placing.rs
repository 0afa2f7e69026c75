//! Which event of a batch gets which index.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::fence::{check_epoch, epoch_of};
use super::rows::unsigned;
use super::{NewEvent, StoreError};
use crate::session::Timestamp;

/// How a session stands before a batch, read where nobody else can write to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) last_index: u64,
    pub(super) made_at: Timestamp,
    /// How often it was taken up.
    pub(super) epoch: u64,
}

impl Head {
    /// From a row with the id of a session, its last index, when it was made, and its record.
    pub(super) fn of_row<D: AsRef<[u8]>>(row: (String, i64, i64, D)) -> (String, Self) {
        let (id, last_index, made_at, document) = row;
        let made_at = Timestamp::from_millis(unsigned(made_at));
        (id, Self { last_index: unsigned(last_index), made_at, epoch: epoch_of(document.as_ref()) })
    }
}

/// The indexes of events that are stored already, by the ids of their session and their own.
pub(super) type Present = HashMap<(String, String), u64>;

/// A batch of which every event has its place.
#[derive(Debug)]
pub(super) struct Placed<'a> {
    /// The index of each event.
    pub(super) indexes: Vec<u64>,
    /// Those that are not stored yet.
    pub(super) fresh: Vec<(&'a NewEvent, u64)>,
    /// The last index of each session that gets any, and when the last of its events was.
    pub(super) heads: BTreeMap<&'a str, (u64, Timestamp)>,
}

/// The sessions that a batch is for, each once, in the order in which they are locked: the same for every writer, so that
/// no two wait for each other.
pub(super) fn sessions(events: &[NewEvent]) -> BTreeSet<&str> {
    events.iter().map(|event| event.session_id.as_str()).collect()
}

/// Gives each event its place. One that is there already, or twice in the batch, keeps the place it has.
pub(super) fn place<'a>(
    events: &'a [NewEvent],
    sessions: &BTreeMap<String, Head>,
    present: &Present,
) -> Result<Placed<'a>, StoreError> {
    let mut placed = Placed { indexes: Vec::new(), fresh: Vec::new(), heads: BTreeMap::new() };
    let mut batch: HashMap<(&str, &str), u64> = HashMap::with_capacity(events.len());
    let present: HashMap<(&str, &str), u64> =
        present.iter().map(|((session, id), index)| ((session.as_str(), id.as_str()), *index)).collect();
    for event in events {
        let (session, key) = (event.session_id.as_str(), (event.session_id.as_str(), event.id.as_str()));
        let head = sessions.get(session).filter(|head| event.belongs_to(head.made_at));
        let head = head.ok_or_else(|| StoreError::NotFound { id: session.to_owned() })?;
        check_epoch(event, head.epoch)?;
        let known = present.get(&key).or_else(|| batch.get(&key)).copied();
        let index = known.unwrap_or_else(|| {
            let (last, latest) = placed.heads.entry(session).or_insert((head.last_index, event.recorded_at));
            *last += 1;
            *latest = event.recorded_at.max(*latest);
            placed.fresh.push((event, *last));
            batch.insert(key, *last);
            *last
        });
        placed.indexes.push(index);
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use super::{Head, Present, place};
    use crate::session::Timestamp;
    use crate::sessions::{NewEvent, StoreError};

    fn event(session: &str, id: &str, at: u64) -> NewEvent {
        NewEvent::new(id, session, Timestamp::from_millis(at), "update", ())
    }

    #[test]
    fn what_is_there_keeps_its_place_and_the_rest_follows_without_holes() {
        let made_at = Timestamp::from_millis(7);
        let sessions = [("s", 10), ("t", 0)]
            .map(|(id, last_index)| (id.to_owned(), Head { last_index, made_at, epoch: 0 }))
            .into();
        let present = Present::from([(("s".to_owned(), "b".to_owned()), 4)]);
        let events = [
            event("s", "a", 9),
            event("s", "b", 99),
            event("t", "a", 1),
            event("s", "a", 50),
            event("s", "c", 3),
        ];
        let placed = place(&events, &sessions, &present).unwrap();
        assert_eq!(placed.indexes, [11, 4, 1, 11, 12]);
        let fresh: Vec<_> = placed.fresh.iter().map(|(event, index)| (event.id.as_str(), *index)).collect();
        assert_eq!(fresh, [("a", 11), ("a", 1), ("c", 12)]);
        let heads: Vec<_> = placed.heads.into_iter().collect();
        let at = Timestamp::from_millis;
        assert_eq!(heads, [("s", (12, at(9))), ("t", (1, at(1)))], "what is skipped is no activity");

        let mut late = event("s", "z", 1);
        for (made, found) in [(Some(made_at), true), (Some(at(8)), false), (None, true)] {
            late.session_made_at = made;
            let events = [event("s", "y", 1), late.clone()];
            match place(&events, &sessions, &present) {
                Ok(_) => assert!(found),
                Err(error) => assert!(!found && matches!(error, StoreError::NotFound { id } if id == "s")),
            }
        }
    }
}
