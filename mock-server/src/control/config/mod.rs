//! `/v1/config`: named MCP servers and skill sets of a directory.

mod mcp;
mod routes;
mod skills;
mod store;

pub(super) use routes::router;
pub(super) use store::Store;
