//! The three faces of the server: thin routes over the hub.

mod accept;
mod rpc;

pub(crate) use rpc::routes as rpc_routes;
