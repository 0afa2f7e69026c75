//! A deterministic simulation: the real client against a model of servers and networks, under a virtual clock.
//!
//! Everything that happens in a run follows from its seed: the dialect, what the application does, what agents send,
//! and every fault of the network. The client is unchanged; its HTTP requests go to a model in memory, and its clock
//! is tokio's paused one. Invariants are checked during the run and at its end; a violation is reported with
//! its seed, and the seed replays the run with a trace.

mod agent;
mod application;
mod fate;
mod ledger;
mod network;
mod observer;
mod plan;
pub(crate) mod random;
mod run;
mod server;
mod stored;
mod world;

pub use plan::Model;
pub use run::{Report, run};
pub use stored::{Extent, run_stored};
