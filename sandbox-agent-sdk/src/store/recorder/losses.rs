//! What was not stored, and who has heard of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Unrecorded;
use crate::store::StoreError;

/// Of how many sessions it is remembered what the store would not take.
const SESSIONS: usize = 1024;

/// What a look has found of each session so far.
type Seen = BTreeMap<String, Found>;

/// How many events a look has found given up, in how many refusals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Found {
    count: u64,
    refusals: u64,
}

/// What the store would not take, by session, and how much of it was seen by those who look: each look at everything,
/// and each look at one session, finds what is new to its own kind, so that none takes anything from another.
#[derive(Debug, Default)]
pub(super) struct Failures {
    sessions: BTreeMap<String, Failure>,
    everything: Arc<Seen>,
    single: Seen,
}

#[derive(Debug)]
struct Failure {
    /// How many events were given up since the recorder was started, each once.
    count: u64,
    /// How often the store would not take events, or what stands for them.
    refusals: u64,
    /// How many of them there is no mark for in the store.
    standing: u64,
    /// Why the last of them were.
    error: StoreError,
}

/// Where a look begins. Two that begin before either ends find the same.
#[derive(Debug)]
pub(super) enum Look {
    Everything(Arc<Seen>),
    Session(String, Found),
}

impl Failures {
    /// The store would not take so many events, nor what stands for others: that adds none.
    pub(super) fn add(&mut self, session: &str, count: u64, error: &StoreError) {
        if self.sessions.len() >= SESSIONS && !self.sessions.contains_key(session) {
            self.forget();
        }
        let failure = self.sessions.entry(session.to_owned());
        let failure = failure.or_insert_with(|| Failure::new(error.clone()));
        failure.count += count;
        failure.refusals += 1;
        failure.error = error.clone();
    }

    /// So many events that were given up wait to have a mark.
    pub(super) fn stands(&mut self, session: &str, count: u64) {
        if let Some(failure) = self.sessions.get_mut(session) {
            failure.standing += count;
        }
    }

    /// They have one, or will not get it.
    pub(super) fn settled(&mut self, session: &str, count: u64) {
        if let Some(failure) = self.sessions.get_mut(session).filter(|_| count > 0) {
            failure.standing = failure.standing.saturating_sub(count);
        }
    }

    pub(super) fn begin(&self, session: Option<&str>) -> Look {
        match session {
            Some(id) => Look::Session(id.to_owned(), self.single.get(id).copied().unwrap_or_default()),
            None => Look::Everything(Arc::clone(&self.everything)),
        }
    }

    /// What was given up since the look began, and before it as far as no look of its kind had found it. What has no mark
    /// yet is found again as often as the store refuses one.
    pub(super) fn end(&mut self, look: &Look) -> Result<(), StoreError> {
        let found = match look {
            Look::Session(id, seen) => {
                let failure = self.sessions.get(id);
                if let Some(failure) = failure {
                    self.single.insert(id.clone(), failure.found());
                }
                failure.and_then(|failure| failure.since(id, *seen)).into_iter().collect()
            }
            Look::Everything(seen) => {
                let now = self.sessions.iter().map(|(id, failure)| (id.clone(), failure.found())).collect();
                self.everything = Arc::new(now);
                let seen = |id| seen.get(id).copied().unwrap_or_default();
                self.sessions.iter().filter_map(|(id, failure)| failure.since(id, seen(id))).collect()
            }
        };
        StoreError::not_stored(found)
    }

    /// Makes room: those that were seen go first.
    fn forget(&mut self) {
        let everything = Arc::clone(&self.everything);
        self.sessions.retain(|id, failure| everything.get(id) != Some(&failure.found()));
        if self.sessions.len() >= SESSIONS {
            self.sessions.pop_first();
        }
        let sessions = &self.sessions;
        self.single.retain(|id, _| sessions.contains_key(id));
        self.everything = Arc::new(
            everything
                .iter()
                .filter(|(id, _)| sessions.contains_key(*id))
                .map(|(id, n)| (id.clone(), *n))
                .collect(),
        );
    }
}

impl Failure {
    fn new(error: StoreError) -> Self {
        Self { count: 0, refusals: 0, standing: 0, error }
    }

    fn found(&self) -> Found {
        Found { count: self.count, refusals: self.refusals }
    }

    fn since(&self, id: &str, seen: Found) -> Option<Unrecorded> {
        if self.refusals == seen.refusals {
            return None;
        }
        let count = self.count.saturating_sub(seen.count).max(self.standing);
        if count == 0 {
            return None;
        }
        Some(Unrecorded { session_id: id.to_owned(), count, error: Some(self.error.clone()) })
    }
}

#[cfg(test)]
mod tests {
    use super::{Failures, SESSIONS};
    use crate::sessions::StoreError;

    /// What is found, as `session count` pairs.
    fn found(result: Result<(), StoreError>) -> Vec<(String, u64)> {
        match result {
            Ok(()) => Vec::new(),
            Err(StoreError::NotStored { losses, .. }) => {
                losses.into_iter().map(|loss| (loss.session_id, loss.count)).collect()
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn expected(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
        pairs.iter().map(|(id, count)| ((*id).to_owned(), *count)).collect()
    }

    #[test]
    fn no_look_takes_anything_from_another() {
        let mut failures = Failures::default();
        failures.add("a", 2, &StoreError::Closed);
        let looks = [None, Some("a"), Some("b")].map(|session| failures.begin(session));
        let second = failures.begin(None);
        failures.add("a", 1, &StoreError::Closed);
        failures.add("b", 5, &StoreError::Closed);
        assert_eq!(found(failures.end(&looks[0])), expected(&[("a", 3), ("b", 5)]));
        assert_eq!(found(failures.end(&second)), expected(&[("a", 3), ("b", 5)]), "it had begun before");
        assert_eq!(found(failures.end(&looks[1])), expected(&[("a", 3)]));
        assert_eq!(found(failures.end(&looks[2])), expected(&[("b", 5)]));
        for session in [None, Some("a"), Some("b"), Some("c")] {
            let look = failures.begin(session);
            assert_eq!(found(failures.end(&look)), [], "nothing is new");
        }
        failures.add("b", 1, &StoreError::Closed);
        for session in [None, Some("b")] {
            let look = failures.begin(session);
            assert_eq!(found(failures.end(&look)), expected(&[("b", 1)]));
        }
    }

    #[test]
    fn what_has_no_mark_is_found_again_when_one_is_refused_and_counted_once() {
        let mut failures = Failures::default();
        let look = |failures: &mut Failures| {
            let look = failures.begin(None);
            found(failures.end(&look))
        };
        failures.add("a", 2, &StoreError::Closed);
        failures.stands("a", 2);
        // The mark for these and for three that did not fit.
        failures.add("a", 3, &StoreError::Closed);
        failures.stands("a", 3);
        assert_eq!(look(&mut failures), expected(&[("a", 5)]));
        failures.add("a", 0, &StoreError::Closed);
        assert_eq!(look(&mut failures), expected(&[("a", 5)]));
        failures.add("a", 1, &StoreError::Closed);
        failures.stands("a", 1);
        assert_eq!(look(&mut failures), expected(&[("a", 6)]));
        failures.settled("a", 6);
        assert_eq!(look(&mut failures), []);
        failures.add("a", 1, &StoreError::Closed);
        assert_eq!(look(&mut failures), expected(&[("a", 1)]));
    }

    #[test]
    fn memory_is_bounded_however_many_sessions_fail() {
        let mut failures = Failures::default();
        for n in 0..3 * SESSIONS {
            failures.add(&format!("s{n:05}"), 1, &StoreError::Closed);
            let look = failures.begin(Some(&format!("s{n:05}")));
            assert_eq!(found(failures.end(&look)).len(), 1);
            if n % 700 == 0 {
                let look = failures.begin(None);
                assert!(!found(failures.end(&look)).is_empty());
            }
        }
        assert!(failures.sessions.len() <= SESSIONS && failures.single.len() <= SESSIONS);
        assert!(failures.everything.len() <= SESSIONS);
    }
}
