//! The client: one connection, its sessions and their turns.
//!
//! ```text
//! handle, session, turn      what a program holds                      (public face)
//! lifecycle                  connect, disconnect, races
//! opening, methods, stopping what can be done with sessions
//! connection, calls          one connection and the calls made over it
//! pump                       the one task that turns messages into events
//! router                     agent requests: whether they are ours, and which handler answers
//! hub                        who listens, which turn runs, which session has ended
//! supports                   what the server and the agents behind it can do
//! probe                      which kind of server it is
//! ```

mod calls;
mod connection;
mod handle;
mod hub;
mod lifecycle;
mod list;
mod methods;
mod names;
mod opening;
mod probe;
mod pump;
mod router;
mod session;
mod stopping;
mod supports;
mod turn;

pub use handle::SandboxAgentClient;
pub(crate) use hub::{Hub, Observer};
pub use list::SessionList;
pub(crate) use opening::Others;
pub use session::{Session, TurnState};
pub use turn::{CollectedTurn, FileChange, IncompleteTurn, StopReason, Turn, TurnEvent, TurnOutcome};
