//! The entry point of the control plane.

use super::agents::Agents;
use super::builder::ControlPlaneBuilder;
use super::config::Configuration;
use super::desktop::Desktop;
use super::files::Files;
use super::health::HealthCheck;
use super::http::Http;
use super::processes::Processes;
use super::route::Route;
use crate::{Error, SandboxAgentClient};

/// The control plane of a server: everything except sessions. Cheap to clone; needs no connection.
///
/// ```no_run
/// # async fn example() -> Result<(), sandbox_agent_sdk::Error> {
/// use sandbox_agent_sdk::control::{ControlPlane, HealthWait};
///
/// let server = ControlPlane::builder("http://127.0.0.1:2468").token("secret").build()?;
/// server.health().wait(HealthWait::default()).await?;
/// server.files().write("/work/notes.txt", "to be read by the agent").await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ControlPlane {
    http: Http,
}

impl ControlPlane {
    /// Creates a builder for the control plane of the server at this URL.
    pub fn builder(base_url: impl AsRef<str>) -> ControlPlaneBuilder {
        ControlPlaneBuilder::new(base_url.as_ref())
    }

    /// Creates the control plane of a server without a token, with default settings.
    ///
    /// # Errors
    /// [`Error::Config`] if `base_url` is not a valid server URL.
    pub fn new(base_url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(base_url).build()
    }

    pub(super) fn over(http: Http) -> Self {
        Self { http }
    }

    /// Returns the HTTP layer, for requests that belong to no group here.
    pub(crate) fn http(&self) -> &Http {
        &self.http
    }

    /// Returns the URL of the server's inspector page. It does not contain the token.
    #[must_use]
    pub fn inspector_url(&self) -> String {
        self.http.address(&Route::new("/ui/")).into()
    }

    /// Returns a handle that checks the health of the server.
    #[must_use]
    pub fn health(&self) -> HealthCheck {
        HealthCheck::new(self.http.clone())
    }

    /// Returns a handle that lists and installs agents.
    #[must_use]
    pub fn agents(&self) -> Agents {
        Agents::new(self.http.clone())
    }

    /// Returns a handle that reads and writes files of the server's machine.
    #[must_use]
    pub fn files(&self) -> Files {
        Files::new(self.http.clone())
    }

    /// Returns a handle that stores MCP servers and skills by directory.
    #[must_use]
    pub fn config(&self) -> Configuration {
        Configuration::new(self.http.clone())
    }

    /// Returns a handle that runs processes on the server's machine.
    #[must_use]
    pub fn processes(&self) -> Processes {
        Processes::new(self.http.clone())
    }

    /// Returns a handle that controls the desktop of the server's machine.
    #[must_use]
    pub fn desktop(&self) -> Desktop {
        Desktop::new(self.http.clone())
    }
}

/// These methods need only the control plane, so they live here and not with the client.
impl SandboxAgentClient {
    /// Returns a handle that runs processes on the server's machine. It needs no connection.
    #[must_use]
    pub fn processes(&self) -> Processes {
        self.control().processes()
    }

    /// Returns a handle that controls the desktop of the server's machine. It needs no connection.
    #[must_use]
    pub fn desktop(&self) -> Desktop {
        self.control().desktop()
    }
}
