//! One session.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::handle::SandboxAgentClient;
use super::names::SET_OPTION;
use super::stream::PromptLayer;
use super::turn::Turn;
use crate::client::snapshot::SnapshotCell;
use crate::session::{ModelList, SessionInfo, SessionMetadata, SessionSnapshot, TerminateResult};
use crate::update::ConfigOption;
use crate::{Error, Events, NewSession, Prompt, TerminationInfo, Update};

/// What a session is doing, as far as this client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TurnState {
    /// No turn of this client is running.
    Idle,
    /// A turn is running.
    Running,
    /// A turn was cancelled and has not stopped yet.
    Cancelling,
}

/// A handle of one session. It is cheap to clone, and counts as a handle of its client.
#[derive(Clone)]
pub struct Session {
    client: SandboxAgentClient,
    id: Arc<str>,
    /// The answer that made it, `null` for a handle that was made from an id alone.
    answer: Arc<Value>,
    history: Arc<[Update]>,
    snapshot: Arc<SnapshotCell>,
}

impl Session {
    pub(super) fn of(client: SandboxAgentClient, id: String) -> Self {
        Self::loaded(client, id, Value::Null, Vec::new())
    }

    pub(super) fn loaded(
        client: SandboxAgentClient,
        id: String,
        answer: Value,
        history: Vec<Update>,
    ) -> Self {
        let snapshot = client.inner().hub.adopt(&id);
        Self { client, id: id.into(), answer: Arc::new(answer), history: history.into(), snapshot }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The client it belongs to.
    #[must_use]
    pub fn client(&self) -> &SandboxAgentClient {
        &self.client
    }

    /// The history that came when it was loaded; empty otherwise.
    #[must_use]
    pub fn history(&self) -> &[Update] {
        &self.history
    }

    /// What is known about it now: modes, models, options, commands, tools, title, metadata. It follows whatever
    /// tells of the session, and a copy that was taken stays as it is.
    #[must_use]
    pub fn snapshot(&self) -> Arc<SessionSnapshot> {
        self.snapshot.get()
    }

    /// The answer with which it was made, loaded or resumed, as it came: its modes, its options and whatever else.
    #[must_use]
    pub fn raw(&self) -> &Value {
        &self.answer
    }

    /// Its options as they are now.
    #[must_use]
    pub fn config_options(&self) -> Vec<ConfigOption> {
        self.snapshot().config_options.clone()
    }

    /// Gives the session something to do.
    ///
    /// The turn starts at once and goes on whether its reports are read or not. There is one turn at a time: while
    /// one is running, another one fails with [`Error::TurnInProgress`].
    pub fn prompt(&self, prompt: impl Into<Prompt>) -> Turn {
        Turn::start(self.clone(), &prompt.into(), None)
    }

    /// Like [`prompt`](Self::prompt), with a function that runs with the prompt's id before it is sent.
    ///
    /// It is for layers that write ahead: they store the prompt under the id that its response has in the
    /// [stream](crate::stream). If the function fails, the prompt is not sent, and the turn fails with its error.
    pub fn prompt_after<F, R>(&self, prompt: impl Into<Prompt>, before: F) -> Turn
    where
        F: FnOnce(String) -> R + Send + 'static,
        R: Future<Output = Result<(), Error>> + Send + 'static,
    {
        struct Before<F>(Option<F>);

        impl<F, R> PromptLayer for Before<F>
        where
            F: FnOnce(String) -> R + Send + 'static,
            R: Future<Output = Result<(), Error>> + Send + 'static,
        {
            fn before_send(&mut self, id: String) -> BoxFuture<'static, Result<(), Error>> {
                match self.0.take() {
                    Some(before) => Box::pin(before(id)),
                    None => Box::pin(std::future::ready(Ok(()))),
                }
            }
        }

        self.prompt_with(prompt, Before(Some(before)))
    }

    /// Like [`prompt`](Self::prompt), with a layer that stores the prompt before it is sent and may have it sent again.
    pub fn prompt_with(&self, prompt: impl Into<Prompt>, layer: impl PromptLayer) -> Turn {
        Turn::start(self.clone(), &prompt.into(), Some(Box::new(layer)))
    }

    /// Cancels the running turn: [`SandboxAgentClient::cancel`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the turn does not stop in time.
    pub fn cancel(&self) -> BoxFuture<'static, Result<(), Error>> {
        self.client.cancel(self.id())
    }

    /// What the session is doing, as far as this client knows.
    #[must_use]
    pub fn turn_state(&self) -> TurnState {
        *self.client.inner().hub.watch_turn(&self.id).borrow()
    }

    /// How it ended, if it has and has not been taken up again.
    #[must_use]
    pub fn termination(&self) -> Option<TerminationInfo> {
        self.client.inner().hub.ended(&self.id)
    }

    /// What happens in it: what came while nobody listened (before the answer that made it, or between turns), and
    /// everything from now on.
    pub fn events(&self) -> Events {
        self.client.inner().hub.subscribe_session(&self.id)
    }

    /// Sets its mode; where the agent has an option for that instead, by the option.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has neither.
    pub fn set_mode(&self, mode: impl Into<String>) -> BoxFuture<'static, Result<(), Error>> {
        let mode = mode.into();
        self.or_by_option(self.client.set_mode_by_method(self.id(), mode.clone()), "mode", mode)
    }

    /// Sets its model; where the agent has an option for that instead, by the option.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has neither.
    pub fn set_model(&self, model: impl Into<String>) -> BoxFuture<'static, Result<(), Error>> {
        let model = model.into();
        self.or_by_option(self.client.set_model_by_method(self.id(), model.clone()), "model", model)
    }

    fn or_by_option(
        &self,
        call: BoxFuture<'static, Result<(), Error>>,
        category: &'static str,
        value: String,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let session = self.clone();
        Box::pin(async move {
            match call.await {
                Err(Error::Unsupported { method }) => {
                    session.set_by_category(category, value, &method).await.map(drop)
                }
                other => other,
            }
        })
    }

    /// Sets how hard the agent thinks, by its option for that.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has none.
    pub fn set_thought_level(
        &self,
        level: impl Into<String>,
    ) -> BoxFuture<'static, Result<Vec<ConfigOption>, Error>> {
        let (session, level) = (self.clone(), level.into());
        Box::pin(async move { session.set_by_category("thought_level", level, SET_OPTION).await })
    }

    async fn set_by_category(
        &self,
        category: &str,
        value: String,
        method: &str,
    ) -> Result<Vec<ConfigOption>, Error> {
        let snapshot = self.snapshot();
        let option = snapshot.option_for(category);
        let option = option.ok_or_else(|| Error::Unsupported { method: method.to_owned() })?;
        self.set_config_option(&option.id, value).await
    }

    /// Sets one of its options.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has no options.
    pub fn set_config_option(
        &self,
        option: impl Into<String>,
        value: impl Into<Value>,
    ) -> BoxFuture<'static, Result<Vec<ConfigOption>, Error>> {
        self.client.set_session_config_option(self.id(), option, value)
    }

    /// Changes its metadata: [`SandboxAgentClient::set_metadata`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server keeps no metadata.
    pub fn set_metadata(&self, metadata: SessionMetadata) -> BoxFuture<'static, Result<(), Error>> {
        self.client.set_metadata(self.id(), metadata)
    }

    /// The models it can work with.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server does not know.
    pub fn list_models(&self) -> BoxFuture<'static, Result<ModelList, Error>> {
        self.client.list_models(Some(self.id()))
    }

    /// What the server knows about it.
    ///
    /// # Errors
    /// As [`SandboxAgentClient::get_session`].
    pub fn info(&self) -> BoxFuture<'static, Result<SessionInfo, Error>> {
        self.client.get_session(self.id())
    }

    /// Makes a copy of it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot fork sessions.
    pub fn fork(&self, new: NewSession) -> BoxFuture<'static, Result<Self, Error>> {
        self.client.fork_session(self.id(), new)
    }

    /// Loads it again from the agent's own history, which is in [`history`](Self::history) of the session that is
    /// returned: for a turn of which something is missing.
    ///
    /// # Errors
    /// [`Error::Config`] if this client has neither created nor loaded it, [`Error::Unsupported`] if the agent cannot
    /// load sessions.
    pub fn reload(&self) -> BoxFuture<'static, Result<Self, Error>> {
        let (client, id) = (self.client.clone(), self.id.to_string());
        let opened = client.inner().hub.opened_with(&id);
        Box::pin(async move {
            let opened = opened.ok_or_else(|| {
                Error::config(format!(
                    "session `{id}` was not opened by this client: its directory is not known"
                ))
            })?;
            client.load_session(id, (*opened).clone()).await
        })
    }

    /// Leaves it without ending it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server cannot do that.
    pub fn detach(&self) -> BoxFuture<'static, Result<(), Error>> {
        self.client.detach_session(self.id())
    }

    /// Ends it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server cannot do that.
    pub fn terminate(&self) -> BoxFuture<'static, Result<TerminateResult, Error>> {
        self.client.terminate_session(self.id())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}
