//! Where one program left a session, for another one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::handle::Sessions;
use super::session::StoredSession;
use crate::{Error, ServerKind};

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
    /// The index of the last event that was stored: the rest is behind it.
    pub index: u64,
    /// The last event of the server that was read, where another connection can go on from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_position: Option<String>,
}

impl Attachment {
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
    /// # Errors
    /// [`Error::Store`] if what happened so far cannot be stored; nothing has changed then.
    pub async fn detach(self) -> Result<Attachment, Error> {
        let ledger = &self.sessions.ledger;
        let binding = ledger.binding(self.id());
        let stream_position = match self.sessions.client().inner().present() {
            // What was given out before is stored from here, and what comes behind it from there.
            Some(connection) => {
                let (leaving, id) = (Arc::clone(ledger), self.id().to_owned());
                connection.between_events(move || leaving.unbind(&id)).await
            }
            None => None,
        };
        ledger.unbind(self.id());
        if let Err(error) = ledger.flush_session(self.id()).await {
            if let Some(binding) = binding {
                ledger.bind(self.id(), &binding.agent_session, binding.replay);
            }
            return Err(error);
        }
        let record = self.record().await?;
        let agent_session_id = record.agent_session_id.ok_or(Error::NotConnected)?;
        Ok(Attachment {
            session_id: record.id,
            agent: record.agent,
            agent_session_id,
            index: record.last_index,
            stream_position,
        })
    }
}

impl Sessions {
    /// Takes what comes for the session that this client attaches to as soon as it comes.
    pub(super) fn expect_attached(&self) {
        let Some(attachment) = &self.client().inner().options.attachment else { return };
        let attached = tokio::runtime::Handle::try_current().is_ok() && self.ledger.expect_once();
        if attached && attachment.stream_position.is_some() {
            self.ledger.bind(&attachment.session_id, &attachment.agent_session_id, false);
        }
    }

    /// The session that this client attaches to, by [`ClientOptions::attach`](crate::ClientOptions::attach). What
    /// happened since it was left is [stored](StoredSession::stored_events) behind [`Attachment::index`], and goes on to
    /// be.
    ///
    /// # Errors
    /// [`Error::Config`] if the options name no attachment, [`Error::Store`] if the store does not have the session.
    pub async fn attached(&self) -> Result<StoredSession, Error> {
        let Some(attachment) = &self.client().inner().options.attachment else {
            return Err(Error::config("the client was not told to attach to a session"));
        };
        let record = self.ledger.record(&attachment.session_id).await?;
        self.ledger.recorder().know(&record);
        Ok(self.session(record.id))
    }
}
