use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::instance::Instance;
use super::step::Step;
use super::trigger::text_triggers;
use super::{Agent, LaunchError, Outlet, Running};

type Behaviour = Arc<dyn Fn(&Turn) -> Vec<Step> + Send + Sync>;
type History = Arc<dyn Fn(&str) -> Vec<Value> + Send + Sync>;
type Hook = Arc<dyn Fn(&str, &Value) -> Option<Vec<Step>> + Send + Sync>;

/// One prompt, as passed to a script.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Turn {
    /// The session that was prompted.
    pub session_id: String,
    /// All text blocks of the prompt, joined by newlines.
    pub text: String,
    /// The number of this prompt within the session, from 1.
    pub number: usize,
    /// The raw parameters of the prompt.
    pub params: Value,
}

/// An agent whose behaviour is defined in Rust.
///
/// ```
/// use mock_server::{Script, Step};
///
/// let script = Script::new(|turn| match turn.number {
///     1 => vec![Step::Think("hm".into()), Step::Say(format!("you said {}", turn.text))],
///     _ => vec![Step::crash(3, ["out of ideas"])],
/// });
/// # let _ = script;
/// ```
#[derive(Clone)]
pub struct Script {
    pub(super) behaviour: Behaviour,
    pub(super) history: History,
    pub(super) replays_on_resume: bool,
    pub(super) ends_by_state: bool,
    pub(super) hook: Option<Hook>,
    pub(super) initialize: Value,
    pub(super) session: Value,
    /// Counts sessions across launches if no server does.
    sessions: Arc<AtomicU64>,
    session_ids: Arc<dyn Fn(u64) -> String + Send + Sync>,
    installed: bool,
}

impl Script {
    /// Creates an agent that plays the steps of `behaviour` for each prompt.
    ///
    /// The turn ends after the last step.
    pub fn new(behaviour: impl Fn(&Turn) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self {
            behaviour: Arc::new(behaviour),
            history: Arc::new(|_| Vec::new()),
            replays_on_resume: false,
            ends_by_state: false,
            hook: None,
            initialize: default_initialize(),
            session: default_session(),
            sessions: Arc::default(),
            session_ids: Arc::new(|number| format!("mock-session-{number}")),
            installed: true,
        }
    }

    /// Creates an agent that plays the same steps for each prompt.
    pub fn steps(steps: Vec<Step>) -> Self {
        Self::new(move |_| steps.clone())
    }

    /// Sets the history that `session/load` streams before it responds.
    ///
    /// The closure receives the session id. Each returned value is an `update` member.
    #[must_use]
    pub fn history(mut self, history: impl Fn(&str) -> Vec<Value> + Send + Sync + 'static) -> Self {
        self.history = Arc::new(history);
        self
    }

    /// Sets whether `session/resume` streams the history as well, which the protocol forbids.
    #[must_use]
    pub fn replays_on_resume(mut self, replays: bool) -> Self {
        self.replays_on_resume = replays;
        self
    }

    /// Sets whether turns end by a `state_update` instead of the response.
    ///
    /// The draft of version 2 of the protocol works like this. The response to a prompt then only confirms that the
    /// prompt was accepted.
    #[must_use]
    pub fn ends_by_state(mut self, ends: bool) -> Self {
        self.ends_by_state = ends;
        self
    }

    /// Overrides requests other than prompts.
    ///
    /// The closure receives the method and the parameters. The returned steps are played instead of the
    /// default response; [`Step::Finish`] sets the result.
    #[must_use]
    pub fn on_request(
        mut self,
        hook: impl Fn(&str, &Value) -> Option<Vec<Step>> + Send + Sync + 'static,
    ) -> Self {
        self.hook = Some(Arc::new(hook));
        self
    }

    /// Sets the result of `initialize`. A protocol version in it is replaced by the client's.
    #[must_use]
    pub fn initialize(mut self, result: Value) -> Self {
        self.initialize = result;
        self
    }

    /// Sets the result of `session/new`, `load`, `resume` and `fork`. The session id is added to it.
    #[must_use]
    pub fn session(mut self, result: Value) -> Self {
        self.session = result;
        self
    }

    /// Sets a function that creates the ids of new sessions.
    ///
    /// Its argument is the number of sessions on the server so far, including the new one. Use it to simulate an
    /// agent that reuses ids after a restart.
    #[must_use]
    pub fn session_ids(mut self, id: impl Fn(u64) -> String + Send + Sync + 'static) -> Self {
        self.session_ids = Arc::new(id);
        self
    }

    /// Sets whether the agent counts as installed from the start.
    #[must_use]
    pub fn installed(mut self, installed: bool) -> Self {
        self.installed = installed;
        self
    }

    /// Returns a session id that is unique on the server, across all agents.
    pub(super) fn next_session_id(&self, outlet: &Outlet) -> String {
        let sessions = outlet.surroundings().sessions.as_ref().unwrap_or(&self.sessions);
        (self.session_ids)(sessions.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

impl Default for Script {
    /// The interactive agent: see [`text_triggers`].
    fn default() -> Self {
        Self::new(text_triggers)
    }
}

impl Agent for Script {
    fn launch(&self, outlet: Outlet) -> BoxFuture<'static, Result<Arc<dyn Running>, LaunchError>> {
        let instance: Arc<dyn Running> = Arc::new(Instance::new(self.clone(), outlet));
        std::future::ready(Ok(instance)).boxed()
    }

    fn installed(&self) -> bool {
        self.installed
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Script").finish_non_exhaustive()
    }
}

fn default_initialize() -> Value {
    json!({
        "protocolVersion": 1,
        "agentCapabilities": {
            "loadSession": true,
            "promptCapabilities": { "image": true, "audio": true, "embeddedContext": true },
            "mcpCapabilities": { "http": true, "sse": true },
            "sessionCapabilities": { "list": {}, "resume": {}, "fork": {}, "close": {}, "delete": {} },
        },
        "authMethods": [],
        "agentInfo": { "name": "mock", "title": "Mock agent", "version": env!("CARGO_PKG_VERSION") },
    })
}

fn default_session() -> Value {
    json!({
        "modes": {
            "currentModeId": "build",
            "availableModes": [{ "id": "build", "name": "Build" }, { "id": "plan", "name": "Plan" }],
        },
        "configOptions": [{
            "id": "model",
            "name": "Model",
            "category": "model",
            "type": "select",
            "currentValue": "mock",
            "options": [{ "value": "mock", "name": "Mock" }, { "value": "mock-fast", "name": "Mock fast" }],
        }],
    })
}
