//! The control plane: its settings, its state and its routes.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{Json, Router, extract::DefaultBodyLimit, routing::get};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{agents, catalog::Catalog, config, desktop, files, processes};
use crate::problem::Problem;

/// The default limit of a request body: 2 MiB, as in the released server.
pub const DEFAULT_BODY_LIMIT: usize = 2 * 1024 * 1024;

/// Health, agents, files, configuration, processes and terminals behind one router.
///
/// Clones share their state. The files are in a temporary directory that is removed with the last clone,
/// unless a root was given. Authentication and unknown paths are left to the surrounding server.
///
/// # Differences from the released server
/// Statuses, content types and problems are those of the released server, with these deliberate differences:
///
/// - Files are under a root directory. Paths are virtual: `/a/b` and `a/b` both refer to `ROOT/a/b`,
///   responses show `/a/b`, and the home directory is `/`. A path that leads outside the root, by `..` or by
///   a symbolic link, is rejected with 400 `invalid_request`.
/// - Reads and writes are streamed, so their size is limited by the body limit and the disk, not by memory. A
///   write is atomic: an aborted request leaves the old file unchanged.
/// - A move checks its source before it touches an existing target, and restores the target if the move
///   fails.
/// - The root itself can neither be deleted nor moved.
/// - Changes of one configuration file are serialized.
/// - Processes are real processes of this machine with the rights of this program. They are not confined to
///   the root: only their working directory is a virtual path. They start in the root by default, `HOME` is
///   the root, and they end with the server. [`ControlPlaneBuilder::processes`] turns them off.
/// - An exited process is reported when its output is drained, at most half a second after its exit, as in
///   releases from 0.5.5 on. The output of a terminal does not end with the text of an I/O error.
/// - `run` kills the whole process group of the command on a timeout.
/// - A reader of logs loses only entries that were dropped from the log.
/// - The desktop is never installed.
/// - Installing an agent only records the installation; nothing is downloaded.
///
/// # Example
/// ```
/// # fn main() -> std::io::Result<()> {
/// let control = mock_server::ControlPlane::builder().installed(["mock", "claude"]).build()?;
/// std::fs::write(control.root().join("notes.txt"), "seen by clients as /notes.txt")?;
/// let router: axum::Router = control.router();
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ControlPlane {
    shared: Arc<Shared>,
}

/// The state that the routes share.
pub(super) struct Shared {
    pub(super) catalog: Catalog,
    pub(super) files: files::Root,
    pub(super) config: config::Store,
    pub(super) processes: processes::Processes,
    /// The limit of a request body.
    pub(super) body_limit: usize,
    /// Returns how long the server of an agent has been running, if there is one.
    pub(super) uptime: Box<Uptime>,
}

type Uptime = dyn Fn(&str) -> Option<Duration> + Send + Sync;

/// Builds a [`ControlPlane`].
#[must_use]
pub struct ControlPlaneBuilder {
    root: Option<PathBuf>,
    body_limit: usize,
    installed: Vec<String>,
    own_agents: Vec<String>,
    processes: bool,
    uptime: Box<Uptime>,
}

impl ControlPlane {
    /// Creates a builder with default settings.
    ///
    /// The root is a temporary directory, the body limit is 2 MiB, and only `mock` is installed.
    pub fn builder() -> ControlPlaneBuilder {
        ControlPlaneBuilder {
            root: None,
            body_limit: DEFAULT_BODY_LIMIT,
            installed: vec!["mock".to_owned()],
            own_agents: Vec::new(),
            processes: true,
            uptime: Box::new(|_| None),
        }
    }

    /// Returns the directory that clients see as `/`.
    pub fn root(&self) -> &Path {
        self.shared.files.path()
    }

    /// Returns whether an agent is installed. `false` for an unknown agent.
    pub fn is_installed(&self, agent: &str) -> bool {
        self.shared.catalog.is_installed(agent)
    }

    /// Sets whether an agent is installed.
    pub fn set_installed(&self, agent: &str, installed: bool) {
        self.shared.catalog.set_installed(agent, installed);
    }

    /// Makes later installations of an agent fail. `stderr` is the installer's output.
    pub fn fail_install(&self, agent: &str, stderr: impl Into<String>) {
        self.shared.catalog.fail_install(agent, stderr.into());
    }

    /// Returns all agents in the format of `GET /v1/agents`.
    pub(crate) fn agent_infos(&self) -> Vec<Value> {
        agents::infos(&self.shared, &agents::Detail::default())
    }

    /// Installs an agent, like `POST /v1/agents/{agent}/install` with this body.
    pub(crate) fn install(&self, agent: &str, body: &Value) -> Result<Value, Problem> {
        let body = Deserialize::deserialize(body)
            .map_err(|error: serde_json::Error| Problem::invalid_request(error.to_string()))?;
        agents::installed(&self.shared, agent, &body)
    }

    /// Returns the routes: `/`, `/v1/health`, `/v1/agents…`, `/v1/fs/…`, `/v1/config/…`, `/v1/processes…` and
    /// `/v1/desktop/…`.
    pub fn router(&self) -> Router {
        let processes = if self.shared.processes.are_served() { processes::router() } else { Router::new() };
        Router::new()
            .merge(processes)
            .merge(desktop::router())
            .route("/", get(root))
            .route("/v1/health", get(health))
            .merge(agents::router())
            .merge(files::router())
            .merge(config::router())
            .layer(DefaultBodyLimit::max(self.shared.body_limit))
            .with_state(Arc::clone(&self.shared))
    }
}

impl ControlPlaneBuilder {
    /// Serves the files of this existing directory, which is not removed.
    pub fn root(mut self, directory: impl Into<PathBuf>) -> Self {
        self.root = Some(directory.into());
        self
    }

    /// Sets the limit of a request body.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self
    }

    /// Sets the installed agents. The default is only `mock`.
    pub fn installed(mut self, agents: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.installed = agents.into_iter().map(Into::into).collect();
        self
    }

    /// Adds agents that the released server does not have.
    pub fn own_agents(mut self, agents: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.own_agents.extend(agents.into_iter().map(Into::into));
        self
    }

    /// Sets whether processes and terminals are served. On by default; if off, their paths are unknown.
    pub fn processes(mut self, on: bool) -> Self {
        self.processes = on;
        self
    }

    /// Sets a function that returns how long an agent's server has been running. `serverStatus` shows it.
    pub fn uptime(mut self, uptime: impl Fn(&str) -> Option<Duration> + Send + Sync + 'static) -> Self {
        self.uptime = Box::new(uptime);
        self
    }

    /// Opens the root, or creates a temporary one.
    ///
    /// # Errors
    /// The operating system's error if the root cannot be opened or created.
    pub fn build(self) -> io::Result<ControlPlane> {
        let files = match self.root {
            Some(directory) => files::Root::open(&directory)?,
            None => files::Root::temporary()?,
        };
        let shared = Shared {
            catalog: Catalog::new(self.installed, self.own_agents),
            config: config::Store::new(files.clone()),
            processes: processes::Processes::new(files.clone(), self.processes),
            files,
            body_limit: self.body_limit,
            uptime: self.uptime,
        };
        Ok(ControlPlane { shared: Arc::new(shared) })
    }
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ControlPlane").field("root", &self.root()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ControlPlaneBuilder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ControlPlaneBuilder")
            .field("root", &self.root)
            .field("body_limit", &self.body_limit)
            .field("installed", &self.installed)
            .field("own_agents", &self.own_agents)
            .finish_non_exhaustive()
    }
}

async fn root() -> Json<Value> {
    Json(json!({ "docs": "https://sandboxagent.dev", "name": "Sandbox Agent" }))
}

async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}
