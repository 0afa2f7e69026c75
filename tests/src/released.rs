//! The released server, as a process with a data folder and a port of its own.

mod npm;
mod process;

pub use npm::{Unavailable, binary, typescript_sdk};
pub use process::{ReleasedServer, ReleasedSetup, install_agent, is_alive};
