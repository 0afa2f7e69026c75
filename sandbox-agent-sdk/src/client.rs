//! The client: one connection, its sessions and their turns.
//!
//! ```text
//! handle, session, turn      what a program holds                      (public face)
//! lifecycle                  connect, disconnect, races
//! opening, methods, stopping what can be done with sessions
//! connection, calls          one connection and the calls made over it
//! pump                       the one task that turns messages into events
//! router                     agent requests: whether they are ours, and which handler answers
//! account, offers            logging out, deleting sessions; what this client can do
//! hub                        who listens, which turn runs, which session has ended
//! metering                   what turns use, and budgets that end them
//! supports                   what the server and the agents behind it can do
//! probe                      which kind of server it is
//! ```

mod account;
mod calls;
mod connection;
mod handle;
mod hub;
mod lifecycle;
mod list;
mod metering;
mod methods;
mod names;
mod offers;
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
#[cfg(test)]
pub(crate) use offers::client_capabilities;
pub(crate) use opening::Others;
pub use session::{Session, TurnState};
pub use turn::{CollectedTurn, FileChange, IncompleteTurn, StopReason, Turn, TurnEvent, TurnOutcome};
