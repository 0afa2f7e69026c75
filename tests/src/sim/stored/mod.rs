//! Several programs that share stored sessions: acquire, release, takeover, kills and restarts, under a virtual clock.
//!
//! Everything but the network, the agent and the failures of the store is real: each program has its own
//! `StoredClient`. They share one store in memory and one server. A kill cuts a program off from both in one moment.
//! What the store holds at the end is compared with what the agent said.

mod check;
mod check_requests;
mod plan;
mod program;
mod requests;
mod run;
mod store;

pub use plan::Extent;
pub use run::run_stored;
