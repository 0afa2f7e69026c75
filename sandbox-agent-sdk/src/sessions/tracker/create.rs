//! Creating a session.

use std::time::SystemTime;

use super::acquire::can_reopen;
use super::reopen::describe;
use super::{Owned, Tracker};
use crate::sessions::store::{
    AgentSession, Append, Change, RecordPatch, SessionRecord, StoreError, StreamPosition,
};
use crate::{Error, NewSession, ServerKind};

impl Tracker {
    /// Creates the session: the record first, so that nothing happens in a session that is not stored.
    pub(in crate::sessions) async fn create(&mut self, new: NewSession) -> Result<(), Error> {
        let client = self.client.upgrade()?;
        let shared = self.shared.clone();
        if shared.in_time(shared.store.get(&self.id)).await?.is_some() {
            return Err(StoreError::Exists { id: self.id.clone() }.into());
        }
        let agent = new.agent_wanted().or(client.inner().options.agent.as_deref()).unwrap_or_default();
        let can = shared.connected(&client, agent).await?;
        let agent = new.agent_wanted().unwrap_or(&can.agent).to_owned();
        let is_numbered = can.server != ServerKind::ConnectionId;
        let endpoint = shared.endpoint(&client).await?;
        let _creating = shared.feed.creating();
        let moment = shared.feed.now();
        let incarnation = match is_numbered {
            true => shared.assumed_incarnation(moment.stream, &endpoint).await?,
            false => 1,
        };
        let position = shared.feed.position();
        let mut record =
            SessionRecord::new(&self.id, &agent, SystemTime::now().into()).owned_by(&shared.owner);
        record.endpoint = Some(endpoint.clone());
        record.position = is_numbered.then(|| match position {
            Some(position) => shared.position(incarnation, position),
            // Nothing was read yet.
            None => StreamPosition::beginning(incarnation),
        });
        record.details.supports_resume = can_reopen(&can, &agent);
        record.details.title = new.given().title().map(str::to_owned);
        record.details.init = new.to_stored();
        let is_done = |record: &SessionRecord| record.owner.as_ref() == Some(&shared.owner);
        let record = shared.confirmed(&self.id, shared.store.create(record, Vec::new()), is_done).await?;
        let session = match client.new_session(new.clone()).await {
            Ok(session) => session,
            Err(error) => {
                // The session is discarded. The caller receives the first error.
                let _ = shared.in_time(shared.store.delete_unchanged(&record)).await;
                return Err(error);
            }
        };
        let bound = AgentSession { id: session.id().to_owned(), incarnation };
        let mut patch = RecordPatch { agent_session: Change::Set(bound), ..RecordPatch::default() };
        describe(session.raw(), &mut patch);
        let fence = record.fence();
        let append = Append::to(&self.id).fence(fence).patch(patch);
        if let Err(error) = shared.append(append).await {
            // No session refers to it, so it should not keep running.
            let _ = client.terminate_session(session.id()).await;
            return Err(error.into());
        }
        let is_live = shared.feed.route(session.id(), &self.inbox, moment);
        shared.feed.claim_early(session.id(), &self.inbox);
        shared.move_followers(&self.id, None, session.id());
        let mut owned = Owned::new(&record, endpoint, is_numbered);
        (owned.agent_session, owned.is_live) = (Some(session.id().to_owned()), is_live);
        owned.is_followed = true;
        owned.incarnation = incarnation;
        self.owned = Some(owned);
        self.is_active_now();
        // Events that arrived during the creation are handled before the session is returned.
        self.catch_up().await;
        if let Some(owned) = &mut self.owned {
            owned.is_live &= session.termination().is_none();
        }
        Ok(())
    }
}
