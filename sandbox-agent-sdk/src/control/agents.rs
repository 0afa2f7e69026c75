//! Lists and installs the agents of a server.

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

/// Lists and installs the agents that a server can run.
#[derive(Debug, Clone)]
pub struct Agents {
    http: Http,
}

/// The level of detail in a list of agents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
pub struct AgentDetail {
    config: bool,
    fresh: bool,
}

impl AgentDetail {
    /// Selects names, installation states and capabilities only.
    pub fn brief() -> Self {
        Self::default()
    }

    /// Selects everything in [`brief`](Self::brief), plus versions, paths and session options. Slower on the server.
    pub fn full() -> Self {
        Self { config: true, fresh: false }
    }

    /// Makes the server refresh the information instead of using its cache.
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

    /// Lists all agents in the server's order, with [brief](AgentDetail::brief) details.
    pub fn list(&self) -> BoxFuture<'static, Result<Vec<AgentInfo>, Error>> {
        self.list_with(AgentDetail::brief())
    }

    /// Lists all agents in the server's order, with the given level of detail.
    pub fn list_with(&self, detail: AgentDetail) -> BoxFuture<'static, Result<Vec<AgentInfo>, Error>> {
        let call = Call::new("list agents", Method::GET, detail.ask(Route::new(AGENTS)));
        self.http.value::<AgentList>(Ok(call)).map(|list| list.map(|list| list.agents)).boxed()
    }

    /// Returns one agent with [full](AgentDetail::full) details.
    ///
    /// # Errors
    /// [`Error::UnsupportedAgent`] if the server does not know the agent.
    pub fn get(&self, agent: &str) -> BoxFuture<'static, Result<AgentInfo, Error>> {
        self.get_with(agent, AgentDetail::full())
    }

    /// Returns one agent with the given level of detail.
    ///
    /// # Errors
    /// [`Error::UnsupportedAgent`] if the server does not know the agent.
    pub fn get_with(&self, agent: &str, detail: AgentDetail) -> BoxFuture<'static, Result<AgentInfo, Error>> {
        let route = Route::new(AGENTS).segment(agent).map(|route| detail.ask(route));
        self.http.value(route.map(|route| Call::new("get agent", Method::GET, route)))
    }

    /// Lists the agents that were started. Only released servers have this list.
    ///
    /// On released servers every connection has its own agent.
    ///
    /// # Errors
    /// An error whose [`is_not_found`](Error::is_not_found) is true if the server has no such list.
    pub fn running(&self) -> BoxFuture<'static, Result<Vec<RunningAgent>, Error>> {
        let call = Call::new("list running agents", Method::GET, Route::new(RUNNING));
        self.http.value::<RunningAgents>(Ok(call)).map(|list| list.map(|list| list.servers)).boxed()
    }

    /// Installs an agent unless it is already installed. See [`Installation`] for how to wait.
    pub fn install(&self, agent: &str) -> Installation {
        self.install_with(agent, InstallOptions::new())
    }

    /// Installs an agent with options.
    pub fn install_with(&self, agent: &str, options: InstallOptions) -> Installation {
        let limit = self.http.timeouts().install;
        let call =
            Route::new(AGENTS).segment(agent).and_then(|route| route.segment("install")).and_then(|route| {
                Call::new("install agent", Method::POST, route).response_timeout(limit).json(&options)
            });
        Installation::new(agent, self.http.value(call))
    }
}
