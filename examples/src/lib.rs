//! Shared parts of the examples: a server, a database, and the chat.

use std::env;

use mock_server::{Builder, MockServer};
use sandbox_agent_sdk::{ClientOptions, SandboxAgentClient};

pub mod agents;
pub mod chat;
mod postgres;
pub mod remote_shell;

pub use postgres::{Cluster, Schema};

/// Creates a token for an embedded server. Any process of this machine can connect to its port, and the server runs
/// commands and serves files, so only this program may use it.
pub(crate) fn random_token() -> Result<String, String> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(|error| format!("no random bytes: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The server at `SANDBOX_AGENT_URL`, or an embedded one that lives as long as this value.
#[derive(Debug)]
pub struct Server {
    /// The URL of the server.
    pub url: String,
    /// The token, from `SANDBOX_AGENT_TOKEN`.
    pub token: Option<String>,
    /// The agent: `SANDBOX_AGENT_AGENT`, or `mock`.
    pub agent: String,
    /// The embedded server, if there is one.
    pub embedded: Option<MockServer>,
}

impl Server {
    /// Returns the server of the environment, or starts an embedded one.
    pub async fn find() -> Self {
        Self::find_or_start(MockServer::builder()).await
    }

    /// Returns the server of the environment, or starts this embedded one.
    pub async fn find_or_start(embedded: Builder) -> Self {
        let token = env::var("SANDBOX_AGENT_TOKEN").ok();
        let agent = env::var("SANDBOX_AGENT_AGENT").unwrap_or_else(|_| "mock".to_owned());
        match env::var("SANDBOX_AGENT_URL") {
            Ok(url) => Self { url, token, agent, embedded: None },
            Err(_) => {
                let server = embedded.start().await;
                Self { url: server.url(), token, agent: "mock".to_owned(), embedded: Some(server) }
            }
        }
    }

    /// Returns the options of a client for the agent of this server.
    pub fn options(&self) -> ClientOptions {
        let options = SandboxAgentClient::builder(&self.url).agent(&self.agent);
        match &self.token {
            Some(token) => options.token(token),
            None => options,
        }
    }
}
