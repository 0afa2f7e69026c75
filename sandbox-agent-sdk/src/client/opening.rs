//! Making, loading, resuming and copying sessions.

use std::sync::Arc;

use acp_http_client::RequestOptions;
use futures::future::BoxFuture;
use serde_json::Value;

use super::calls::Needs;
use super::connection::{Connection, name_agent};
use super::handle::SandboxAgentClient;
use super::names::{FORK, LOAD, NEW, RESUME};
use super::session::Session;
use super::stopping::terminate;
use crate::snapshot::Patch;
use crate::{Error, Feature, NewSession, ServerKind, SessionMetadata, TurnState};

/// Whether other clients of a shared endpoint may have a turn running in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    HaveNoTurn,
    MayHaveATurn,
}

impl SandboxAgentClient {
    /// Makes a session.
    ///
    /// Reports that come before the answer are kept for [`Session::events`]. Only shared endpoints act on the mode and
    /// the model that are asked for; elsewhere they are set by calls of their own, as the thought level is everywhere.
    ///
    /// # Errors
    /// As every call: [`Error::NotConnected`], [`Error::AgentEnded`] and what else can go wrong on the way.
    /// [`Error::Unsupported`] if the agent cannot set what it shall, in which case there is no session.
    pub fn new_session(&self, new: NewSession) -> BoxFuture<'static, Result<Session, Error>> {
        let client = self.clone();
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            let session = {
                let began = client.inner().hub.now();
                let agent = new.agent_wanted().unwrap_or_else(|| connection.agent()).to_owned();
                check_directories(&connection, &new)?;
                let params = new.to_params(&agent)?;
                let answer = connection.call(NEW, params.into()).await?;
                client.opened(answer, NEW, began, &agent, new.given())?
            };
            match grant(&session, &new, connection.kind()).await {
                Ok(()) => Ok(session),
                Err(error) => {
                    discard(&connection, session.id()).await;
                    Err(error)
                }
            }
        })
    }

    /// Loads a session with its history, which is in [`Session::history`] and on its events as [`Origin::History`](crate::Origin::History).
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot load sessions.
    pub fn load_session(
        &self,
        session_id: impl Into<String>,
        new: NewSession,
    ) -> BoxFuture<'static, Result<Session, Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            client.load(&connection, &id, &new).await
        })
    }

    async fn load(&self, connection: &Connection, id: &str, new: &NewSession) -> Result<Session, Error> {
        self.reopen(connection, LOAD, id, new, RequestOptions::new()).await
    }

    /// Has the agent take a session up. What it tells of it until it answers is its history, where the options or the
    /// method say so.
    async fn reopen(
        &self,
        connection: &Connection,
        method: &str,
        id: &str,
        new: &NewSession,
        options: RequestOptions,
    ) -> Result<Session, Error> {
        let hub = &self.inner().hub;
        let _taking_up = hub.take_up(id);
        let collected = hub.collect_history(id);
        let params = self.session_params(connection, id, new)?;
        let began = hub.now();
        let answer = connection.optional_with(method, params, Some(id), Needs::Nothing, options).await;
        connection.barrier().await;
        let history = std::iter::from_fn(|| collected.pop()).collect();
        let answer = answer?;
        hub.revive(id);
        hub.answered(id, Patch::of_state(&answer), began);
        Ok(Session::loaded(self.clone(), id.to_owned(), answer, history))
    }

    /// Resumes a session without its history; where the agent cannot do that but can load sessions, it is loaded.
    ///
    /// What an agent tells of the conversation all the same before it answers is in [`Session::history`], and on its
    /// events as [`Origin::History`](crate::Origin::History). On a shared endpoint it is not: there it may be of a turn
    /// that another client has running.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent can do neither.
    pub fn resume_session(
        &self,
        session_id: impl Into<String>,
        new: NewSession,
    ) -> BoxFuture<'static, Result<Session, Error>> {
        self.resume_in(session_id.into(), new, Others::MayHaveATurn)
    }

    pub(crate) fn resume_in(
        &self,
        id: String,
        new: NewSession,
        others: Others,
    ) -> BoxFuture<'static, Result<Session, Error>> {
        let client = self.clone();
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            let capabilities = connection.capabilities();
            let can = |what: fn(&crate::Capabilities) -> bool| capabilities.as_deref().is_some_and(what);
            let (resumes, loads) = (can(|can| can.resume_session), can(|can| can.load_session));
            let idle = *client.inner().hub.watch_turn(&id).borrow() == TurnState::Idle;
            let alone = connection.kind() != ServerKind::Shared || others == Others::HaveNoTurn;
            // What is told of the session before the answer is old, above all that it has ended.
            let options = RequestOptions::new().ordered(true).replays(idle && alone);
            match client.reopen(&connection, RESUME, &id, &new, options).await {
                Err(Error::Unsupported { .. }) if loads => client.load(&connection, &id, &new).await,
                // An agent that does not advertise resuming may refuse it with any error; only "method not found" is
                // remembered.
                Err(Error::Rpc { .. }) if loads && !resumes => client.load(&connection, &id, &new).await,
                resumed => resumed,
            }
        })
    }

    /// Makes a copy of a session, which goes its own way from there.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot fork sessions.
    pub fn fork_session(
        &self,
        session_id: impl Into<String>,
        new: NewSession,
    ) -> BoxFuture<'static, Result<Session, Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            let params = client.session_params(&connection, &id, &new)?;
            let hub = &client.inner().hub;
            let (began, agent) = (hub.now(), hub.agent_of(&id));
            let answer = connection.optional(FORK, params, Some(&id), Needs::Nothing).await?;
            let agent = agent.as_deref().unwrap_or_else(|| connection.agent());
            client.opened(answer, FORK, began, agent, new.given())
        })
    }

    /// The parameters of a call that takes up a session: they name the agent to which the session belongs.
    fn session_params(&self, connection: &Connection, id: &str, new: &NewSession) -> Result<Value, Error> {
        check_directories(connection, new)?;
        let hub = &self.inner().hub;
        let known = hub.agent_of(id);
        let agent = new.agent_wanted().or(known.as_deref()).unwrap_or_else(|| connection.agent());
        hub.assign(id, agent);
        let mut params = new.to_params(agent)?;
        params.insert("sessionId".to_owned(), id.into());
        let mut params = Value::Object(params);
        name_agent(&mut params, connection.kind(), agent);
        Ok(params)
    }

    /// The handle of a session that an answer names.
    fn opened(
        &self,
        answer: Value,
        method: &str,
        began: u64,
        agent: &str,
        given: &SessionMetadata,
    ) -> Result<Session, Error> {
        let Some(id) = answer.get("sessionId").and_then(Value::as_str).map(str::to_owned) else {
            let source = crate::MissingMember { object: "a session", member: "sessionId" };
            return Err(Error::Decode {
                what: method.to_owned(),
                raw: answer.to_string(),
                source: Arc::new(source),
            });
        };
        let limit = self.inner().options.limits.session_id;
        if id.len() > limit {
            return Err(Error::MessageTooLarge { limit, seen: id.len(), event_id: None });
        }
        let hub = &self.inner().hub;
        hub.revive(&id);
        hub.assign(&id, agent);
        hub.begun(&id, Patch::of_state(&answer).with_metadata(given.clone()), began);
        Ok(Session::loaded(self.clone(), id, answer, Vec::new()))
    }
}

/// Fails if a session shall have directories that its agent would ignore.
fn check_directories(connection: &Connection, new: &NewSession) -> Result<(), Error> {
    // What is known is about the agent of the connection.
    let is_known = new.agent_wanted().is_none_or(|agent| agent == connection.agent());
    let can = connection.supports(Feature::AdditionalDirectories).is_possible();
    if new.has_additional_directories() && is_known && !can {
        return Err(Error::Unsupported { method: "additionalDirectories".to_owned() });
    }
    Ok(())
}

/// Sets what was asked for and the server does not act on by itself.
async fn grant(session: &Session, new: &NewSession, kind: ServerKind) -> Result<(), Error> {
    if kind != ServerKind::Shared {
        if let Some(mode) = new.given().mode() {
            session.set_mode(mode).await?;
        }
        if let Some(model) = new.given().model() {
            session.set_model(model).await?;
        }
    }
    match new.thought_level_wanted() {
        Some(level) => session.set_thought_level(level).await.map(drop),
        None => Ok(()),
    }
}

/// Ends a session that nobody will get to hold. What becomes of that does not matter to the program.
async fn discard(connection: &Connection, id: &str) {
    if connection.supports(Feature::TerminateSession).is_possible()
        && let Err(error) = terminate(connection, id).await
    {
        tracing::debug!(%error, "a session that was not wanted could not be ended");
    }
    connection.hub.disown(id);
}
