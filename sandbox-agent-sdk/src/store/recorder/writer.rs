//! The task that writes.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::Shared;
use super::claims::place_of;
use super::options::deadline_after;
use super::queue::{Entry, SessionKey};
use crate::store::{EventQuery, SessionStore, StoreError};

/// How long to wait before a store that failed is tried again, at first and at most.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LAST_WAIT: Duration = Duration::from_secs(2);
/// How long a store is given at least to take what it is given.
const SHORTEST: Duration = Duration::from_millis(100);
/// How often an event is written once more that the store refuses although it takes others.
const TRIES: u32 = 3;

/// Writes batch after batch, in order.
#[derive(Debug)]
pub(super) struct Writer {
    store: Arc<dyn SessionStore>,
    shared: Arc<Shared>,
}

/// What a failure to write several events says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The store may take them later.
    Passing,
    /// The store takes nothing any more.
    Over,
    /// It is about their session, all of it.
    Session,
    /// It may be about one of them.
    Event,
    /// It may be about one of them, or the store may take them later.
    Unclear,
}

impl Verdict {
    fn of(error: &StoreError) -> Self {
        match error {
            // Whoever was to give way could not find out how far.
            StoreError::TakenOver { .. } => Self::Passing,
            StoreError::Unavailable(_) | StoreError::Conflict { .. } => Self::Passing,
            StoreError::Closed => Self::Over,
            StoreError::NotFound { .. } | StoreError::ReadOnly { .. } | StoreError::Unreadable { .. } => {
                Self::Session
            }
            StoreError::Database(_) => Self::Unclear,
            _ => Self::Event,
        }
    }
}

impl Writer {
    pub(super) fn new(store: Arc<dyn SessionStore>, shared: Arc<Shared>) -> Self {
        Self { store, shared }
    }

    pub(super) async fn run(self) {
        loop {
            let batch = self.shared.take();
            if batch.is_empty() {
                self.shared.filled.notified().await;
                continue;
            }
            let count = batch.len();
            self.write(batch).await;
            self.shared.settle(count);
        }
    }

    /// Writes a batch, or gives up what cannot be written of it.
    ///
    /// A failure does not say whether the batch was written all the same. It need not: a store does not write an event
    /// again that it has.
    async fn write(&self, batch: Vec<Entry>) {
        let deadline = deadline_after(self.shared.patience);
        let mut wait = FIRST_WAIT;
        let mut tries = 0;
        let mut works = false;
        // The events of one session stay in their order; a piece is split until it is known what is wrong with it.
        let mut pieces = VecDeque::from([batch]);
        while let Some(piece) = pieces.pop_front() {
            if piece.is_empty() {
                continue;
            }
            let events = piece.iter().map(|entry| entry.event.clone()).collect();
            let error = match in_time(deadline, self.store.append(events)).await {
                Ok(indexes) => {
                    self.shared.lock().claims.wrote(&piece, &indexes);
                    (works, tries, wait) = (true, 0, FIRST_WAIT);
                    self.shared.written(&piece);
                    continue;
                }
                Err(error) => error,
            };
            let (piece, error) = match &error {
                StoreError::TakenOver { id, .. } if Instant::now() < deadline => {
                    match self.give_way(piece, id, deadline).await {
                        Ok(left) => {
                            pieces.push_front(left);
                            continue;
                        }
                        // Nobody will ever find out about this session, which is no reason to keep the others waiting.
                        Err((piece, why)) if Verdict::of(&why) == Verdict::Session => (piece, why),
                        Err((piece, _)) => (piece, error),
                    }
                }
                _ => (piece, error),
            };
            let verdict = Verdict::of(&error);
            let is_worth_it = match verdict {
                Verdict::Passing => true,
                // An event that the store refuses while it takes others is itself at fault.
                Verdict::Unclear => piece.len() == 1 && (!works || tries < TRIES),
                _ => false,
            };
            if is_worth_it && Instant::now() < deadline {
                tracing::debug!(%error, "events are written once more");
                tokio::time::sleep(wait).await;
                (tries, wait) = (tries + 1, (wait * 2).min(LAST_WAIT));
                pieces.push_front(piece);
                continue;
            }
            tries = 0;
            match split(piece, verdict) {
                Ok(parts) => parts.into_iter().rev().for_each(|part| pieces.push_front(part)),
                Err(piece) => self.shared.give_up(&piece, &error),
            }
        }
    }
}

impl Writer {
    /// Somebody else has taken a session up, and what is left to be written of it is not all this program's any more.
    /// Gives what is; all of it, if that cannot be found out, and why.
    async fn give_way(
        &self,
        piece: Vec<Entry>,
        id: &str,
        deadline: Instant,
    ) -> Result<Vec<Entry>, (Vec<Entry>, StoreError)> {
        let record = match in_time(deadline, self.store.get(id)).await {
            Ok(Some(record)) => record,
            Ok(None) => return Err((piece, StoreError::NotFound { id: id.to_owned() })),
            Err(error) => return Err((piece, error)),
        };
        let since = self.shared.lock().claims.since(id);
        let stored = match in_time(deadline, self.stored_places(id, since)).await {
            Ok(stored) => stored,
            Err(error) => return Err((piece, error)),
        };
        let until = (self.shared.listeners.taken)(&record);
        let mut queue = self.shared.lock();
        let (left, theirs) = queue.claims.give_way(piece, &record, &stored, until);
        // Whoever has the session stores them, or has.
        queue.written(&theirs);
        Ok(left)
    }

    /// The places of what was stored in a session behind this index.
    async fn stored_places(&self, session: &str, since: u64) -> Result<HashSet<String>, StoreError> {
        let mut query = EventQuery::of(session).after(since).limit(crate::sessions::MAX_PAGE);
        let mut places = HashSet::new();
        loop {
            let page = self.store.events(&query).await?;
            places.extend(page.events.iter().map(|event| place_of(&event.id).to_owned()));
            match page.next {
                Some(next) => query = query.after(next),
                None => return Ok(places),
            }
        }
    }
}

/// What the store says, if it does in time. One that stands still may do what it was asked for later all the same.
async fn in_time<T>(
    deadline: Instant,
    asking: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answer = tokio::time::timeout_at(deadline.max(Instant::now() + SHORTEST), asking).await;
    answer.unwrap_or_else(|_| Err(StoreError::late("the store stands still")))
}

/// Parts of a piece of which some may be written although the whole could not; the piece, if there is no use in it.
fn split(mut piece: Vec<Entry>, verdict: Verdict) -> Result<Vec<Vec<Entry>>, Vec<Entry>> {
    if piece.len() == 1 || matches!(verdict, Verdict::Passing | Verdict::Over) {
        return Err(piece);
    }
    let first = piece[0].key();
    if piece.iter().any(|entry| entry.key() != first) {
        let mut sessions: BTreeMap<SessionKey, Vec<Entry>> = BTreeMap::new();
        piece.into_iter().for_each(|entry| sessions.entry(entry.key()).or_default().push(entry));
        return Ok(sessions.into_values().collect());
    }
    if verdict == Verdict::Session {
        return Err(piece);
    }
    let behind = piece.split_off(piece.len() / 2);
    Ok(vec![piece, behind])
}
