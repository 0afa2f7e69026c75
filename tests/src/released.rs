//! The released server, as a process with a data folder and a port of its own.

mod npm;
mod process;

pub use npm::{binary, typescript_sdk};
pub use process::{ReleasedServer, ReleasedSetup, install_agent, install_agent_as, is_alive};
