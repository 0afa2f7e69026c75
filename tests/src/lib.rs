//! What the integration tests share: clients for the mock server, and waiting with a limit.

mod collect;
mod limit;
mod script;

pub use collect::{Collected, collect_until, texts};
pub use limit::{LIMIT, eventually, within};
pub use script::{acp_server, client, handshake, numbered, prompt, session};
