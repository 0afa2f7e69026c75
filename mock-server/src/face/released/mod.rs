//! `/v1/acp`: one agent per server id, as the released server has it.
//!
//! Its habits are kept, the bad ones included (switched by `released_quirks`): a POST whose agent died
//! waits out the request limit before it says so; a POST whose agent is alive and silent hangs beyond it; a
//! DELETE of a live agent hangs until the client gives up, and only then is the agent told to stop.

mod entry;
mod pi;
mod routes;
mod table;

pub(crate) use routes::routes;
pub(crate) use table::Table;
