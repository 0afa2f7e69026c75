//! Whatever `SANDBOX_AGENT_URL` points at: a server that is not ours.
//!
//! Nobody here may kill it, knows its limits, or can say which agent it has. It is asked for everything else.

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

/// The behaviours that are not shown on such a server, and why: each of the others is a test of its row.
pub(super) const NOT_APPLICABLE: [(&str, &str); 3] = [
    (
        "a_server_that_is_killed_and_restarted_fails_the_turn_and_can_be_used_again",
        "a server that is not ours is not killed",
    ),
    ("a_stored_session_continues_after_its_server_was_killed", "a server that is not ours is not killed"),
    ("a_turn_of_a_killed_program_gets_its_permission_and_its_end", "its agent may not ask for a permission"),
];

/// What the agent calls itself that obeys the words of this suite.
const STUB_NAME: &str = "stub-agent";

/// A server that is not ours is asked for one thing at a time. It is also what keeps a flood of one test from pushing the
/// events of another out of a ring that they share.
static ALONE: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);

/// A server that runs somewhere.
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
    /// Finds out what is there; `None`, with a word about it, where there is nothing that the behaviour can be shown
    /// with.
    pub(crate) async fn find(setup: &Setup) -> Option<Self> {
        let Some(url) = variable("SANDBOX_AGENT_URL") else {
            say_not_run(
                "SANDBOX_AGENT_URL points at no server; servers::given_row shows this row on servers of its own",
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
        let client = options.build().expect("options that can be used");
        let known = within("a look at the given server", client.connect()).await;
        let known =
            known.expect("SANDBOX_AGENT_URL points at a server that has this agent and takes this token");
        within("leaving it", client.disconnect()).await.expect("disconnecting does not fail");
        let layout = if known.server == ServerKind::PerAgent { Layout::PerAgent } else { Layout::Shared };
        let obeys = known.agent_name.as_deref() == Some(STUB_NAME);
        if !obeys && !setup.any_agent {
            say_not_run(
                "not applicable: the agent of this server is not the stub agent, whose words it takes",
            );
            return None;
        }
        if setup.kills_agent && layout == Layout::Shared {
            say_not_run(
                "not applicable: other clients of this server have the same agent, which would be killed",
            );
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

    /// Whether its agent does what the words of the stub agent say.
    pub(crate) fn obeys(&self) -> bool {
        self.obeys
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
