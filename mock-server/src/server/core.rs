use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::agents::Agents;
use super::journal::Journal;
use super::tasks::{Panics, Tasks};
use crate::agent::{Agent, Answers, LaunchError, Outlet, Output, Running, Script, Surroundings};
use crate::control::AGENT_IDS;
use crate::fault::{Fault, Faults, Rule, RuleId, apply_to_log};
use crate::stream::{Log, StreamCount};

/// How `/v1/rpc` delivers the response to a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Echo {
    /// In the body and, after its updates, on the stream. This is the default of `/v1/rpc`.
    #[default]
    BodyAndStream,
    /// In the body only, like the early extension server.
    BodyOnly,
    /// On the stream only; the POST gets 202.
    StreamOnly,
}

/// The configuration of the server.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The agents by name.
    pub(crate) agents: BTreeMap<String, Arc<dyn Agent>>,
    /// The agent for `initialize` and `session/new` requests that name none.
    pub(crate) default_agent: Option<String>,
    /// How many messages each replay buffer holds.
    pub(crate) replay_buffer: usize,
    /// How long a stream may be silent before a heartbeat comment is sent.
    pub(crate) heartbeat: Duration,
    /// How long a request may wait for its agent.
    pub(crate) request_timeout: Duration,
    /// The body limit; `None` for the default of each endpoint.
    pub(crate) body_limit: Option<usize>,
    /// Where responses go on `/v1/rpc`.
    pub(crate) echo: Echo,
    /// The header that carries connection ids on `/v1/rpc`; `None` for a single shared connection.
    pub(crate) connection_ids: Option<String>,
    /// Whether `/v1/acp` hangs where the released server hangs.
    pub(crate) released_quirks: bool,
    /// Whether `/acp` sets a cookie at `initialize` and requires it afterwards.
    pub(crate) sticky_cookie: bool,
    /// Whether `/acp` requires `Acp-Session-Id` on responses to session-scoped agent requests.
    pub(crate) strict_session_header: bool,
    /// Whether `/v1/acp` rejects agents that were not installed before.
    pub(crate) require_preinstall: bool,
    /// The directory that clients see as `/`; `None` for a temporary one.
    pub(crate) files: Option<PathBuf>,
    /// Whether processes and terminals are served.
    pub(crate) processes: bool,
    /// Whether only requests to a local host name are served.
    pub(crate) local_hosts_only: bool,
}

/// State that lives as long as the server and survives restarts.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) faults: Arc<Faults>,
    pub(crate) journal: Journal,
    pub(crate) answers: Answers,
    pub(crate) panics: Panics,
    /// The agents that run.
    pub(crate) agents: Arc<Agents>,
    /// Work that outlives its request, such as executing a POST that was reset.
    pub(crate) background: Tasks,
    pub(crate) streams: StreamCount,
    pub(crate) tokens: Tokens,
    /// Counts the sessions of scripted agents, so that their ids are unique.
    sessions: Arc<AtomicU64>,
    /// All logs, for faults that act on all of them. Guards only the list.
    logs: Mutex<Vec<Weak<Log>>>,
    /// Immediate faults that were given before the first log existed.
    initial: Vec<Fault>,
    /// The agent for known names without a configured agent.
    fallback: Arc<dyn Agent>,
}

impl Core {
    pub(crate) fn new(config: Config, token: Option<String>, record: usize, rules: Vec<Rule>) -> Self {
        let panics = Panics::default();
        let faults = Arc::new(Faults::default());
        let mut initial = Vec::new();
        for rule in rules {
            if rule.fault().acts_at_once() {
                initial.push(rule.fault().clone());
            } else {
                faults.arm(rule);
            }
        }
        Self {
            config,
            faults,
            journal: Journal::new(record),
            answers: Answers::default(),
            agents: Arc::default(),
            background: Tasks::new(panics.clone()),
            panics,
            streams: StreamCount::default(),
            tokens: Tokens::new(token),
            sessions: Arc::default(),
            logs: Mutex::default(),
            initial,
            fallback: Arc::new(Script::default()),
        }
    }

    /// Returns the agent with this name. Known names without a configured agent get the default script.
    pub(crate) fn recipe(&self, name: &str) -> Option<Arc<dyn Agent>> {
        let own = self.config.agents.get(name).cloned();
        own.or_else(|| AGENT_IDS.contains(&name).then(|| Arc::clone(&self.fallback)))
    }

    /// Launches an agent whose output is passed to `sink`.
    pub(crate) async fn launch(
        &self,
        agent: &dyn Agent,
        sink: impl Fn(Output) + Send + Sync + 'static,
    ) -> Result<Arc<dyn Running>, LaunchError> {
        let number = self.agents.begin();
        let agents = Arc::downgrade(&self.agents);
        let outlet = Outlet::new(move |output| {
            let exits = matches!(output, Output::Exited(_));
            sink(output);
            if exits && let Some(agents) = agents.upgrade() {
                agents.remove(number);
            }
        });
        let launched = agent.launch(outlet.within(Surroundings {
            faults: Arc::clone(&self.faults),
            answers: self.answers.clone(),
            panics: self.panics.clone(),
            sessions: Some(Arc::clone(&self.sessions)),
        }));
        let launched = launched.await;
        match &launched {
            Ok(running) => self.agents.launched(number, running),
            Err(_) => self.agents.remove(number),
        }
        launched
    }

    /// Creates a log that faults can reach.
    pub(crate) fn new_log(&self) -> Arc<Log> {
        self.new_log_of(self.config.replay_buffer)
    }

    /// Creates a log with this capacity that faults can reach.
    pub(crate) fn new_log_of(&self, capacity: usize) -> Arc<Log> {
        let log = Arc::new(Log::new(capacity));
        for fault in &self.initial {
            apply_to_log(fault, &log);
            self.faults.count(fault);
        }
        let mut logs = self.lock_logs();
        logs.retain(|log| log.strong_count() > 0);
        logs.push(Arc::downgrade(&log));
        log
    }

    /// Returns all logs in use.
    pub(crate) fn logs(&self) -> Vec<Arc<Log>> {
        self.lock_logs().iter().filter_map(Weak::upgrade).collect()
    }

    /// Activates a rule, or applies an immediate fault.
    pub(crate) fn inject(&self, rule: Rule) -> RuleId {
        if !rule.fault().acts_at_once() {
            if matches!(rule.fault(), Fault::TokenExpiresAfter { .. }) {
                self.tokens.reset_counts();
            }
            return self.faults.arm(rule);
        }
        for log in self.logs() {
            apply_to_log(rule.fault(), &log);
        }
        self.faults.count(rule.fault());
        // A rule that never fires, so that the caller gets an id in any case.
        self.faults.arm(rule.times(0))
    }

    fn lock_logs(&self) -> MutexGuard<'_, Vec<Weak<Log>>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The accepted tokens.
pub(crate) struct Tokens {
    /// Guards both sets; held for a comparison.
    state: Mutex<TokenState>,
}

#[derive(Default)]
struct TokenState {
    /// Valid tokens; `None` means that no token is required.
    valid: Option<HashSet<String>>,
    /// Expired tokens.
    expired: HashSet<String>,
    /// For how many requests each token was accepted.
    used: BTreeMap<String, usize>,
}

impl Tokens {
    fn new(token: Option<String>) -> Self {
        let valid = token.map(|token| HashSet::from([token]));
        Self { state: Mutex::new(TokenState { valid, ..TokenState::default() }) }
    }

    /// Accepts this token from now on. Expired ones stay rejected.
    pub(crate) fn accept(&self, token: String) {
        let mut state = self.lock();
        state.expired.remove(&token);
        state.used.remove(&token);
        state.valid.get_or_insert_default().insert(token);
    }

    /// Resets the use counts of tokens.
    pub(crate) fn reset_counts(&self) {
        self.lock().used.clear();
    }

    /// Checks the bearer token of a request, if each token is valid for `limit` requests.
    pub(crate) fn admit(&self, token: Option<&str>, limit: Option<usize>) -> Admission {
        let mut state = self.lock();
        let Some(valid) = &state.valid else { return Admission::Passed };
        let Some(token) = token.filter(|token| valid.contains(*token) && !state.expired.contains(*token))
        else {
            return Admission::Refused;
        };
        let token = token.to_owned();
        let used = state.used.entry(token.clone()).or_default();
        if let Some(limit) = limit
            && *used >= limit
        {
            state.expired.insert(token);
            return Admission::Expired;
        }
        *used += 1;
        Admission::Passed
    }

    fn lock(&self) -> MutexGuard<'_, TokenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tokens").finish_non_exhaustive()
    }
}

/// The result of checking a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The token is valid.
    Passed,
    /// The token is missing or wrong.
    Refused,
    /// The token expired with this request.
    Expired,
}
