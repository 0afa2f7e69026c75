//! One session.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::handle::SandboxAgentClient;
use super::hub::SessionHandle;
use super::names::SET_OPTION;
use super::stream::PromptLayer;
use super::turn::Turn;
use crate::session::{ModelList, SessionInfo, SessionMetadata, SessionSnapshot, TerminateResult};
use crate::update::ConfigOption;
use crate::{Error, Events, NewSession, Prompt, TerminationInfo, Update};

/// The state of a session's turn, as far as this client knows.
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

/// A handle to a session. It is cheap to clone and keeps its client alive.
#[derive(Clone)]
pub struct Session {
    client: SandboxAgentClient,
    id: Arc<str>,
    /// The response that created it; `null` for a handle that was created from an id.
    answer: Arc<Value>,
    history: Arc<[Update]>,
    /// Keeps the state of the session.
    _handle: Arc<SessionHandle>,
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
        let handle = client.inner().hub.name(&id);
        Self {
            client,
            id: id.into(),
            answer: Arc::new(answer),
            history: history.into(),
            _handle: Arc::new(handle),
        }
    }

    /// Adds what the agent replayed before its response.
    pub(super) fn with_history(self, history: Vec<Update>) -> Self {
        Self { history: history.into(), ..self }
    }

    /// Returns the session id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the client of the session.
    #[must_use]
    pub fn client(&self) -> &SandboxAgentClient {
        &self.client
    }

    /// Returns the history that the agent sent when the session was loaded or forked.
    #[must_use]
    pub fn history(&self) -> &[Update] {
        &self.history
    }

    /// Returns the current state of the session: modes, models, options, commands, tools, title and metadata.
    ///
    /// The returned snapshot does not change; call this again for a newer one.
    #[must_use]
    pub fn snapshot(&self) -> Arc<SessionSnapshot> {
        self.client.inner().hub.snapshot(&self.id)
    }

    /// Returns the raw response that created, loaded or resumed the session.
    #[must_use]
    pub fn raw(&self) -> &Value {
        &self.answer
    }

    /// Returns the current options of the session.
    #[must_use]
    pub fn config_options(&self) -> Vec<ConfigOption> {
        self.snapshot().config_options.clone()
    }

    /// Sends a prompt, which starts a turn.
    ///
    /// The turn starts immediately and runs whether or not its updates are read. A session has one turn at a time: a
    /// prompt during a turn fails with [`Error::TurnInProgress`]. After a cancelled or dropped turn, the prompt waits
    /// until that turn has stopped. It also waits while a call loads the session.
    pub fn prompt(&self, prompt: impl Into<Prompt>) -> Turn {
        Turn::start(self.clone(), &prompt.into(), None)
    }

    /// Calls `before` with the request id of the prompt, then sends the prompt.
    ///
    /// Use it to store a prompt before it is sent: the response in the [stream](crate::stream) has the same id. If
    /// `before` fails, the prompt is not sent, and the turn fails with the same error.
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

    /// Sends a prompt through a layer. The layer can store the prompt before it is sent, and can resend it.
    pub fn prompt_with(&self, prompt: impl Into<Prompt>, layer: impl PromptLayer) -> Turn {
        Turn::start(self.clone(), &prompt.into(), Some(Box::new(layer)))
    }

    /// Cancels the running turn. See [`SandboxAgentClient::cancel`].
    ///
    /// Text that the agent sends after it has reported the end of the turn may become part of the next [`Turn`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the turn does not stop within
    /// [`ClientTimeouts::cancel`](crate::ClientTimeouts#structfield.cancel).
    pub fn cancel(&self) -> BoxFuture<'static, Result<(), Error>> {
        self.client.cancel(self.id())
    }

    /// Returns whether a turn of this client is running or being cancelled.
    #[must_use]
    pub fn turn_state(&self) -> TurnState {
        *self.client.inner().hub.watch_turn(&self.id).borrow()
    }

    /// Returns how the session ended; `None` while it is active.
    ///
    /// Also returns `None` if the session was loaded or resumed after its end.
    #[must_use]
    pub fn termination(&self) -> Option<TerminationInfo> {
        self.client.inner().hub.ended(&self.id)
    }

    /// Subscribes to the events of the session.
    ///
    /// The subscription starts with buffered events that no subscriber and no turn has received: events that arrived
    /// before the response that created the session, and events between turns.
    pub fn events(&self) -> Events {
        self.client.inner().hub.subscribe_session(&self.id)
    }

    /// Sets the mode. If the agent has a mode option instead of modes, this sets that option.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has neither modes nor a mode option.
    pub fn set_mode(&self, mode: impl Into<String>) -> BoxFuture<'static, Result<(), Error>> {
        let mode = mode.into();
        self.or_by_option(self.client.set_mode_by_method(self.id(), mode.clone()), "mode", mode)
    }

    /// Sets the model. If the agent has a model option instead of models, this sets that option.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has neither models nor a model option.
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

    /// Sets the thought level, through the agent's option of that category.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent has no such option.
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

    /// Sets an option of the session.
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

    /// Changes the metadata. See [`SandboxAgentClient::set_metadata`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server does not store metadata.
    pub fn set_metadata(&self, metadata: SessionMetadata) -> BoxFuture<'static, Result<(), Error>> {
        self.client.set_metadata(self.id(), metadata)
    }

    /// Returns the models that the session can use.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server cannot list models.
    pub fn list_models(&self) -> BoxFuture<'static, Result<ModelList, Error>> {
        self.client.list_models(Some(self.id()))
    }

    /// Returns the server's record of the session.
    ///
    /// # Errors
    /// The errors of [`SandboxAgentClient::get_session`].
    pub fn info(&self) -> BoxFuture<'static, Result<SessionInfo, Error>> {
        self.client.get_session(self.id())
    }

    /// Forks the session.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot fork sessions.
    pub fn fork(&self, new: NewSession) -> BoxFuture<'static, Result<Self, Error>> {
        self.client.fork_session(self.id(), new)
    }

    /// Loads the session again to recover lost updates.
    ///
    /// [`history`](Self::history) of the returned session is the agent's own history. Success does not mean that the
    /// missing updates are in it: agents may replay less than they reported. Compare the history with what you
    /// received.
    ///
    /// # Errors
    /// [`Error::Config`] if this client has neither created nor loaded the session, [`Error::Unsupported`] if the agent
    /// cannot load sessions, [`Error::TurnInProgress`] if a turn of this client is running in the session.
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

    /// Detaches from the session without ending it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server cannot detach clients.
    pub fn detach(&self) -> BoxFuture<'static, Result<(), Error>> {
        self.client.detach_session(self.id())
    }

    /// Ends the session.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if neither the server nor the agent can end a session.
    pub fn terminate(&self) -> BoxFuture<'static, Result<TerminateResult, Error>> {
        self.client.terminate_session(self.id())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}
