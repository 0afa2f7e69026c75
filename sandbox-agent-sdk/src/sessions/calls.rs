//! Calls of the store, each with a timeout.

use std::time::Duration;

use tokio::time::Instant;

use super::shared::Shared;
use super::store::{
    Append, Appended, EventPage, EventQuery, PAGE_BYTES, RecordQuery, SessionRecord, StoreError, StoredEvent,
    StoredEventKind,
};
use crate::Error;
use crate::client::deadline::deadline_after;

/// The first and the longest pause before a failed store call is retried.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(20);
pub(super) const LAST_WAIT: Duration = Duration::from_secs(2);
/// The minimum timeout of one attempt.
const SHORTEST: Duration = Duration::from_millis(500);

impl Shared {
    pub(super) fn deadline(&self) -> Instant {
        deadline_after(self.options.retry_for)
    }

    /// When a flush ends. A tracker that waits for the store gives up earlier.
    pub(super) fn flush_deadline(&self) -> Instant {
        deadline_after(self.options.retry_for.saturating_mul(2))
    }

    pub(super) async fn record(&self, id: &str) -> Result<SessionRecord, Error> {
        let record = self.in_time(self.store.get(id)).await?;
        Ok(record.ok_or_else(|| StoreError::NotFound { id: id.to_owned() })?)
    }

    pub(super) async fn events(&self, query: &EventQuery) -> Result<EventPage, Error> {
        Ok(self.in_time(self.store.events(query)).await?)
    }

    /// Returns the newest event of these kinds.
    pub(super) async fn newest<const N: usize>(
        &self,
        id: &str,
        kinds: [StoredEventKind; N],
    ) -> Result<Option<StoredEvent>, Error> {
        let query = EventQuery::of(id).newest_first().kinds(kinds).limit(1);
        Ok(self.events(&query).await?.events.pop())
    }

    /// Visits the events of a query, page by page, until `visit` returns something.
    pub(super) async fn find_event<T>(
        &self,
        query: EventQuery,
        mut visit: impl FnMut(StoredEvent) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut query = query.max_bytes(PAGE_BYTES);
        loop {
            let page = self.events(&query).await?;
            let found = page.events.into_iter().find_map(&mut visit);
            match page.next.filter(|_| found.is_none()) {
                Some(next) => query = query.after(next),
                None => return Ok(found),
            }
        }
    }

    /// Visits the records of a query, page by page, until `visit` returns something.
    pub(super) async fn find_record<T>(
        &self,
        mut query: RecordQuery,
        mut visit: impl FnMut(SessionRecord) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        loop {
            let page = self.in_time(self.store.list(&query)).await?;
            let found = page.records.into_iter().find_map(&mut visit);
            match page.next.filter(|_| found.is_none()) {
                Some(next) => query = query.after(next),
                None => return Ok(found),
            }
        }
    }

    /// Waits for a change of a session. If the store does not say whether it was made, the record does.
    pub(super) async fn confirmed(
        &self,
        id: &str,
        change: impl Future<Output = Result<SessionRecord, StoreError>>,
        is_done: impl Fn(&SessionRecord) -> bool,
    ) -> Result<SessionRecord, StoreError> {
        match self.in_time(change).await {
            Err(error @ StoreError::Unavailable(_)) => {
                let found = self.in_time(self.store.get(id)).await.ok().flatten();
                found.filter(is_done).ok_or(error)
            }
            changed => changed,
        }
    }

    /// Appends once.
    pub(super) async fn append(&self, append: Append) -> Result<Appended, StoreError> {
        self.in_time(self.store.append(append)).await
    }

    /// Waits for the store, within a timeout.
    pub(super) async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        StoreError::check_runtime()?;
        let result = tokio::time::timeout(self.options.retry_for, call).await;
        result.unwrap_or_else(|_| Err(StoreError::timed_out("the store did not respond before the timeout")))
    }

    /// Appends. A store that fails is tried again until the deadline: an event that is stored already is not stored twice.
    pub(super) async fn append_until(&self, append: Append, deadline: Instant) -> Result<(), StoreError> {
        StoreError::check_runtime()?;
        let mut wait = FIRST_WAIT;
        loop {
            let limit = deadline.max(Instant::now() + SHORTEST);
            let appended = tokio::time::timeout_at(limit, self.store.append(append.clone())).await;
            let error = match appended {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => StoreError::timed_out("append timed out"),
            };
            if !error.may_be_done() || Instant::now() >= deadline {
                return Err(error);
            }
            let shown = crate::convert::text::OneLine(&error);
            tracing::debug!(error = %shown, session = append.session_id, "an append is tried again");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LAST_WAIT);
        }
    }
}
