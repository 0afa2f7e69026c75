//! What the integration tests share: clients for the mock server, the released server as a process, a proxy that
//! records, a database, and waiting with a limit.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub mod agents;
mod collect;
pub mod fuzz;
pub mod kill;
mod limit;
pub mod model;
mod notice;
mod npm;
mod released;
mod scenario;
mod script;
pub mod sim;
mod wire;

pub use collect::{Collected, collect_until, texts};
pub use limit::{LIMIT, eventually, within};
pub use notice::say_not_run;
pub use npm::Unavailable;
pub use released::{
    ReleasedServer, ReleasedSetup, binary, install_agent, install_agent_as, is_alive, typescript_sdk,
};
pub use scenario::Scenario;
pub use script::{acp_server, client, handshake, numbered, prompt, session};
pub use sdk_examples::{Cluster, Schema};
pub use wire::{Capture, Entry, Pass, Proxy, Recorder, Replay};

/// The recipes of the page compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/sessions.md")]
struct SessionsPage;
