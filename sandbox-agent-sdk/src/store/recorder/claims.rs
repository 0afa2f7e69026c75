//! The sessions that a program has taken up, and what its events of them are called.

use std::collections::{HashMap, HashSet};

use super::queue::Entry;
use crate::store::{NewEvent, SessionRecord};

/// What separates the time in which an event was taken down from its place.
const SEPARATOR: char = ':';

/// The sessions that a program has taken up.
#[derive(Debug, Default)]
pub(super) struct Claims {
    claims: HashMap<String, Claim>,
}

#[derive(Debug, Clone, Copy)]
struct Claim {
    /// How often the session had been taken up then.
    epoch: u64,
    /// The last index that it had then.
    since: u64,
    /// How often the server has begun to count anew since: a place means something else each time.
    restarts: i64,
}

impl Claims {
    pub(super) fn insert(&mut self, session_id: &str, epoch: u64, since: u64) {
        self.claims.insert(session_id.to_owned(), Claim { epoch, since, restarts: 0 });
    }

    pub(super) fn remove(&mut self, session_id: &str) {
        self.claims.remove(session_id);
    }

    pub(super) fn restarted(&mut self) {
        self.claims.values_mut().for_each(|claim| claim.restarts += 1);
    }

    /// The index behind which everything is that others have stored since this program wrote to the session, or took it
    /// up.
    pub(super) fn since(&self, session_id: &str) -> u64 {
        self.claims.get(session_id).map_or(0, |claim| claim.since)
    }

    /// These were written at these indexes.
    pub(super) fn wrote(&mut self, entries: &[Entry], indexes: &[u64]) {
        for (entry, index) in entries.iter().zip(indexes) {
            if let Some(claim) = self.claims.get_mut(&entry.event.session_id)
                && entry.event.epoch == Some(claim.epoch)
            {
                claim.since = claim.since.max(*index);
            }
        }
    }

    /// Somebody else has taken a session up. Gives what is left to be written, and what is stored already or theirs to
    /// store. The rest is called what it is called there, so that each event is stored once, whoever is quicker.
    pub(super) fn give_way(
        &self,
        piece: Vec<Entry>,
        record: &SessionRecord,
        stored: &HashSet<String>,
        until: Option<u64>,
    ) -> (Vec<Entry>, Vec<Entry>) {
        let restarts = self.claims.get(&record.id).map_or(0, |claim| claim.restarts);
        let concerns = |entry: &Entry| entry.event.session_id == record.id && entry.event.epoch.is_some();
        let (mut left, theirs): (Vec<_>, Vec<_>) = piece.into_iter().partition(|entry| {
            let id = &entry.event.id;
            // Numbers of a time before the server restarted are other numbers.
            let behind = until.is_some() && number_of(place_of(id)) > until && entry.restarts == restarts;
            !concerns(entry) || !(behind || stored.contains(place_of(id)))
        });
        for entry in left.iter_mut().filter(|entry| concerns(entry)) {
            // Two lives of a server give the same places to different events.
            let life = entry.restarts.saturating_sub(restarts).min(0);
            entry.event.id = format!("{}.{life}{SEPARATOR}{}", record.epoch, place_of(&entry.event.id));
            entry.event.epoch = Some(record.epoch);
        }
        (left, theirs)
    }

    /// Marks an event of a session that was taken up: every program that sees it in its place calls it the same. Gives how
    /// often the server has begun to count anew.
    pub(super) fn mark(&self, event: &mut NewEvent, place: Option<&str>) -> i64 {
        let Some(claim) = self.claims.get(&event.session_id) else { return 0 };
        let place = place.unwrap_or(&event.id);
        event.id = format!("{}.{}{SEPARATOR}{place}", claim.epoch, claim.restarts);
        event.epoch = Some(claim.epoch);
        claim.restarts
    }
}

/// The place in its id.
pub(crate) fn place_of(id: &str) -> &str {
    id.split_once(SEPARATOR).map_or(id, |(_, place)| place)
}

/// The number in the server's stream in a place, if it has one.
pub(crate) fn number_of(place: &str) -> Option<u64> {
    place.split_once('-')?.0.parse().ok()
}

/// What tells the events of one life of the server, as one program saw it, from all others: what is before the place.
pub(crate) fn life_of(id: &str) -> Option<&str> {
    Some(id.split_once(SEPARATOR)?.0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Claims, number_of, place_of};
    use crate::session::Timestamp;
    use crate::sessions::{NewEvent, SessionRecord};
    use crate::store::recorder::queue::Entry;

    fn marked(claims: &Claims, id: &str, place: Option<&str>) -> Entry {
        let mut event = NewEvent::new(id, "s", Timestamp::from_millis(1), "update", ());
        let restarts = claims.mark(&mut event, place);
        let mut entry = Entry::of(event);
        entry.restarts = restarts;
        entry
    }

    #[test]
    fn two_programs_call_an_event_the_same_and_a_restarted_server_another() {
        let (mut one, mut other) = (Claims::default(), Claims::default());
        one.insert("s", 3, 10);
        other.insert("s", 4, 20);
        let mut record = SessionRecord::new("s", "mock", Timestamp::from_millis(1));
        record.epoch = 4;
        let leftover = vec![
            marked(&one, "one-1", Some("7-ab")),
            marked(&one, "one-2", None),
            marked(&Claims::default(), "of nobody", None),
            marked(&one, "one-3", Some("8-ab")),
            marked(&one, "one-4", Some("6-ab")),
        ];
        let (left, theirs) = one.give_way(leftover, &record, &HashSet::from(["6-ab".to_owned()]), Some(7));
        assert_eq!((left.len(), theirs.len()), (3, 2), "one is stored, and one is theirs");
        assert_eq!(left[0].event.id, marked(&other, "other-1", Some("7-ab")).event.id);
        assert_eq!((left[1].event.id.as_str(), left[1].event.epoch), ("4.0:one-2", Some(4)));
        assert_eq!((left[2].event.id.as_str(), left[2].event.epoch), ("of nobody", None));
        other.restarted();
        let again = marked(&other, "other-2", Some("7-ab")).event.id;
        assert_ne!(again, left[0].event.id);
        assert_eq!((place_of(&again), number_of("7-ab"), number_of("x7-ab")), ("7-ab", Some(7), None));
        // What came before the restart has a number that means nothing now.
        let mut old = vec![marked(&one, "a", Some("99-ab")), marked(&one, "b", Some("7-ab"))];
        one.restarted();
        old.push(marked(&one, "c", Some("7-ab")));
        let (left, theirs) = one.give_way(old, &record, &HashSet::new(), Some(7));
        let ids = |left: &[Entry]| left.iter().map(|entry| entry.event.id.clone()).collect::<Vec<_>>();
        assert_eq!(
            (ids(&left), theirs.len()),
            (vec!["4.-1:99-ab".into(), "4.-1:7-ab".into(), "4.0:7-ab".into()], 0)
        );
        // It gives way once more.
        record.epoch = 9;
        let (left, _) = one.give_way(left, &record, &HashSet::new(), None);
        assert_eq!(ids(&left), ["9.-1:99-ab", "9.-1:7-ab", "9.0:7-ab"]);
    }
}
