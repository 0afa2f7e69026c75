//! One session that is kept.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::json;

use super::binding::Owed;
use super::handle::Sessions;
use super::ledger::Alone;
use super::restore::{Restored, Wish};
use crate::sessions::{EventPage, EventQuery, SessionRecord, StoredEventKind, UserAction};
use crate::turns::TurnState;
use crate::{Content, Error, Events, NewSession, Prompt, Session, Turn};

/// A session that is kept. It is cheap to clone, and counts as a handle of its client.
///
/// Its id never changes, whatever becomes of the agent, the server and this program. What the agent calls the session
/// may change, and is what [`Update::session_id`](crate::Update::session_id) and the events of the client name.
#[derive(Clone)]
pub struct StoredSession {
    pub(super) sessions: Sessions,
    id: Arc<str>,
    /// What it was made of in this program, with its tool servers.
    new: Option<Arc<NewSession>>,
}

impl StoredSession {
    pub(super) fn new(sessions: Sessions, id: String, new: Option<NewSession>) -> Self {
        Self { sessions, id: id.into(), new: new.map(Arc::new) }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The sessions it is one of.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// What is kept of it.
    ///
    /// # Errors
    /// [`Error::Store`] if there is no such session.
    pub async fn record(&self) -> Result<SessionRecord, Error> {
        self.sessions.ledger.record(&self.id).await
    }

    /// What happened in it, behind this index.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn stored_events(&self, after: u64) -> Result<EventPage, Error> {
        self.sessions.events(EventQuery::of(&*self.id).after(after)).await
    }

    /// The session of the agent behind it, while the agent has it as far as is known.
    #[must_use]
    pub fn agent_session(&self) -> Option<Session> {
        let binding = self.sessions.ledger.binding(&self.id).filter(|binding| binding.live)?;
        Some(self.sessions.client().session(binding.agent_session))
    }

    /// What happens in it from now on, also when the agent's session becomes another one; `None` while the agent does not
    /// have it. [`SandboxAgentClient::events`](crate::SandboxAgentClient::events) goes on in any case.
    pub fn events(&self) -> Option<Events> {
        let session = self.agent_session()?;
        let events = session.events();
        self.sessions.ledger.follow(&self.id, session.id(), &events);
        Some(events)
    }

    /// Has the agent take it up, unless it has: it resumes the session, or else loads it, or else gets a new one that is
    /// told the recent history with the next prompt. A suspended session becomes active again. Gives how it was done, if
    /// there was anything to do.
    ///
    /// # Errors
    /// [`Error::Status`] if it is suspended and the agent does not support taking it up, [`Error::NotAllowed`] if it is
    /// archived or has failed, and what else can go wrong.
    pub async fn resume(&self) -> Result<Option<Restored>, Error> {
        let alone = self.sessions.ledger.gate(&self.id).lock_owned().await;
        self.sessions.resume_alone(&self.id, self.new.as_deref(), alone).await
    }

    /// Gives the session something to do.
    ///
    /// If the agent no longer has the session, it takes it up first, as [`resume`](Self::resume) does. The turn starts
    /// at once then and goes on whether its reports are read or not.
    ///
    /// # Errors
    /// [`Error::NotAllowed`] if its status takes no input, [`Error::TurnInProgress`] while a turn is running, and what
    /// else can go wrong before the turn starts; the turn tells what goes wrong in it.
    pub fn prompt(&self, prompt: impl Into<Prompt>) -> BoxFuture<'static, Result<Turn, Error>> {
        let (session, prompt) = (self.clone(), prompt.into());
        Box::pin(async move {
            session.refuse_second_turn().await?;
            let alone = session.sessions.ledger.gate(&session.id).lock_owned().await;
            session.refuse_second_turn().await?;
            session.prompt_alone(prompt, alone).await
        })
    }

    async fn prompt_alone(&self, prompt: Prompt, mut alone: Alone) -> Result<Turn, Error> {
        let ledger = &self.sessions.ledger;
        let record = self.record().await?;
        if !record.status.accepts_input() {
            return Err(Error::NotAllowed { action: UserAction::Send, status: record.status });
        }
        if ledger.current(&record).is_none() {
            let (id, new) = (self.id.to_string(), self.new.as_deref().cloned());
            let wish = Wish { id, new, action: UserAction::Send, support: None };
            let sessions = self.sessions.clone();
            let restoring = async move { sessions.restore(wish).await };
            let (restored, gate) = self.sessions.see_through(alone, restoring).await?;
            restored?;
            alone = gate;
        }
        let binding = ledger.binding(&self.id).ok_or(Error::NotConnected)?;
        let mut told = prompt.clone();
        if binding.owed != Owed::Nothing {
            // Everything that happened has to be there to be told.
            ledger.settle_in_time().await?;
            if let Some(history) = self.sessions.history(&self.id).await? {
                told = prompt.clone().after(Content::text_of(history));
            }
        }
        // Nothing waits from here on: what is stored was sent, and what is sent is stored.
        ledger.begin_turn(&self.id);
        ledger.recorder().record(&self.id, StoredEventKind::Prompt, json!({"prompt": prompt.to_value()}));
        let turn = self.sessions.client().session(&binding.agent_session).prompt(told);
        drop(alone);
        let refused = match &*turn.watch().borrow() {
            Some(Err(error @ Error::TurnInProgress { .. })) => Some(error.clone()),
            _ => None,
        };
        if let Some(error) = refused {
            // Somebody who does not know that the session is kept has begun one.
            ledger.refuse_turn(&self.id, &error);
            return Err(Error::TurnInProgress { session_id: self.id.to_string() });
        }
        Ok(turn)
    }

    /// Refuses a second turn. One that is being cancelled is waited for, within a bound.
    async fn refuse_second_turn(&self) -> Result<(), Error> {
        let Some(session) = self.agent_session() else { return Ok(()) };
        let inner = session.client().inner();
        let mut state = inner.hub.watch_turn(session.id());
        let stopped = state.wait_for(|state| *state != TurnState::Cancelling);
        // If it does not stop in time, it is still running.
        let _ = tokio::time::timeout(inner.options.timeouts.cancel, stopped).await;
        match session.turn_state() {
            TurnState::Idle => Ok(()),
            _ => Err(Error::TurnInProgress { session_id: self.id.to_string() }),
        }
    }

    /// Cancels the running turn.
    ///
    /// # Errors
    /// [`Error::NotAllowed`] if its status has nothing to cancel, [`Error::Timeout`] if the turn does not stop in time.
    pub async fn cancel(&self) -> Result<(), Error> {
        let status = self.record().await?.status;
        if !status.allows(UserAction::Cancel) {
            return Err(Error::NotAllowed { action: UserAction::Cancel, status });
        }
        match self.agent_session() {
            Some(session) => session.cancel().await,
            None => Ok(()),
        }
    }

    /// Puts it away: [`Sessions::archive`].
    ///
    /// # Errors
    /// [`Error::Status`] if it is not active.
    pub async fn archive(&self) -> Result<SessionRecord, Error> {
        self.sessions.archive(&self.id).await
    }

    /// Deletes it with everything that happened in it: [`Sessions::delete`].
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn delete(&self) -> Result<bool, Error> {
        self.sessions.delete(&self.id).await
    }
}

impl fmt::Debug for StoredSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredSession").field("id", &self.id).finish_non_exhaustive()
    }
}
