//! Where one program left a session, for another one.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::binding::{Owed, TakenUp};
use super::handle::Sessions;
use super::ledger::Hold;
use super::session::StoredSession;
use super::taking_over::restored_payload;
use crate::session::Timestamp;
use crate::sessions::{SessionRecord, StoreError, StoredEventKind};
use crate::{Error, Event, ServerKind};

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
    /// When it was made: a session of the same id that was made at another moment is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// How often it had been taken up when it was left. The first who attaches takes it up once more, and nobody after it.
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
            created_at: Some(record.created_at),
            epoch: record.epoch,
            index: record.last_index,
            replay_pending: record.replay_pending,
            stream_position,
        })
    }

    /// Whether this is the session that was left there.
    fn check_identity(&self, record: &SessionRecord) -> Result<(), StoreError> {
        match self.created_at {
            Some(created_at) if created_at != record.created_at => {
                Err(StoreError::NotFound { id: record.id.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Whether nobody has taken the session up since.
    fn check(&self, record: &SessionRecord) -> Result<(), StoreError> {
        self.check_identity(record)?;
        if record.epoch != self.epoch {
            return Err(StoreError::TakenOver { id: record.id.clone(), epoch: record.epoch });
        }
        Ok(())
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
    /// this program goes on to store what happens then. If another one has it already, the attachment has no place in the stream.
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
        let place = Arc::new(Mutex::new(None));
        let left_at = Arc::clone(&place);
        let hold_back = move || *lock(&left_at) = Some(leaving.hold_back(&agent_session));
        let stream_position = match self.sessions.client().inner().present() {
            // What was given out before is stored from here, and what comes behind it from there.
            Some(connection) => connection.between_events(hold_back).await,
            None => None,
        };
        let place = lock(&place).take().filter(|_| stream_position.is_some());
        let payload = place.as_ref().map_or_else(|| json!({}), |place| json!({ "at": place }));
        ledger.recorder().record(self.id(), StoredEventKind::Detached, payload);
        ledger.flush_session(self.id()).await?;
        let left = ledger.raise(self.id(), |record| {
            if record.epoch != binding.epoch {
                return Err(StoreError::TakenOver { id: record.id.clone(), epoch: record.epoch }.into());
            }
            record.taken_at.clone_from(&place);
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
    /// Takes what comes for the session that this client attaches to as soon as it comes, and takes the session up.
    pub(super) fn expect_attached(&self) {
        let Some(attachment) = &self.client().inner().options.attachment else { return };
        if tokio::runtime::Handle::try_current().is_err() || !self.ledger.expect_once() {
            return;
        }
        if attachment.stream_position.is_none() {
            return;
        }
        let (hold, _) = self.ledger.hold(&attachment.agent_session_id);
        // Whoever asks for the session waits until it is known whose it is. Nobody had a chance to ask before.
        let Ok(alone) = self.ledger.gate(&attachment.session_id).try_lock_owned() else { return };
        let (sessions, attachment) = (self.clone(), attachment.clone());
        self.client().inner().spawn(async move {
            sessions.attach(&attachment, hold).await;
            drop(alone);
        });
    }

    /// Takes up the session that was left there, unless somebody has since.
    async fn attach(&self, attachment: &Attachment, hold: Hold) {
        let ledger = &self.ledger;
        let id = &attachment.session_id;
        let asked = ledger.now();
        let taken = ledger.raise(id, |record| Ok(attachment.check(record)?));
        let (epoch, made_at, restored) = match taken.await {
            Ok(record) => {
                ledger.recorder().know(&record);
                let at = record.taken_at.as_deref();
                let restored = restored_payload("attach", &attachment.agent_session_id, at);
                (record.epoch, record.created_at, Some(restored))
            }
            Err(Error::Store(StoreError::TakenOver { .. })) => {
                return ledger.tell(&Event::TakenOver { session_id: id.clone() });
            }
            // Whoever asks for it is told.
            Err(Error::Store(StoreError::NotFound { .. })) => return,
            Err(error) => {
                // What comes is tried to be stored all the same, and what cannot be is told of.
                tracing::warn!(%error, session = id, "a session cannot be taken up");
                (attachment.epoch, attachment.created_at.unwrap_or(Timestamp::from_millis(0)), None)
            }
        };
        let taken = TakenUp {
            id,
            agent_session: &attachment.agent_session_id,
            made_at,
            epoch,
            since: attachment.index,
            owed: if attachment.replay_pending { Owed::History } else { Owed::Nothing },
            live: true,
            asked,
            stored: None,
            restored,
        };
        ledger.bind_held(&taken, HashSet::new());
        drop(hold);
    }

    /// The session that this client attaches to, by [`ClientOptions::attach`](crate::ClientOptions::attach). What
    /// happened since it was left is [stored](StoredSession::stored_events) behind [`Attachment::index`], and goes on to
    /// be. If another program has taken the session up since, with the same attachment or without, this one leaves it to
    /// that ([`Event::TakenOver`](crate::Event::TakenOver)), and the next prompt takes it up again.
    ///
    /// # Errors
    /// [`Error::Config`] if the options name no attachment, [`Error::Store`] if the store does not have the session.
    pub async fn attached(&self) -> Result<StoredSession, Error> {
        let Some(attachment) = &self.client().inner().options.attachment else {
            return Err(Error::config("the client was not told to attach to a session"));
        };
        let _alone = self.ledger.gate(&attachment.session_id).lock_owned().await;
        let record = self.ledger.record(&attachment.session_id).await?;
        attachment.check_identity(&record)?;
        self.ledger.recorder().know(&record);
        // Whether it is still to be had from here shows now rather than later.
        let _ = self.ledger.current(&record);
        Ok(self.session(record.id))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
