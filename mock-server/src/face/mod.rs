//! The endpoints of the server: thin routes over the hub and the agents.

mod accept;
mod official;
mod released;
mod rpc;
mod sessions;

pub(crate) use official::{Connections, routes as official_routes};
pub(crate) use released::{Table, routes as released_routes};
pub(crate) use rpc::routes as rpc_routes;
pub(crate) use sessions::routes as session_routes;
