//! The client: one connection, its sessions and their turns.
//!
//! ```text
//! handle, session, turn      the handles that an application uses      (public)
//! lifecycle                  connect, disconnect, races
//! opening, methods, stopping what can be done with sessions
//! connection, calls, prompting   one connection and the calls made over it
//! event_loop                 the task that turns messages into events
//! router                     routes agent requests to handlers, or to the application as unclaimed
//! account, offers            logging out, deleting sessions; what this client can do
//! hub                        subscribers, running turns, ended sessions
//! metering                   usage of turns, and budgets that cancel them
//! supports                   what the server and its agents support
//! probe, wiring              which kind of server it is; how to connect to it
//! ```

mod account;
mod calls;
pub(crate) mod capabilities;
pub(crate) mod connection;
pub(crate) mod deadline;
pub(crate) mod event;
mod event_loop;
pub(crate) mod feature;
mod handle;
pub(crate) mod hub;
mod lifecycle;
pub mod limits;
mod list;
mod log;
pub mod login;
mod metering;
mod methods;
pub(crate) mod names;
pub(crate) mod network;
pub(crate) mod new_session;
mod offers;
pub(crate) mod opening;
pub(crate) mod options;
mod parts;
mod probe;
mod prompting;
pub(crate) mod random;
mod reading;
mod router;
pub(crate) mod secret;
mod session;
pub(crate) mod snapshot;
pub(crate) mod state;
mod stopping;
pub mod stream;
mod supports;
mod sync;
mod tasks;
mod turn;
pub(crate) mod wiring;

/// The path of a released server's endpoints. Each has its own agent process and stream.
pub(crate) const ENDPOINTS: &str = "/v1/acp";

pub use capabilities::Capabilities;
pub use event::{Event, Events, EventsLost, Gap, Origin, Restored, RestoredBy, SessionEnded, TurnEnded};
pub use feature::{Feature, Support};
pub use handle::{SandboxAgentClient, SessionClaim, WeakClient};
pub use list::SessionList;
pub use new_session::{ListSessions, NewSession, OpenSession};
#[cfg(test)]
pub(crate) use offers::client_capabilities;
pub use options::{ClientOptions, ClientTimeouts, DropPolicy, ServerKind};
pub(crate) use parts::Part;
pub use session::{Session, TurnState};
pub use snapshot::{SessionSnapshot, Tool};
pub use state::ConnectionState;
pub use turn::{CollectedTurn, FileChange, IncompleteTurn, StopReason, Turn, TurnEvent, TurnOutcome};
