//! An external server: the one at `SANDBOX_AGENT_URL`.
//!
//! The tests must not kill it and do not know its limits or its agent. Every other behaviour is tested.

use std::{
    env,
    sync::{Arc, LazyLock},
};

use sandbox_agent_sdk::{ClientTimeouts, SandboxAgentClient, ServerKind};
use sdk_tests::{say_not_run, within};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{
    peer::CLOSE,
    server::{Layout, Setup},
};

/// The behaviours that are not tested on such a server, with the reason. All others are tests of its row.
pub(super) const NOT_APPLICABLE: [(&str, &str); 4] = [
    (
        "a_server_that_is_killed_and_restarted_fails_the_turn_and_can_be_used_again",
        "an external server is not killed",
    ),
    ("the_prompt_after_an_idle_restart_fails_and_has_not_run", "an external server is not killed"),
    ("a_stored_session_continues_after_its_server_was_killed", "an external server is not killed"),
    ("a_turn_of_a_killed_program_gets_its_permission_and_its_end", "its agent may not request a permission"),
];

/// The name of the agent that obeys the directives of this suite.
const STUB_NAME: &str = "stub-agent";

/// Serializes the tests of an external server. Otherwise a flood of one test could push the events of another test
/// out of a shared replay buffer.
static ALONE: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);

/// An external server.
#[derive(Debug)]
pub(crate) struct Given {
    url: String,
    token: Option<String>,
    agent: String,
    layout: Layout,
    obeys: bool,
    _alone: OwnedMutexGuard<()>,
}

impl Given {
    /// Examines the server. `None`, with a note on standard error, if the behaviour cannot be tested on it.
    pub(crate) async fn find(setup: &Setup) -> Option<Self> {
        let Some(url) = variable("SANDBOX_AGENT_URL") else {
            say_not_run(
                "SANDBOX_AGENT_URL is not set; servers::given_row runs this row on servers that it starts",
            );
            return None;
        };
        let alone = Arc::clone(&ALONE).lock_owned().await;
        let token = variable("SANDBOX_AGENT_TOKEN");
        let agent = variable("SANDBOX_AGENT_AGENT").unwrap_or_else(|| "mock".to_owned());
        let mut options = SandboxAgentClient::builder(&url)
            .agent(&agent)
            .auto_connect(false)
            .timeouts(ClientTimeouts::default().disconnect(CLOSE));
        if let Some(token) = &token {
            options = options.token(token);
        }
        let client = options.build().expect("valid options");
        let known = within("connecting to the external server", client.connect()).await;
        let known = known.expect("the server at SANDBOX_AGENT_URL has this agent and accepts this token");
        within("leaving it", client.disconnect()).await.expect("disconnecting does not fail");
        let layout = if known.server == ServerKind::PerAgent { Layout::PerAgent } else { Layout::Shared };
        let obeys = known.agent_name.as_deref() == Some(STUB_NAME);
        if !obeys && !setup.any_agent {
            say_not_run(
                "not applicable: the agent of this server does not obey the directives of the stub agent",
            );
            return None;
        }
        if setup.kills_agent && layout == Layout::Shared {
            say_not_run("not applicable: the test would kill an agent that other clients share");
            return None;
        }
        Some(Self { url, token, agent, layout, obeys, _alone: alone })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    pub(crate) fn agent(&self) -> &str {
        &self.agent
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether its agent obeys the directives of the stub agent.
    pub(crate) fn obeys(&self) -> bool {
        self.obeys
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
