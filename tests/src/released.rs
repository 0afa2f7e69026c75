//! The released server as a process, with its own data folder and port.

mod npm;
mod process;

pub use npm::{binary, typescript_sdk};
pub use process::{ReleasedServer, ReleasedSetup, install_agent, install_agent_as, is_alive};
