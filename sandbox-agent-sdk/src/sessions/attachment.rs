//! Where one program left a session, for another one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::binding::Owed;
use super::handle::Sessions;
use super::ledger::TakenUp;
use super::session::StoredSession;
use crate::{Error, ServerKind, SessionRecord, StoreError};

/// Where a program left a session. It can be written down and given to another program that uses the same store and the
/// same server, which gets exactly the rest: see [`ClientOptions::attach`](crate::ClientOptions::attach).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Attachment {
    /// The session.
    pub session_id: String,
    /// The agent behind it.
    pub agent: String,
    /// What the agent calls it.
    pub agent_session_id: String,
    /// How often it had been taken up when it was left. Whoever attaches writes what happens in it, until it is taken up
    /// once more.
    #[serde(default)]
    pub epoch: u64,
    /// The index of the last event that was stored: the rest is behind it.
    pub index: u64,
    /// Whether the agent has yet to be told what went before.
    #[serde(default)]
    pub replay_pending: bool,
    /// The last event of the server that was read, where another connection can go on from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_position: Option<String>,
}

impl Attachment {
    fn of(record: SessionRecord, stream_position: Option<String>) -> Result<Self, Error> {
        Ok(Self {
            session_id: record.id,
            agent: record.agent,
            agent_session_id: record.agent_session_id.ok_or(Error::NotConnected)?,
            epoch: record.epoch,
            index: record.last_index,
            replay_pending: record.replay_pending,
            stream_position,
        })
    }

    /// Where a connection to this kind of server goes on.
    pub(crate) fn stream(&self, kind: ServerKind) -> Option<&str> {
        self.stream_position.as_deref().filter(|_| kind == ServerKind::Shared)
    }
}

impl StoredSession {
    /// Leaves the session to another program. The agent goes on with it, and nothing of it is stored from here any more.
    ///
    /// Where the server numbers the events of all its clients together (a shared endpoint), what happens until the other
    /// program attaches is fetched from the server, as far as it still has it. Drop the client then and do not
    /// [disconnect](crate::SandboxAgentClient::disconnect) it on servers that end the agent with the connection.
    ///
    /// A turn that is running goes on. Its end is stored from here, while this client is there: nobody else knows it.
    ///
    /// # Errors
    /// [`Error::Store`] if what happened so far cannot be stored, or another program takes the session up at this moment;
    /// nothing has changed then. If another one has it already, the attachment has no place in the stream.
    pub async fn detach(self) -> Result<Attachment, Error> {
        let alone = self.sessions.ledger.gate(self.id()).lock_owned().await;
        let (session, sessions) = (self.clone(), self.sessions.clone());
        let (left, _alone) = sessions.see_through(alone, async move { session.leave().await }).await?;
        left
    }

    async fn leave(&self) -> Result<Attachment, Error> {
        let ledger = &self.sessions.ledger;
        let record = self.record().await?;
        let bound = ledger.binding(self.id()).filter(|binding| binding.epoch == record.epoch);
        let Some(binding) = bound else {
            // It is somebody else's, or nobody's: there is nothing to leave, nor a place where this program was.
            return Attachment::of(record, None);
        };
        let hold = ledger.hold_later(&binding.agent_session);
        let (leaving, agent_session) = (Arc::clone(ledger), binding.agent_session.clone());
        let hold_back = move || leaving.hold_back(&agent_session);
        let stream_position = match self.sessions.client().inner().present() {
            // What was given out before is stored from here, and what comes behind it from there.
            Some(connection) => connection.between_events(hold_back).await,
            None => None,
        };
        ledger.flush_session(self.id()).await?;
        let left = ledger.change(self.id(), |record| {
            if record.epoch != binding.epoch {
                return Err(StoreError::TakenOver { id: record.id.clone(), epoch: record.epoch }.into());
            }
            record.epoch += 1;
            record.taken_at = None;
            Ok(())
        });
        let left = left.await?;
        // What was held back is for the other program.
        ledger.unbind(self.id());
        drop(hold);
        Attachment::of(left, stream_position)
    }
}

impl Sessions {
    /// Takes what comes for the session that this client attaches to as soon as it comes.
    pub(super) fn expect_attached(&self) {
        let Some(attachment) = &self.client().inner().options.attachment else { return };
        let attached = tokio::runtime::Handle::try_current().is_ok() && self.ledger.expect_once();
        if attached && attachment.stream_position.is_some() {
            let owed = if attachment.replay_pending { Owed::History } else { Owed::Nothing };
            let taken = TakenUp {
                id: &attachment.session_id,
                agent_session: &attachment.agent_session_id,
                epoch: attachment.epoch,
                since: attachment.index,
                owed,
                live: true,
            };
            self.ledger.bind_new(&taken, None);
        }
    }

    /// The session that this client attaches to, by [`ClientOptions::attach`](crate::ClientOptions::attach). What
    /// happened since it was left is [stored](StoredSession::stored_events) behind [`Attachment::index`], and goes on to
    /// be. If yet another program has taken the session up since, this one lets go of it
    /// ([`Event::TakenOver`](crate::Event::TakenOver)), and the next prompt takes it up again.
    ///
    /// # Errors
    /// [`Error::Config`] if the options name no attachment, [`Error::Store`] if the store does not have the session.
    pub async fn attached(&self) -> Result<StoredSession, Error> {
        let Some(attachment) = &self.client().inner().options.attachment else {
            return Err(Error::config("the client was not told to attach to a session"));
        };
        let record = self.ledger.record(&attachment.session_id).await?;
        self.ledger.recorder().know(&record);
        // Whether it is still to be had from here shows now rather than later.
        let _ = self.ledger.current(&record);
        Ok(self.session(record.id))
    }
}
