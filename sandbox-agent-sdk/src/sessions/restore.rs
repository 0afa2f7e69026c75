//! Taking a session up again.

use std::sync::Arc;

use serde_json::json;

use super::handle::Sessions;
use super::ledger::is_unknown_session;
use super::replay::{history, tells};
use crate::{
    Capabilities, ConnectionState, Error, EventQuery, NewSession, ServerKind, SessionRecord, StoredEventKind,
};

/// How a session was taken up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Restored {
    /// The agent resumed it.
    Resumed,
    /// The agent loaded it. The history that came with it is no news and is not stored again.
    Loaded,
    /// A new session of the agent takes its place, which is told the recent history with the next prompt.
    Replayed,
}

impl Restored {
    fn as_str(self) -> &'static str {
        match self {
            Self::Resumed => "resume",
            Self::Loaded => "load",
            Self::Replayed => "replay",
        }
    }
}

impl Sessions {
    /// A connection to the agent: the one there is, or a new one where that has ended by itself.
    pub(super) async fn connected(&self, agent: &str) -> Result<Arc<Capabilities>, Error> {
        let client = self.client();
        let connecting = match client.state() {
            ConnectionState::AgentEnded(_) => client.restart_agent(),
            ConnectionState::Lost(_) => client.connect_with(agent),
            ConnectionState::Disconnected if self.ledger.is_asleep() => client.connect_with(agent),
            _ => return self.capabilities().await,
        };
        match connecting.await {
            Ok(capabilities) => Ok(capabilities),
            // Somebody else had the same thought.
            Err(Error::AlreadyConnected) => self.capabilities().await,
            Err(error) => Err(error),
        }
    }

    async fn capabilities(&self) -> Result<Arc<Capabilities>, Error> {
        let connection = self.client().inner().connection().await?;
        connection.capabilities().ok_or(Error::NotConnected)
    }

    /// Has the agent take a session up again: it resumes it, or else loads it, or else gets a new one that is told what
    /// went before. Whoever calls this holds the gate of the session.
    pub(super) async fn restore(
        &self,
        record: &SessionRecord,
        given: Option<&NewSession>,
    ) -> Result<(SessionRecord, Restored), Error> {
        let can = self.connected(&record.agent).await?;
        if can.server == ServerKind::PerAgent && can.agent != record.agent {
            let (wanted, present) = (&record.agent, &can.agent);
            let what =
                format!("the session belongs to the agent `{wanted}`, and this client talks to `{present}`");
            return Err(Error::config(what));
        }
        let new = given.cloned().unwrap_or_else(|| NewSession::from_kept(&record.init));
        let new = if can.agent == record.agent { new } else { new.agent(&record.agent) };
        let mut restored = None;
        if let Some(agent_session) = &record.agent_session_id {
            restored = self.take_up(&can, agent_session, &new).await?;
        }
        let (agent_session, how) = match (restored, &record.agent_session_id) {
            (Some(how), Some(agent_session)) => (agent_session.clone(), how),
            _ => (self.client().new_session(new).await?.id().to_owned(), Restored::Replayed),
        };
        let replay = match how {
            // A session that has no history has nothing to be told.
            Restored::Replayed => record.last_index > 0,
            _ => record.replay_pending,
        };
        let kept = self.ledger.change(&record.id, |record| {
            record.agent_session_id = Some(agent_session.clone());
            record.resumable = can.resume_session || can.load_session;
            record.replay_pending = replay;
            record.termination = None;
            Ok(())
        });
        let kept = kept.await?;
        self.ledger.recorder().know(&kept);
        self.ledger.bind(&record.id, &agent_session, replay);
        let payload = json!({"by": how.as_str(), "agentSessionId": agent_session});
        self.ledger.recorder().record(&record.id, StoredEventKind::Restored, payload);
        tracing::debug!(session = record.id, by = how.as_str(), "a session was taken up again");
        Ok((kept, how))
    }

    /// Has the agent resume or load its session; `None` if it can do neither, or does not have it.
    async fn take_up(
        &self,
        can: &Capabilities,
        agent_session: &str,
        new: &NewSession,
    ) -> Result<Option<Restored>, Error> {
        let client = self.client();
        if can.resume_session {
            match client.resume_session(agent_session, new.clone()).await {
                // Where the agent cannot do what it says, the session was loaded.
                Ok(session) if !session.history().is_empty() => return Ok(Some(Restored::Loaded)),
                Ok(_) => return Ok(Some(Restored::Resumed)),
                Err(error) if refuses(&error) => tracing::debug!(%error, "a session cannot be resumed"),
                Err(error) => return Err(error),
            }
        }
        if can.load_session {
            match client.load_session(agent_session, new.clone()).await {
                Ok(_) => return Ok(Some(Restored::Loaded)),
                Err(error) if refuses(&error) => tracing::debug!(%error, "a session cannot be loaded"),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The recent history as a text for the agent.
    pub(super) async fn history(&self, record: &SessionRecord) -> Result<Option<String>, Error> {
        let limits = self.ledger.replay;
        // Not every event tells anything, so that more are read than are told, though not all of a long life.
        let span = (limits.max_events as u64).saturating_mul(8).clamp(64, 8192);
        let mut query =
            EventQuery::of(&record.id).after(record.last_index.saturating_sub(span)).limit(crate::MAX_PAGE);
        let mut events = Vec::new();
        loop {
            let page = self.ledger.store.events(&query).await?;
            events.extend(page.events.into_iter().filter(tells));
            match page.next {
                Some(next) => query = query.after(next),
                None => return Ok(history(&events, limits)),
            }
        }
    }
}

/// Whether an agent, or its server, says that it cannot take up this session, so that another way may be tried.
fn refuses(error: &Error) -> bool {
    match error {
        Error::Unsupported { .. } => true,
        // The agent is gone, or the connection: no other way would fare better.
        Error::AgentEnded(_) | Error::ConnectionEnded { .. } | Error::NotConnected => false,
        Error::ServerRestarted { .. } => false,
        Error::Rpc { .. } => !error.is_login_required(),
        error => is_unknown_session(error),
    }
}
