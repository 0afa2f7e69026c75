//! The one value that everything else hangs on.

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

/// What a server offers besides its agents' conversations. Cheap to clone; needs no connection.
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
    /// Starts setting up the control plane of the server at this URL.
    pub fn builder(base_url: impl AsRef<str>) -> ControlPlaneBuilder {
        ControlPlaneBuilder::new(base_url.as_ref())
    }

    /// The control plane of a server that wants no token, with every setting at its default.
    ///
    /// # Errors
    /// [`Error::Config`] if this is no URL of a server.
    pub fn new(base_url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(base_url).build()
    }

    pub(super) fn over(http: Http) -> Self {
        Self { http }
    }

    /// What sends the requests, for those that have no group here.
    pub(crate) fn http(&self) -> &Http {
        &self.http
    }

    /// The page of the server on which people watch its agents. The token is not in it.
    #[must_use]
    pub fn inspector_url(&self) -> String {
        self.http.address(&Route::new("/ui/")).into()
    }

    /// Whether the server is up.
    #[must_use]
    pub fn health(&self) -> HealthCheck {
        HealthCheck::new(self.http.clone())
    }

    /// The agents the server can run.
    #[must_use]
    pub fn agents(&self) -> Agents {
        Agents::new(self.http.clone())
    }

    /// The files of the server's machine.
    #[must_use]
    pub fn files(&self) -> Files {
        Files::new(self.http.clone())
    }

    /// What is configured for directories of the server's machine.
    #[must_use]
    pub fn config(&self) -> Configuration {
        Configuration::new(self.http.clone())
    }

    /// Processes on the server's machine.
    #[must_use]
    pub fn processes(&self) -> Processes {
        Processes::new(self.http.clone())
    }

    /// The desktop of the server's machine.
    #[must_use]
    pub fn desktop(&self) -> Desktop {
        Desktop::new(self.http.clone())
    }
}

/// Here and not beside the other methods of the client, because these need nothing of it but its control plane.
impl SandboxAgentClient {
    /// Processes on the server's machine. It works without a connection.
    #[must_use]
    pub fn processes(&self) -> Processes {
        self.control().processes()
    }

    /// The desktop of the server's machine. It works without a connection.
    #[must_use]
    pub fn desktop(&self) -> Desktop {
        self.control().desktop()
    }
}
