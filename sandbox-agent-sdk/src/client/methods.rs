//! Calls about sessions.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::calls::Needs;
use super::connection::{Connection, name_agent};
use super::handle::SandboxAgentClient;
use super::hub::Hub;
use super::list::{SessionList, find_session};
use super::names::{AUTHENTICATE, DETACH, LIST_MODELS, SET_METADATA, SET_MODE, SET_MODEL, SET_OPTION};
use super::turn::Turn;
use crate::client::snapshot::Patch;
use crate::session::{ListSessions, ModelList, SessionInfo, SessionMetadata};
use crate::update::ConfigOption;
use crate::{Error, Prompt};

impl SandboxAgentClient {
    /// Sends a prompt to a session. See [`Session::prompt`](crate::Session::prompt).
    pub fn prompt(&self, session_id: impl Into<String>, prompt: impl Into<Prompt>) -> Turn {
        self.session(session_id).prompt(prompt)
    }

    /// Sets the mode of a session. If the agent has a mode option instead of modes, this sets that option.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has neither modes nor a mode option.
    pub fn set_session_mode(
        &self,
        session_id: impl Into<String>,
        mode: impl Into<String>,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.session(session_id).set_mode(mode)
    }

    pub(super) fn set_mode_by_method(
        &self,
        session_id: &str,
        mode: String,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let params = json!({"modeId": mode});
        self.about(SET_MODE, session_id.to_owned(), params, Needs::Session, move |about, _| {
            about.learn(Patch::of_mode(&mode));
            Ok(())
        })
    }

    /// Sets an option of a session, and returns all its options after the change.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has no options.
    pub fn set_session_config_option(
        &self,
        session_id: impl Into<String>,
        option: impl Into<String>,
        value: impl Into<Value>,
    ) -> BoxFuture<'static, Result<Vec<ConfigOption>, Error>> {
        let (option, value) = (option.into(), value.into());
        let mut params = json!({"configId": option, "value": value});
        if value.is_boolean() {
            params["type"] = "boolean".into();
        }
        self.about(SET_OPTION, session_id.into(), params, Needs::Session, move |about, answer| {
            if let Some(options) = ConfigOption::read_all(&answer) {
                about.hub.set_option(about.id, options.clone(), &option, about.began);
                return Ok(options);
            }
            // An empty response means that the option was set as requested.
            let mut options = about.hub.snapshot(about.id).config_options.clone();
            if let Some(known) = options.iter_mut().find(|known| known.id == option) {
                known.current = value;
            }
            about.learn(Patch::of_options(options.clone()));
            Ok(options)
        })
    }

    /// Sets the model of a session. If the agent has a model option instead of models, this sets that option.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has neither models nor a model option.
    pub fn set_session_model(
        &self,
        session_id: impl Into<String>,
        model: impl Into<String>,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.session(session_id).set_model(model)
    }

    pub(super) fn set_model_by_method(
        &self,
        session_id: &str,
        model: String,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let params = json!({"modelId": model});
        self.about(SET_MODEL, session_id.to_owned(), params, Needs::Session, move |about, _| {
            about.learn(Patch::of_model(&model));
            Ok(())
        })
    }

    /// Returns the models that a session, or the agent, can use.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server cannot list models.
    pub fn list_models(&self, session_id: Option<&str>) -> BoxFuture<'static, Result<ModelList, Error>> {
        let (client, id) = (self.clone(), session_id.map(str::to_owned));
        Box::pin(async move {
            let hub = &client.inner().hub;
            let began = hub.now();
            let Some(id) = id else {
                let list = |connection: Arc<Connection>| async move {
                    let params = json!({"agent": connection.agent()});
                    connection.optional(LIST_MODELS, params, None, Needs::Nothing).await
                };
                return read(LIST_MODELS, client.inner().call(list).await?);
            };
            let connection = client.inner().connection().await?;
            let known = hub.agent_of(&id);
            let agent = known.as_deref().unwrap_or_else(|| connection.agent());
            let params = json!({"agent": agent, "sessionId": id});
            let answer = connection.optional(LIST_MODELS, params, Some(&id), Needs::Nothing).await?;
            hub.answered(&id, Patch::of_answer(&answer), began);
            read(LIST_MODELS, answer)
        })
    }

    /// Changes the metadata of a session, key by key. A `null` value is stored as `null`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server does not store metadata.
    pub fn set_metadata(
        &self,
        session_id: impl Into<String>,
        metadata: SessionMetadata,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let params = json!({"metadata": metadata.clone().into_map()});
        self.about(SET_METADATA, session_id.into(), params, Needs::Nothing, move |about, _| {
            about.learn(Patch::default().with_metadata(metadata));
            Ok(())
        })
    }

    /// Detaches from a session without ending it. The server stops sending its events to this client.
    ///
    /// A later call about the session attaches to it again.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server cannot detach clients.
    pub fn detach_session(&self, session_id: impl Into<String>) -> BoxFuture<'static, Result<(), Error>> {
        self.about(DETACH, session_id.into(), json!({}), Needs::Nothing, |_, _| Ok(()))
    }

    /// Makes a call about a session and applies its response to the session's snapshot.
    pub(super) fn about<T: Send + 'static>(
        &self,
        method: &'static str,
        id: String,
        mut params: Value,
        needs: Needs,
        then: impl FnOnce(&About<'_>, Value) -> Result<T, Error> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Error>> {
        let client = self.clone();
        params["sessionId"] = id.as_str().into();
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            let about = About { hub: &client.inner().hub, id: &id, began: client.inner().hub.now() };
            let answer = connection.optional(method, params, Some(&id), needs).await?;
            // Reports that arrived before the response are applied before it.
            connection.barrier().await;
            then(&about, answer)
        })
    }

    /// Logs in to the agent with one of its [login methods](crate::connection::Capabilities::auth_methods).
    ///
    /// Not needed if the agent's environment has an API key: connecting then logs in automatically. See
    /// [`ClientOptions::auto_authenticate`](crate::ClientOptions::auto_authenticate).
    ///
    /// # Errors
    /// [`Error::Rpc`] if the agent rejects the login, [`Error::Unsupported`] if it has no login methods.
    pub fn authenticate(&self, method_id: impl Into<String>) -> BoxFuture<'static, Result<(), Error>> {
        self.authenticate_with(method_id, Map::new())
    }

    /// Logs in with additional parameters, such as `_meta`.
    ///
    /// Use it for agents that need more than the method id.
    ///
    /// # Errors
    /// The errors of [`authenticate`](Self::authenticate).
    pub fn authenticate_with(
        &self,
        method_id: impl Into<String>,
        params: Map<String, Value>,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let (client, id) = (self.clone(), method_id.into());
        let mut params = Value::Object(params);
        params["methodId"] = id.into();
        Box::pin(async move { client.ask_agent(AUTHENTICATE, &params).await })
    }

    /// Makes a call to the agent of the connection that is about no session.
    pub(super) async fn ask_agent(&self, method: &str, params: &Value) -> Result<(), Error> {
        let ask = |connection: Arc<Connection>| async move {
            let mut params = params.clone();
            name_agent(&mut params, connection.kind(), connection.agent());
            connection.optional(method, params, None, Needs::Nothing).await.map(drop)
        };
        self.inner().call(ask).await
    }

    /// Returns the server's record of a session, including how it ended.
    ///
    /// # Errors
    /// An error whose [`is_not_found`](Error::is_not_found) is true if the server does not know the session.
    pub fn get_session(
        &self,
        session_id: impl Into<String>,
    ) -> BoxFuture<'static, Result<SessionInfo, Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move { find_session(client.inner(), &id).await })
    }

    /// Lists the sessions of the server. Pages are fetched on demand.
    pub fn list_sessions(&self, which: ListSessions) -> SessionList {
        SessionList::new(Arc::clone(self.inner()), which)
    }

    /// Calls any method of the agent or the server, and returns the raw result.
    ///
    /// # Errors
    /// [`Error::Rpc`] if the method fails, and the errors of every call, such as [`Error::NotConnected`].
    pub fn raw_request(
        &self,
        method: impl Into<String>,
        params: impl Into<Value>,
    ) -> BoxFuture<'static, Result<Value, Error>> {
        let (client, method, params) = (self.clone(), method.into(), params.into());
        Box::pin(async move {
            if params.get("sessionId").is_some() {
                return client.inner().connection().await?.call(&method, params).await;
            }
            let (method, params) = (&method, &params);
            let call =
                |connection: Arc<Connection>| async move { connection.call(method, params.clone()).await };
            client.inner().call(call).await
        })
    }

    /// Sends any notification to the agent or the server.
    ///
    /// # Errors
    /// The errors of every call, such as [`Error::NotConnected`].
    pub fn raw_notify(
        &self,
        method: impl Into<String>,
        params: impl Into<Value>,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let (client, method, params) = (self.clone(), method.into(), params.into());
        Box::pin(async move { client.inner().connection().await?.notify(&method, &params).await })
    }
}

impl Connection {
    /// Sends a request. If it sets a mode, the agent may report the mode as text, unless the request fails.
    pub(super) async fn setting_mode<F>(&self, method: &str, params: &Value, call: F) -> Result<Value, Error>
    where
        F: Future<Output = Result<Value, Error>>,
    {
        let text = |member: &str| params.get(member).and_then(Value::as_str).filter(|_| method == SET_MODE);
        let set = text("sessionId").zip(text("modeId"));
        set.iter().for_each(|(session, mode)| self.hub.expect_mode(session, mode));
        let result = call.await;
        if let Some((session, mode)) = set.filter(|_| result.is_err()) {
            self.hub.take_expected_mode(session, mode);
        }
        result
    }
}

/// The session that a call is about.
pub(super) struct About<'a> {
    pub(super) hub: &'a Hub,
    pub(super) id: &'a str,
    /// When the call began.
    began: u64,
}

impl About<'_> {
    fn learn(&self, patch: Patch) {
        self.hub.answered(self.id, patch, self.began);
    }
}

pub(super) fn read<T: serde::de::DeserializeOwned>(method: &str, answer: Value) -> Result<T, Error> {
    let raw = answer.to_string();
    serde_json::from_value(answer).map_err(|source| Error::Decode {
        what: method.to_owned(),
        raw,
        source: Arc::new(crate::convert::text::safe_error(source)),
    })
}
