//! Shared parts of the examples: a server, a database, and the chat.

use std::env;

use mock_server::MockServer;

pub mod agents;
pub mod chat;
mod postgres;
pub mod remote_shell;

pub use postgres::{Cluster, Schema};

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
        let token = env::var("SANDBOX_AGENT_TOKEN").ok();
        let agent = env::var("SANDBOX_AGENT_AGENT").unwrap_or_else(|_| "mock".to_owned());
        match env::var("SANDBOX_AGENT_URL") {
            Ok(url) => Self { url, token, agent, embedded: None },
            Err(_) => {
                let server = MockServer::start().await;
                Self { url: server.url(), token, agent: "mock".to_owned(), embedded: Some(server) }
            }
        }
    }
}
