//! `/v1/fs`: real files under a root directory.

mod entry;
mod path;
mod root;
mod routes;
mod unpack;
mod write;

pub(super) use path::VirtualPath;
pub(super) use root::{Root, problem};
pub(super) use routes::router;
