//! What the integration tests share: clients for the mock server, a database, and waiting with a limit.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod collect;
mod limit;
mod postgres;
mod script;

pub use collect::{Collected, collect_until, texts};
pub use limit::{LIMIT, eventually, within};
pub use postgres::{Cluster, Schema};
pub use script::{acp_server, client, handshake, numbered, prompt, session};
