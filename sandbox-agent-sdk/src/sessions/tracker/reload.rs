//! Loading a session again.

use serde_json::json;

use super::acquire::ways;
use super::{Tracker, Wish};
use crate::sessions::entry::Entry;
use crate::sessions::store::{Append, StoredEventKind};
use crate::{Error, NewSession, OpenSession, Session};

impl Tracker {
    /// Has the agent load its session again. The history that it replays is not stored.
    pub(in crate::sessions) async fn reload(&mut self, wish: Wish) -> Result<Session, Error> {
        let new = wish.new.clone();
        self.acquire_if_needed(wish).await?;
        self.catch_up().await;
        let client = self.client.upgrade()?;
        let record = self.shared.record(&self.id).await?;
        let Some(owned) = &self.owned else { return Err(Error::NotConnected) };
        if owned.running().is_some() {
            return Err(Error::TurnInProgress { session_id: self.id.clone() });
        }
        if client.capabilities().is_some_and(|can| !ways(&can, &record.agent).load) {
            return Err(Error::Unsupported { method: "session/load".to_owned() });
        }
        let agent_session =
            owned.agent_session.clone().filter(|_| owned.is_live).ok_or(Error::NotConnected)?;
        let (fence, incarnation, is_numbered) = (owned.fence, owned.incarnation, owned.is_numbered);
        let append = |kind, payload| {
            let event = Entry::own(kind, payload).into_event(incarnation, None);
            Append::to(&self.id).fence(fence).events([event])
        };
        if is_numbered {
            // If this process is killed while the agent loads, the next owner does not store the history as new events.
            self.shared.append(append(StoredEventKind::Restoring, json!({}))).await?;
        }
        let new = new.as_deref().cloned().unwrap_or_else(|| NewSession::from_stored(&record.details.init));
        let loaded = client.load_session(&agent_session, OpenSession::like(new)).await;
        client.inner().connection().await?.barrier().await;
        // The replayed history precedes this position.
        let reached = self.shared.feed.position().filter(|_| is_numbered);
        let by = if loaded.is_ok() { "load" } else { "attach" };
        let payload = json!({"by": by, "agentSessionId": agent_session});
        let mut append = append(StoredEventKind::Restored, payload);
        append.position = reached.map(|reached| self.shared.position(incarnation, reached));
        self.catch_up().await;
        self.shared.append(append).await?;
        loaded
    }
}
