//! The agents a server can run.

use futures::future::{BoxFuture, FutureExt};
use reqwest::Method;

use super::http::{Call, Http};
use super::installation::Installation;
use super::route::Route;
use crate::Error;
use crate::control::running::RunningAgents;
use crate::control::{AgentInfo, AgentList, InstallOptions, RunningAgent};

const AGENTS: &str = "/v1/agents";
const RUNNING: &str = "/v1/acp";

/// The agents a server can run: which there are, and installing them.
#[derive(Debug, Clone)]
pub struct Agents {
    http: Http,
}

/// How much is wanted to be known of agents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub struct AgentDetail {
    config: bool,
    fresh: bool,
}

impl AgentDetail {
    /// Which agents there are, whether they are installed and what they can do.
    pub fn brief() -> Self {
        Self::default()
    }

    /// Besides, their versions, paths and what can be set on their sessions. Takes the server longer.
    pub fn full() -> Self {
        Self { config: true, fresh: false }
    }

    /// Makes the server look again instead of answering from its memory.
    pub fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }

    fn ask(self, route: Route) -> Route {
        route.flag("config", self.config).flag("no_cache", self.fresh)
    }
}

impl Agents {
    pub(super) fn new(http: Http) -> Self {
        Self { http }
    }

    /// All of them, in the server's order, in brief.
    pub fn list(&self) -> BoxFuture<'static, Result<Vec<AgentInfo>, Error>> {
        self.list_with(AgentDetail::brief())
    }

    /// All of them, in the server's order.
    pub fn list_with(&self, detail: AgentDetail) -> BoxFuture<'static, Result<Vec<AgentInfo>, Error>> {
        let call = Call::new("list agents", Method::GET, detail.ask(Route::new(AGENTS)));
        self.http.value::<AgentList>(Ok(call)).map(|list| list.map(|list| list.agents)).boxed()
    }

    /// One of them, with everything there is to know. One that the server does not know is
    /// [`Error::UnsupportedAgent`].
    pub fn get(&self, agent: &str) -> BoxFuture<'static, Result<AgentInfo, Error>> {
        self.get_with(agent, AgentDetail::full())
    }

    /// One of them.
    pub fn get_with(&self, agent: &str, detail: AgentDetail) -> BoxFuture<'static, Result<AgentInfo, Error>> {
        let route = Route::new(AGENTS).segment(agent).map(|route| detail.ask(route));
        self.http.value(route.map(|route| Call::new("get agent", Method::GET, route)))
    }

    /// Those that were started, where every connection has an agent of its own: on released servers. Other servers do
    /// not have this list, and the error [says so](Error::is_not_found).
    pub fn running(&self) -> BoxFuture<'static, Result<Vec<RunningAgent>, Error>> {
        let call = Call::new("list running agents", Method::GET, Route::new(RUNNING));
        self.http.value::<RunningAgents>(Ok(call)).map(|list| list.map(|list| list.servers)).boxed()
    }

    /// Installs one of them, unless it is there. See [`Installation`] for how to wait.
    pub fn install(&self, agent: &str) -> Installation {
        self.install_with(agent, InstallOptions::new())
    }

    /// Installs one of them, as the options say.
    pub fn install_with(&self, agent: &str, options: InstallOptions) -> Installation {
        let limit = self.http.timeouts().install;
        let call =
            Route::new(AGENTS).segment(agent).and_then(|route| route.segment("install")).and_then(|route| {
                Call::new("install agent", Method::POST, route).answered_within(limit).json(&options)
            });
        Installation::new(agent, self.http.value(call))
    }
}
