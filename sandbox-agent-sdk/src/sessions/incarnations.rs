//! Determines which incarnation of the server a stream belongs to.

use super::shared::{Shared, lock};
use super::store::{ScannedTo, StoreError};

/// A stream of which the incarnation was determined.
#[derive(Debug, Clone)]
pub(super) struct KnownStream {
    /// The number of the stream, as counted by the feed.
    number: u64,
    incarnation: u64,
    endpoint: String,
    /// Whether it is proven, or was raised for this stream.
    is_fact: bool,
}

impl Shared {
    /// How far this process has read the stream, if its incarnation is known.
    pub(super) fn scanned_to(&self) -> Option<ScannedTo> {
        let (stream, at) = self.feed.scanned_to()?;
        // After a restart a stream has no incarnation until a session is acquired on it.
        let known = lock(&self.stream).clone().filter(|known| known.number == stream)?;
        let position = self.position(known.incarnation, at);
        Some(ScannedTo { owner: self.owner.clone(), endpoint: known.endpoint, position })
    }

    /// The incarnation of the server on this stream, for a session that has nothing stored of it: what is known, or what
    /// the store has. No other session may rely on the latter, which may be that of an earlier run of the server.
    pub(super) async fn assumed_incarnation(&self, stream: u64, endpoint: &str) -> Result<u64, StoreError> {
        let _one_at_a_time = self.raising.lock().await;
        if let Some(known) = self.known(stream, endpoint) {
            return Ok(known.incarnation);
        }
        // No other process reads the stream of an unshared endpoint.
        if self.path_of(endpoint).is_some() {
            return self.raise(stream, endpoint).await;
        }
        let assumed = self.in_time(self.store.incarnation(&self.server)).await?;
        self.know(stream, assumed, endpoint, false);
        Ok(assumed)
    }

    /// Sets the incarnation of the server on this stream, after an event of that incarnation was found on it.
    pub(super) async fn proven_incarnation(&self, stream: u64, endpoint: &str, proven: u64) -> u64 {
        let _one_at_a_time = self.raising.lock().await;
        // Several processes may have numbered the same stream: the highest number wins, because positions never go back.
        let number = self.known(stream, endpoint).map_or(proven, |known| known.incarnation.max(proven));
        self.know(stream, number, endpoint, true);
        number
    }

    /// An incarnation of the server on this stream that is none of the earlier ones of a session, of which `last` is the
    /// last and highest: several processes may number a stream differently.
    pub(super) async fn other_incarnation(
        &self,
        stream: u64,
        endpoint: &str,
        last: u64,
    ) -> Result<u64, StoreError> {
        let _one_at_a_time = self.raising.lock().await;
        let known = self.known(stream, endpoint).filter(|known| known.is_fact && known.incarnation > last);
        let number = match known {
            Some(known) => known.incarnation,
            None => self.raise(stream, endpoint).await?,
        };
        // A session that was moved here may have a higher number from its previous server.
        Ok(number.max(last + 1))
    }

    fn known(&self, stream: u64, endpoint: &str) -> Option<KnownStream> {
        lock(&self.stream).clone().filter(|known| known.number == stream && known.endpoint == endpoint)
    }

    async fn raise(&self, stream: u64, endpoint: &str) -> Result<u64, StoreError> {
        let before = self.in_time(self.store.incarnation(&self.server)).await?;
        let raised = self.in_time(self.store.raise_incarnation(&self.server, before)).await?;
        self.know(stream, raised, endpoint, true);
        Ok(raised)
    }

    fn know(&self, number: u64, incarnation: u64, endpoint: &str, is_fact: bool) {
        let endpoint = endpoint.to_owned();
        *lock(&self.stream) = Some(KnownStream { number, incarnation, endpoint, is_fact });
    }
}
