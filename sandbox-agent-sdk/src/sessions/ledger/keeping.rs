//! What the ledger asks of the store, and how long it waits.

use super::Ledger;
use crate::Error;
use crate::sessions::change::change;
use crate::sessions::{EventPage, EventQuery, SessionRecord, StoreError};

impl Ledger {
    /// Waits until everything that happened is stored.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        let recorded = match self.recorder.get() {
            Some(recorder) => recorder.flush().await,
            None => Ok(()),
        };
        let amended = match self.amender.get() {
            Some(amender) => amender.flush().await,
            None => Ok(()),
        };
        Ok(recorded.and(amended)?)
    }

    /// Waits until everything that happened is stored, and tells what became of one session.
    pub(in crate::sessions) async fn flush_session(&self, id: &str) -> Result<(), Error> {
        match self.recorder.get() {
            Some(recorder) => Ok(recorder.flush_session(id).await?),
            None => Ok(()),
        }
    }

    /// Waits until everything that happened is stored, or was given up and told of. It is bounded: a store that stands
    /// still is no reason to wait for ever.
    pub(in crate::sessions) async fn settle_in_time(&self) -> Result<(), Error> {
        let Some(recorder) = self.recorder.get() else { return Ok(()) };
        match tokio::time::timeout(self.options.patience, recorder.settle()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(StoreError::late("events still wait to be stored").into()),
        }
    }

    /// Waits until records are up to date, or were given up. This is bounded too.
    pub(in crate::sessions) async fn amend_in_time(&self) -> Result<(), Error> {
        let Some(amender) = self.amender.get() else { return Ok(()) };
        Ok(self.in_time(amender.settle()).await?)
    }

    /// Deletes a session, and tells whether there was one. What waits to be stored of it goes with it.
    pub(in crate::sessions) async fn delete(
        &self,
        id: &str,
        deleting: impl Future<Output = Result<bool, StoreError>>,
    ) -> Result<bool, StoreError> {
        let told = |is_deleted| {
            if let Some(recorder) = self.recorder.get() {
                recorder.delete(id, is_deleted);
            }
        };
        told(true);
        let deleted = deleting.await;
        match deleted {
            Ok(true) => self.forget(id),
            _ => told(false),
        }
        deleted
    }

    /// Changes a record, again and again until nobody else was quicker.
    pub(in crate::sessions) async fn change(
        &self,
        id: &str,
        alter: impl FnMut(&mut SessionRecord) -> Result<(), Error>,
    ) -> Result<SessionRecord, Error> {
        match tokio::time::timeout(self.options.patience, change(&*self.store, id, alter)).await {
            Ok(changed) => changed,
            Err(_) => Err(StoreError::late("a session could not be changed").into()),
        }
    }

    /// Takes a session up, or leaves it, and changes its record besides. If nobody says in time whether it was done, that is
    /// looked up.
    pub(in crate::sessions) async fn raise(
        &self,
        id: &str,
        mut alter: impl FnMut(&mut SessionRecord) -> Result<(), Error>,
    ) -> Result<SessionRecord, Error> {
        let name = self.own_name();
        let raised = self.change(id, |record| {
            alter(record)?;
            let too_often = || StoreError::Invalid("a session was taken up too often".to_owned());
            record.epoch = record.epoch.checked_add(1).ok_or_else(too_often)?;
            record.taken_by = Some(name.clone());
            Ok(())
        });
        match raised.await {
            Err(error @ Error::Store(StoreError::Unavailable(_))) => match self.record(id).await {
                Ok(record) if record.taken_by.as_ref() == Some(&name) => Ok(record),
                _ => Err(error),
            },
            raised => raised,
        }
    }

    pub(in crate::sessions) async fn record(&self, id: &str) -> Result<SessionRecord, Error> {
        let record = self.in_time(self.store.get(id)).await?;
        Ok(record.ok_or_else(|| StoreError::NotFound { id: id.to_owned() })?)
    }

    /// A page of what happened in a session.
    pub(in crate::sessions) async fn events(&self, query: &EventQuery) -> Result<EventPage, Error> {
        Ok(self.in_time(self.store.events(query)).await?)
    }

    /// Waits for the store, but not for ever.
    pub(in crate::sessions) async fn in_time<T>(
        &self,
        asking: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = tokio::time::timeout(self.options.patience, asking).await;
        answer.unwrap_or_else(|_| Err(StoreError::late("the store does not answer")))
    }
}
