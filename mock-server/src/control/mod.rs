//! Everything beside the agents' own protocol: health, the agent catalogue, files and configuration.

mod agents;
mod catalog;
mod config;
mod extract;
mod files;
mod plane;

pub use catalog::AGENT_IDS;
pub use plane::{ControlPlane, ControlPlaneBuilder, DEFAULT_BODY_LIMIT};
