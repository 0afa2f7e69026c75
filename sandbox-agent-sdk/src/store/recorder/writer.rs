//! The task that writes.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::{HashSet, Shared};
use crate::store::{EventQuery, NewEvent, SessionStore, StoreError};

/// How long to wait before a store that failed is tried again, at first and at most.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LAST_WAIT: Duration = Duration::from_secs(2);
/// Of how many sessions it is remembered how far they were written.
const REMEMBERED: usize = 4096;

/// Writes batch after batch, in order.
#[derive(Debug)]
pub(super) struct Writer {
    store: Arc<dyn SessionStore>,
    shared: Arc<Shared>,
    /// The last index of each session that was known before its next batch: what failed may be behind it.
    known: HashMap<String, u64>,
}

impl Writer {
    pub(super) fn new(store: Arc<dyn SessionStore>, shared: Arc<Shared>) -> Self {
        Self { store, shared, known: HashMap::new() }
    }

    pub(super) async fn run(mut self) {
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

    /// Writes a batch, or gives it up.
    async fn write(&mut self, mut batch: Vec<NewEvent>) {
        let deadline = Instant::now() + self.shared.options.patience;
        let mut wait = FIRST_WAIT;
        while !batch.is_empty() {
            let error = match self.attempt(&batch).await {
                Ok(()) => return,
                Err(error) => error,
            };
            match &error {
                // The session was deleted. The others of the batch are not to suffer.
                StoreError::NotFound { id } => {
                    let (gone, rest) =
                        batch.into_iter().partition::<Vec<_>, _>(|event| event.session_id == *id);
                    self.shared.give_up(&gone, &error);
                    batch = rest;
                    if gone.is_empty() {
                        self.shared.give_up(&batch, &error);
                        return;
                    }
                    continue;
                }
                StoreError::Invalid(_) | StoreError::Closed | StoreError::ReadOnly { .. } => {
                    self.shared.give_up(&batch, &error);
                    return;
                }
                _ if Instant::now() >= deadline => {
                    self.shared.give_up(&batch, &error);
                    return;
                }
                _ => {}
            }
            tracing::debug!(%error, "a batch of events is tried again");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LAST_WAIT);
            // A failure does not say whether the batch was written all the same.
            if let Ok(written) = self.written(&batch).await {
                batch.retain(|event| !written.contains(&event.id));
            }
        }
    }

    async fn attempt(&mut self, batch: &[NewEvent]) -> Result<(), StoreError> {
        self.learn(batch).await?;
        let indexes = self.store.append(batch.to_vec()).await?;
        for (event, index) in batch.iter().zip(indexes) {
            if let Some(known) = self.known.get_mut(&event.session_id) {
                *known = index;
            }
        }
        Ok(())
    }

    /// Learns how far sessions are written that nothing is known of yet.
    async fn learn(&mut self, batch: &[NewEvent]) -> Result<(), StoreError> {
        if self.known.len() > REMEMBERED {
            self.known.clear();
        }
        for event in batch {
            if !self.known.contains_key(&event.session_id) {
                let record = self.store.get(&event.session_id).await?;
                let record = record.ok_or_else(|| StoreError::NotFound { id: event.session_id.clone() })?;
                self.known.insert(event.session_id.clone(), record.last_index);
            }
        }
        Ok(())
    }

    /// Which of these events the store has.
    async fn written(&self, batch: &[NewEvent]) -> Result<HashSet<String>, StoreError> {
        let ids: HashSet<&str> = batch.iter().map(|event| event.id.as_str()).collect();
        let sessions: HashSet<&str> = batch.iter().map(|event| event.session_id.as_str()).collect();
        let mut written = HashSet::new();
        for session in sessions {
            let Some(known) = self.known.get(session) else { continue };
            let mut query = EventQuery::of(session).after(*known).limit(crate::MAX_PAGE);
            loop {
                let page = self.store.events(&query).await?;
                let found = page.events.into_iter().map(|event| event.id);
                written.extend(found.filter(|id| ids.contains(id.as_str())));
                match page.next {
                    Some(next) => query = query.after(next),
                    None => break,
                }
            }
        }
        Ok(written)
    }
}
