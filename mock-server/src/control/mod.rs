//! Everything except the agent protocol: health, agents, files, configuration, processes, terminals, and a
//! desktop that is not installed.

mod agents;
mod catalog;
mod config;
mod desktop;
mod extract;
mod files;
mod plane;
mod processes;

pub use catalog::AGENT_IDS;
pub(crate) use extract::Lifeline;
pub use plane::{ControlPlane, ControlPlaneBuilder, DEFAULT_BODY_LIMIT};
