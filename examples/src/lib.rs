//! What the examples share: a server to talk to, a database, and the chat, which has more than one file.

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
    /// Where it is.
    pub url: String,
    /// The token it wants, from `SANDBOX_AGENT_TOKEN`.
    pub token: Option<String>,
    /// The agent to talk to: `SANDBOX_AGENT_AGENT`, or `mock`.
    pub agent: String,
    /// The embedded server, if there is one.
    pub embedded: Option<MockServer>,
}

impl Server {
    /// Finds the server, or starts one.
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
