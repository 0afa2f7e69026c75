//! `/v1/acp`: one agent per server id, like the released server.
//!
//! This endpoint imitates the released server, including its defects (switched by `released_quirks`): a POST
//! whose agent died fails only after the request timeout; a POST whose agent is alive and silent hangs beyond
//! the timeout; a DELETE of a live agent hangs until the client gives up, and only then stops the agent.

mod entry;
mod pi;
mod routes;
mod table;

pub(crate) use routes::routes;
pub(crate) use table::Table;
