//! Real coding agents from npm, run without network against a [scripted model](crate::model).

mod home;
mod isolate;
mod mcp;
mod package;

pub use home::{AgentHome, HomeOptions, KEY, Login};
pub use isolate::Isolation;
pub use mcp::{mcp_listed, mcp_server, node};
pub use package::RealAgent;
