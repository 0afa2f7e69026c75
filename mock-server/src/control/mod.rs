//! Everything beside the agents' own protocol: health, the agent catalogue, files and configuration.
//!
//! Statuses, content types and problems are those of the released server, with these deliberate
//! differences:
//!
//! - Files live under a root directory of the server's own. A path is a virtual one: `/a/b` and `a/b` both
//!   name `ROOT/a/b`, answers show it as `/a/b`, and the home directory is `/`. A path that leads out of
//!   the root, by `..` or by a symbolic link, is refused with 400 `invalid_request`.
//! - Reads and writes are streamed, so their size is bounded by the body limit and the disk, not by
//!   memory. A write becomes visible as a whole: a request that breaks off leaves the old file as it was.
//! - A move checks its source before it touches an existing target, and a target that was to be replaced
//!   comes back when the move fails.
//! - The root itself can neither be deleted nor moved.
//! - Changes to one configuration file are made one after the other.
//! - Installing an agent records that it is installed; nothing is downloaded.

mod agents;
mod catalog;
mod config;
mod extract;
mod files;
mod plane;

pub use catalog::AGENT_IDS;
pub use plane::{ControlPlane, ControlPlaneBuilder, DEFAULT_BODY_LIMIT};
