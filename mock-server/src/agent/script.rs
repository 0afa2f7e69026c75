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

/// One prompt, as a script sees it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Turn {
    /// The session that was prompted.
    pub session_id: String,
    /// All text blocks of the prompt, joined by newlines.
    pub text: String,
    /// Counts the prompts of this session from 1.
    pub number: usize,
    /// The parameters of the prompt, as they came.
    pub params: Value,
}

/// An agent whose behaviour is a Rust value.
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
    pub(super) hook: Option<Hook>,
    pub(super) initialize: Value,
    pub(super) session: Value,
    /// Counts sessions over all launches where no server does.
    sessions: Arc<AtomicU64>,
    session_ids: Arc<dyn Fn(u64) -> String + Send + Sync>,
    installed: bool,
}

impl Script {
    /// An agent that does `behaviour` with each prompt and then ends the turn.
    pub fn new(behaviour: impl Fn(&Turn) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self {
            behaviour: Arc::new(behaviour),
            history: Arc::new(|_| Vec::new()),
            replays_on_resume: false,
            hook: None,
            initialize: default_initialize(),
            session: default_session(),
            sessions: Arc::default(),
            session_ids: Arc::new(|number| format!("mock-session-{number}")),
            installed: true,
        }
    }

    /// An agent that does the same steps with each prompt.
    pub fn steps(steps: Vec<Step>) -> Self {
        Self::new(move |_| steps.clone())
    }

    /// What `session/load` streams before it answers, by session id: each value is an `update` member.
    #[must_use]
    pub fn history(mut self, history: impl Fn(&str) -> Vec<Value> + Send + Sync + 'static) -> Self {
        self.history = Arc::new(history);
        self
    }

    /// Whether `session/resume` streams the history too, as it should not.
    #[must_use]
    pub fn replays_on_resume(mut self, replays: bool) -> Self {
        self.replays_on_resume = replays;
        self
    }

    /// Takes over requests other than prompts: the closure gets method and parameters, and the steps it
    /// returns are played instead of the usual answer. [`Step::Finish`] gives the result.
    #[must_use]
    pub fn on_request(
        mut self,
        hook: impl Fn(&str, &Value) -> Option<Vec<Step>> + Send + Sync + 'static,
    ) -> Self {
        self.hook = Some(Arc::new(hook));
        self
    }

    /// The result of `initialize`; a protocol version in it is replaced by the client's, unless it is absent.
    #[must_use]
    pub fn initialize(mut self, result: Value) -> Self {
        self.initialize = result;
        self
    }

    /// The result of `session/new` and its kin, to which the session id is added.
    #[must_use]
    pub fn session(mut self, result: Value) -> Self {
        self.session = result;
        self
    }

    /// The ids of new sessions, by how many the server has had; an agent that was started again may reuse them.
    #[must_use]
    pub fn session_ids(mut self, id: impl Fn(u64) -> String + Send + Sync + 'static) -> Self {
        self.session_ids = Arc::new(id);
        self
    }

    /// Whether the agent counts as installed before anybody installs it.
    #[must_use]
    pub fn installed(mut self, installed: bool) -> Self {
        self.installed = installed;
        self
    }

    /// An id that no other session of the same server has, whichever agent it belongs to.
    pub(super) fn next_session_id(&self, outlet: &Outlet) -> String {
        let sessions = outlet.surroundings().sessions.as_ref().unwrap_or(&self.sessions);
        (self.session_ids)(sessions.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

impl Default for Script {
    /// The agent for use by hand: see [`text_triggers`].
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
