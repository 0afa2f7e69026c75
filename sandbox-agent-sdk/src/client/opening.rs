//! Creating, loading, resuming and forking sessions.

use std::sync::Arc;

use acp_http_client::RequestOptions;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::calls::Needs;
use super::connection::{Connection, name_agent};
use super::handle::SandboxAgentClient;
use super::names::{FORK, LOAD, NEW, REPLAYED, RESUME};
use super::session::Session;
use super::stopping::terminate;
use crate::client::snapshot::Patch;
use crate::connection::Feature;
use crate::convert::claude::request_reports;
use crate::convert::text::OneLine;
use crate::session::SessionMetadata;
use crate::turns::TurnState;
use crate::{Error, NewSession, OpenSession, ServerKind, Update, UpdateKind};

/// The call that opened a session of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenedBy {
    Resume,
    Load,
}

/// Whether other clients of a shared endpoint may run a turn in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    HaveNoTurn,
    MayHaveATurn,
}

impl SandboxAgentClient {
    /// Creates a session.
    ///
    /// Updates that arrive before the response are buffered for [`Session::events`]. If the server does not set the
    /// mode, model and thought level itself, separate calls set them. If the server no longer knows the connection,
    /// the client reconnects and repeats the call once.
    ///
    /// # Errors
    /// The errors of every call, such as [`Error::NotConnected`] and [`Error::AgentEnded`]. [`Error::Unsupported`] if
    /// the agent cannot set the mode, model or thought level; the new session is then discarded.
    pub fn new_session(&self, new: NewSession) -> BoxFuture<'static, Result<Session, Error>> {
        let client = self.clone();
        Box::pin(async move {
            new.check()?;
            let (client, new) = (&client, &new);
            let create = |connection: Arc<Connection>| async move { client.create(&connection, new).await };
            client.inner().call(create).await
        })
    }

    async fn create(&self, connection: &Connection, new: &NewSession) -> Result<Session, Error> {
        let hub = &self.inner().hub;
        let (began, _opening) = (hub.now(), hub.open());
        let agent = new.agent_wanted().unwrap_or_else(|| connection.agent()).to_owned();
        check_directories(connection, new)?;
        let mut params = new.to_params(&agent)?;
        let reports = self.request_reports(connection, &agent, &mut params);
        let answer = connection.call(NEW, params.into()).await?;
        let session = self.opened(answer, NEW, began, &agent, new.given())?;
        hub.requested_ends(session.id(), reports);
        hub.know_prompts(session.id());
        hub.usage(|usage| usage.created(session.id()));
        self.granted(session, new, connection).await
    }

    /// Sets up a session that was created. It is discarded if that fails.
    async fn granted(
        &self,
        session: Session,
        new: &NewSession,
        connection: &Connection,
    ) -> Result<Session, Error> {
        self.inner().hub.opened(session.id(), OpenSession::like(new.clone()));
        match grant(&session, new, connection).await {
            Ok(()) => Ok(session),
            Err(error) => {
                discard(connection, session.id()).await;
                Err(error)
            }
        }
    }

    /// Loads a session with its history.
    ///
    /// [`Session::history`] returns the history. Subscribers of the session receive it with
    /// [`Origin::History`](crate::event::Origin::History). A prompt of this client waits until its session is loaded.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot load sessions, [`Error::TurnInProgress`] if a turn of this client is
    /// running in the session: the history could not be distinguished from the turn.
    pub fn load_session(
        &self,
        session_id: impl Into<String>,
        open: OpenSession,
    ) -> BoxFuture<'static, Result<Session, Error>> {
        let (client, id, OpenSession { new }) = (self.clone(), session_id.into(), open);
        Box::pin(async move {
            new.check()?;
            let (client, id, new) = (&client, &id, &new);
            let load = |connection: Arc<Connection>| async move { client.load(&connection, id, new).await };
            client.inner().call(load).await
        })
    }

    async fn load(&self, connection: &Connection, id: &str, new: &NewSession) -> Result<Session, Error> {
        self.reopen(connection, LOAD, id, new, RequestOptions::new()).await
    }

    /// Opens a session of the agent. The options determine whether updates before the response are history.
    async fn reopen(
        &self,
        connection: &Connection,
        method: &str,
        id: &str,
        new: &NewSession,
        options: RequestOptions,
    ) -> Result<Session, Error> {
        let hub = &self.inner().hub;
        let resuming = hub.begin_resume(id, method == LOAD);
        let _resuming = resuming.ok_or_else(|| Error::TurnInProgress { session_id: id.to_owned() })?;
        let collected = hub.collect_history(id);
        let (params, reports) = self.session_params(connection, id, new)?;
        let began = hub.now();
        let answer = connection.optional_with(method, params, Some(id), Needs::Nothing, options).await;
        connection.barrier().await;
        let mut history: Vec<Update> = std::iter::from_fn(|| collected.pop()).collect();
        let answer = answer?;
        if method == LOAD && (is_open_ended(&history) || hub.replays_late(id)) {
            connection.replayed(id).await;
            history.extend(std::iter::from_fn(|| collected.pop()));
        }
        hub.requested_ends(id, reports);
        hub.revive(id);
        hub.usage(|usage| usage.joined(id, connection.kind() == ServerKind::Shared));
        hub.opened(id, OpenSession::like(new.clone()));
        hub.answered(id, Patch::of_state(&answer), began);
        Ok(Session::loaded(self.clone(), id.to_owned(), answer, history))
    }

    /// Resumes a session without its history. If the agent can only load sessions, this loads the session.
    ///
    /// Updates that arrive before the response are in [`Session::history`], and subscribers of the session receive
    /// them with [`Origin::History`](crate::event::Origin::History). On a shared endpoint they are live, because they
    /// may belong to a running turn of another client.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent can neither resume nor load sessions, [`Error::TurnInProgress`] if it can only
    /// load them and a turn of this client is running in the session.
    pub fn resume_session(
        &self,
        session_id: impl Into<String>,
        open: OpenSession,
    ) -> BoxFuture<'static, Result<Session, Error>> {
        let resuming = self.resume_in(session_id.into(), open.new, Others::MayHaveATurn);
        Box::pin(async move { Ok(resuming.await?.0) })
    }

    /// Resumes a session, or loads it if the agent can only do that. Returns which of them it was.
    pub(crate) fn resume_in(
        &self,
        id: String,
        new: NewSession,
        others: Others,
    ) -> BoxFuture<'static, Result<(Session, OpenedBy), Error>> {
        let client = self.clone();
        Box::pin(async move {
            new.check()?;
            let (client, id, new) = (&client, &id, &new);
            let resume = |connection: Arc<Connection>| async move {
                client.resume(&connection, id, new, others).await
            };
            client.inner().call(resume).await
        })
    }

    async fn resume(
        &self,
        connection: &Connection,
        id: &str,
        new: &NewSession,
        others: Others,
    ) -> Result<(Session, OpenedBy), Error> {
        let capabilities = connection.capabilities();
        let can =
            |what: fn(&crate::connection::Capabilities) -> bool| capabilities.as_deref().is_some_and(what);
        let (resumes, loads) = (can(|can| can.resume_session), can(|can| can.load_session));
        let idle = *self.inner().hub.watch_turn(id).borrow() == TurnState::Idle;
        let alone = connection.kind() != ServerKind::Shared || others == Others::HaveNoTurn;
        // Reports about the session before the response are old, especially its end.
        let options = RequestOptions::new().ordered(true).replays(idle && alone);
        let resumed = self.reopen(connection, RESUME, id, new, options).await;
        let is_refused = match &resumed {
            Err(Error::Unsupported { .. }) => true,
            // An agent that does not advertise resuming may refuse it with any error; only "method not found" is
            // remembered.
            Err(Error::Rpc { .. }) => !resumes,
            _ => false,
        };
        match is_refused && loads {
            true => Ok((self.load(connection, id, new).await?, OpenedBy::Load)),
            false => Ok((resumed?, OpenedBy::Resume)),
        }
    }

    /// Forks a session: creates a copy that continues independently.
    ///
    /// Some agents replay the conversation before they respond. It is in [`Session::history`]. Subscribers of
    /// [`events`](Self::events) receive it with [`Origin::History`](crate::event::Origin::History). On a shared endpoint
    /// they receive it as live, because sessions of other clients begin in the same way.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot fork sessions, or cannot set the mode, model or thought level; the new
    /// session is then discarded.
    pub fn fork_session(
        &self,
        session_id: impl Into<String>,
        new: NewSession,
    ) -> BoxFuture<'static, Result<Session, Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move {
            new.check()?;
            let connection = client.inner().connection().await?;
            let (params, reports) = client.session_params(&connection, &id, &new)?;
            let hub = &client.inner().hub;
            let (began, agent, forking) = (hub.now(), hub.agent_of(&id), hub.fork());
            let answer = connection.optional(FORK, params, Some(&id), Needs::Nothing).await?;
            connection.barrier().await;
            let agent = agent.as_deref().unwrap_or_else(|| connection.agent());
            let forked = client.opened(answer, FORK, began, agent, new.given())?;
            let history = forking.history(forked.id());
            let forked = forked.with_history(history);
            hub.requested_ends(forked.id(), reports);
            hub.usage(|usage| usage.joined(forked.id(), true));
            client.granted(forked, &new, &connection).await
        })
    }

    /// Returns the parameters of a call that opens a session, and whether they request reports of the agent. They name
    /// the agent of the session.
    fn session_params(
        &self,
        connection: &Connection,
        id: &str,
        new: &NewSession,
    ) -> Result<(Value, bool), Error> {
        check_directories(connection, new)?;
        let hub = &self.inner().hub;
        let known = hub.agent_of(id);
        let agent = new.agent_wanted().or(known.as_deref()).unwrap_or_else(|| connection.agent());
        hub.assign(id, agent);
        let mut params = new.to_params(agent)?;
        let reports = self.request_reports(connection, agent, &mut params);
        params.insert("sessionId".to_owned(), id.into());
        let mut params = Value::Object(params);
        name_agent(&mut params, connection.kind(), agent);
        Ok((params, reports))
    }

    /// Requests reports beyond the protocol from agents that support them.
    fn request_reports(&self, connection: &Connection, agent: &str, params: &mut Map<String, Value>) -> bool {
        let capabilities = connection.capabilities();
        let own = capabilities.as_deref().filter(|_| agent == connection.agent());
        let own = own.and_then(|capabilities| capabilities.agent_name.as_deref());
        request_reports(params, [agent].into_iter().chain(own), self.inner().options.notices)
    }

    /// Creates the handle of the session that a response names.
    fn opened(
        &self,
        answer: Value,
        method: &str,
        began: u64,
        agent: &str,
        given: &SessionMetadata,
    ) -> Result<Session, Error> {
        let Some(id) = answer.get("sessionId").and_then(Value::as_str).map(str::to_owned) else {
            let source = crate::error::MissingMember { object: "a session", member: "sessionId" };
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
        let patch = Patch::of_state(&answer).with_metadata(given.clone());
        // The handle keeps what the response says about the session.
        let session = Session::loaded(self.clone(), id, answer, Vec::new());
        hub.revive(session.id());
        hub.assign(session.id(), agent);
        hub.begun(session.id(), patch, began);
        Ok(session)
    }
}

impl Connection {
    /// Waits until the agent has replayed the conversation of a loaded session: some agents continue after their
    /// response.
    async fn replayed(&self, id: &str) {
        let options = RequestOptions::new().ordered(true).timeout(self.options.timeouts.replay);
        // Any response will do; the expected one is an error.
        if let Err(error) = self.call_with(REPLAYED, json!({ "sessionId": id }), options).await {
            tracing::debug!(error = %OneLine(&error), "the conversation was replayed");
        }
        self.barrier().await;
    }
}

/// Whether a conversation may continue: it does not end with a message of the agent.
fn is_open_ended(history: &[Update]) -> bool {
    let last = history.iter().rfind(|update| update.is_conversation());
    last.is_none_or(|last| matches!(last.kind(), UpdateKind::UserMessage(_)))
}

/// Fails if the agent would ignore the additional directories of a session.
fn check_directories(connection: &Connection, new: &NewSession) -> Result<(), Error> {
    // The capabilities are those of the connection's agent.
    let is_known = new.agent_wanted().is_none_or(|agent| agent == connection.agent());
    let can = connection.supports(Feature::AdditionalDirectories).is_possible();
    if new.has_additional_directories() && is_known && !can {
        return Err(Error::Unsupported { method: "additionalDirectories".to_owned() });
    }
    Ok(())
}

/// Sets the requested mode, model and thought level that are not set yet.
async fn grant(session: &Session, new: &NewSession, connection: &Connection) -> Result<(), Error> {
    // A shared endpoint with extensions sets mode and model itself, may have no call for it, and may not report them. A
    // reported value that differs was not set.
    let extensions = connection.capabilities().is_some_and(|can| !can.extensions.is_empty());
    let by_server = connection.kind() == ServerKind::Shared && extensions;
    let done = |set: Result<(), Error>, current: Option<&str>| match set {
        Err(Error::Unsupported { .. }) if by_server && current.is_none() => Ok(()),
        set => set,
    };
    let now = session.snapshot();
    if let Some(mode) = new.given().mode().filter(|mode| now.current_mode.as_deref() != Some(mode)) {
        done(session.set_mode(mode).await, now.current_mode.as_deref())?;
    }
    let model = new.given().model();
    if let Some(model) = model.filter(|model| now.models.current.as_deref() != Some(model)) {
        done(session.set_model(model).await, now.models.current.as_deref())?;
    }
    match new.thought_level_wanted() {
        Some(level) => session.set_thought_level(level).await.map(drop),
        None => Ok(()),
    }
}

/// Ends a session that could not be set up. Its failure is only logged.
async fn discard(connection: &Connection, id: &str) {
    if connection.supports(Feature::TerminateSession).is_possible()
        && let Err(error) = terminate(connection, id).await
    {
        tracing::debug!(error = %OneLine(&error), "a session that could not be set up was not ended");
    }
    connection.hub.disown(id);
}
