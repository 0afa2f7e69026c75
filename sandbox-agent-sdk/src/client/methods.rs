//! What can be done with sessions.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::calls::Needs;
use super::connection::{Connection, name_agent};
use super::handle::SandboxAgentClient;
use super::list::{SessionList, find_session};
use super::session::{Session, TurnState};
use super::turn::Turn;
use crate::{
    ConfigOption, Error, Event, ListSessions, ModelList, NewSession, Origin, Phase, Prompt, ServerKind,
    SessionInfo, SessionMetadata, TerminateResult, TerminationReport, Timeout, Update,
};

const FORK: &str = "session/fork";
const LOAD: &str = "session/load";
const RESUME: &str = "session/resume";
const DETACH: &str = "_sandboxagent/session/detach";
const LIST_MODELS: &str = "_sandboxagent/session/list_models";
const SET_METADATA: &str = "_sandboxagent/session/set_metadata";
const TERMINATE: &str = "_sandboxagent/session/terminate";

impl SandboxAgentClient {
    /// Makes a session.
    ///
    /// Reports that come before the answer are kept for [`Session::events`]. Released servers do not act on the mode
    /// and the model that are asked for; there they are set by calls of their own.
    ///
    /// # Errors
    /// As every call: [`Error::NotConnected`], [`Error::AgentEnded`] and what else can go wrong on the way.
    /// [`Error::Unsupported`] if the agent of a released server can set neither mode nor model but shall.
    pub fn new_session(&self, new: NewSession) -> BoxFuture<'static, Result<Session, Error>> {
        let client = self.clone();
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            let params = new.to_params(connection.agent())?;
            let answer = connection.call("session/new", params.into()).await?;
            let session = client.opened(answer, "session/new")?;
            if connection.kind() == ServerKind::PerAgent {
                let (mode, model) = new.wishes();
                if let Some(mode) = mode {
                    session.set_mode(mode).await?;
                }
                if let Some(model) = model {
                    session.set_model(model).await?;
                }
            }
            Ok(session)
        })
    }

    /// Loads a session with its history, which is in [`Session::history`] and on its events as [`Origin::History`].
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
        let hub = &self.inner().hub;
        let mut events = hub.subscribe_session(id);
        let answer =
            connection.optional(LOAD, session_params(connection, id, new)?, Some(id), Needs::Nothing).await;
        connection.barrier().await;
        let mut history = Vec::new();
        let mut others = Vec::new();
        while let Some(event) = events.try_next() {
            match event {
                Event::Update(update) if update.origin() == Origin::History => history.push(update),
                // The state of the connection is not the session's, and was told to everybody else.
                Event::Update(_) | Event::SessionEnded(_) => others.push(event),
                _ => {}
            }
        }
        drop(events);
        hub.put_back(id, others);
        let answer = answer?;
        hub.revive(id);
        Ok(Session::loaded(self.clone(), id.to_owned(), answer, history))
    }

    /// Resumes a session without its history; where the agent cannot do that but can load sessions, it is loaded.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent can do neither.
    pub fn resume_session(
        &self,
        session_id: impl Into<String>,
        new: NewSession,
    ) -> BoxFuture<'static, Result<Session, Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            let capabilities = connection.capabilities();
            let can = |what: fn(&crate::Capabilities) -> bool| capabilities.as_deref().is_some_and(what);
            let (resumes, loads) = (can(|can| can.resume_session), can(|can| can.load_session));
            if !resumes && loads {
                return client.load(&connection, &id, &new).await;
            }
            let params = session_params(&connection, &id, &new)?;
            match connection.optional(RESUME, params, Some(&id), Needs::Nothing).await {
                Ok(answer) => {
                    client.inner().hub.revive(&id);
                    Ok(Session::loaded(client, id, answer, Vec::new()))
                }
                Err(Error::Unsupported { .. }) if loads => client.load(&connection, &id, &new).await,
                Err(error) => Err(error),
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
            let params = session_params(&connection, &id, &new)?;
            let answer = connection.optional(FORK, params, Some(&id), Needs::Nothing).await?;
            client.opened(answer, FORK)
        })
    }

    /// Gives a session something to do: [`Session::prompt`].
    pub fn prompt(&self, session_id: impl Into<String>, prompt: impl Into<Prompt>) -> Turn {
        self.session(session_id).prompt(prompt)
    }

    /// Cancels the turn of a session: what the agent has asked is answered as cancelled, then the agent is told, and
    /// then its turn is waited for. Without a running turn the agent is told all the same.
    ///
    /// # Errors
    /// [`Error::Timeout`] with [`Phase::Cancel`] if the turn does not stop in time.
    pub fn cancel(&self, session_id: impl Into<String>) -> BoxFuture<'static, Result<(), Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            connection.check()?;
            connection.cancel(&id).await?;
            let limit = client.inner().options.timeouts.cancel;
            let mut turn = client.inner().hub.watch_turn(&id);
            let stopped = tokio::time::timeout(limit, turn.wait_for(|turn| *turn == TurnState::Idle)).await;
            match stopped {
                Ok(_) => Ok(()),
                Err(_) => Err(Error::Timeout(Box::new(Timeout::new(Phase::Cancel, "session/cancel", limit)))),
            }
        })
    }

    /// Sets the mode of a session.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has no modes.
    pub fn set_session_mode(
        &self,
        session_id: impl Into<String>,
        mode: impl Into<String>,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let (id, mode) = (session_id.into(), mode.into());
        let params = json!({"sessionId": id, "modeId": mode});
        self.of_session("session/set_mode", id, params, |_| Ok(()))
    }

    /// Sets an option of a session, and tells all its options as they are then.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has no options.
    pub fn set_session_config_option(
        &self,
        session_id: impl Into<String>,
        option: impl Into<String>,
        value: impl Into<Value>,
    ) -> BoxFuture<'static, Result<Vec<ConfigOption>, Error>> {
        let (id, option, value) = (session_id.into(), option.into(), value.into());
        let mut params = json!({"sessionId": id, "configId": option, "value": value});
        if value.is_boolean() {
            params["type"] = "boolean".into();
        }
        self.of_session("session/set_config_option", id, params, |answer| {
            Ok(ConfigOption::read_all(&answer).unwrap_or_default())
        })
    }

    /// Sets the model of a session.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot change its model this way; see [`Session::set_model`].
    pub fn set_session_model(
        &self,
        session_id: impl Into<String>,
        model: impl Into<String>,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let (id, model) = (session_id.into(), model.into());
        let params = json!({"sessionId": id, "modelId": model});
        self.of_session("session/set_model", id, params, |_| Ok(()))
    }

    /// A call about a session that its agent answers.
    fn of_session<T: Send + 'static>(
        &self,
        method: &'static str,
        id: String,
        params: Value,
        read: fn(Value) -> Result<T, Error>,
    ) -> BoxFuture<'static, Result<T, Error>> {
        let client = self.clone();
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            read(connection.optional(method, params, Some(&id), Needs::Session).await?)
        })
    }

    /// The models that a session, or the agent, can work with.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server does not know.
    pub fn list_models(&self, session_id: Option<&str>) -> BoxFuture<'static, Result<ModelList, Error>> {
        let (client, id) = (self.clone(), session_id.map(str::to_owned));
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            let mut params = json!({"agent": connection.agent()});
            if let Some(id) = &id {
                params["sessionId"] = id.as_str().into();
            }
            let answer = connection.optional(LIST_MODELS, params, id.as_deref(), Needs::Nothing).await?;
            read(LIST_MODELS, answer)
        })
    }

    /// Changes the metadata of a session, key by key. A key that is `null` is stored as `null`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server keeps no metadata.
    pub fn set_metadata(
        &self,
        session_id: impl Into<String>,
        metadata: SessionMetadata,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            let params = json!({"sessionId": id, "metadata": metadata.into_map()});
            connection.optional(SET_METADATA, params, Some(&id), Needs::Nothing).await.map(drop)
        })
    }

    /// Leaves a session without ending it: its events no longer come here. Any later call about it comes back to it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server cannot do that.
    pub fn detach_session(&self, session_id: impl Into<String>) -> BoxFuture<'static, Result<(), Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            let params = json!({"sessionId": id});
            connection.optional(DETACH, params, Some(&id), Needs::Nothing).await.map(drop)
        })
    }

    /// Ends a session. The end that follows says that it was [requested](crate::TerminationInfo::requested), and is
    /// never a crash.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server cannot do that.
    pub fn terminate_session(
        &self,
        session_id: impl Into<String>,
    ) -> BoxFuture<'static, Result<TerminateResult, Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            connection.check()?;
            let hub = &client.inner().hub;
            hub.request_stop(&id);
            let params = json!({"sessionId": id});
            let answer = connection.optional(TERMINATE, params, Some(&id), Needs::Nothing).await;
            let result = answer.and_then(|answer| read::<TerminateResult>(TERMINATE, answer));
            match &result {
                // The notice may be on its way; if the server sends none, this is the end all the same.
                Ok(result) if result.terminated => {
                    connection.barrier().await;
                    hub.end_session(&id, TerminationReport::requested());
                }
                _ => hub.withdraw_stop(&id),
            }
            result
        })
    }

    /// What the server knows about a session, with how it ended.
    ///
    /// # Errors
    /// An error that [is "not found"](Error::is_not_found) if the server does not know the session.
    pub fn get_session(
        &self,
        session_id: impl Into<String>,
    ) -> BoxFuture<'static, Result<SessionInfo, Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move { find_session(client.inner(), &id).await })
    }

    /// The sessions of the server, by the best way it has to list them. Pages are fetched as they are needed.
    pub fn list_sessions(&self, which: ListSessions) -> SessionList {
        SessionList::new(Arc::clone(self.inner()), which)
    }

    /// Calls any method of the agent or the server, and gives the result as it comes.
    ///
    /// # Errors
    /// As every call.
    pub fn raw_request(
        &self,
        method: impl Into<String>,
        params: impl Into<Value>,
    ) -> BoxFuture<'static, Result<Value, Error>> {
        let (client, method, params) = (self.clone(), method.into(), params.into());
        Box::pin(async move { client.inner().connection().await?.call(&method, params).await })
    }

    /// Sends any notification.
    ///
    /// # Errors
    /// As every call.
    pub fn raw_notify(
        &self,
        method: impl Into<String>,
        params: impl Into<Value>,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let (client, method, params) = (self.clone(), method.into(), params.into());
        Box::pin(async move { client.inner().connection().await?.notify(&method, &params).await })
    }

    /// The handle of a session that an answer names.
    fn opened(&self, answer: Value, method: &str) -> Result<Session, Error> {
        let Some(id) = answer.get("sessionId").and_then(Value::as_str).map(str::to_owned) else {
            let source = crate::MissingMember { object: "a session", member: "sessionId" };
            return Err(Error::Decode {
                what: method.to_owned(),
                raw: answer.to_string(),
                source: Arc::new(source),
            });
        };
        self.inner().hub.revive(&id);
        Ok(Session::loaded(self.clone(), id, answer, Vec::<Update>::new()))
    }
}

fn session_params(connection: &Connection, id: &str, new: &NewSession) -> Result<Value, Error> {
    let mut params: Map<String, Value> = new.to_params(connection.agent())?;
    params.insert("sessionId".to_owned(), id.into());
    let mut params = Value::Object(params);
    name_agent(&mut params, connection.kind(), connection.agent());
    Ok(params)
}

pub(super) fn read<T: serde::de::DeserializeOwned>(method: &str, answer: Value) -> Result<T, Error> {
    let raw = answer.to_string();
    serde_json::from_value(answer).map_err(|source| Error::Decode {
        what: method.to_owned(),
        raw,
        source: Arc::new(source),
    })
}
