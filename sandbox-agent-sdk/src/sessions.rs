//! Stored sessions, which outlive agents, servers and client programs.
//!
//! [`SandboxAgentClient::with_store`](crate::SandboxAgentClient::with_store) returns a [`StoredClient`], which stores
//! all its sessions. A plain client stores nothing.
//!
//! ```text
//! client, session    the handles that an application uses                       (public)
//! tracker            one task per session, the owner of its state: create, acquire, catch up, reopen, turns, writing
//! inbox, feed        the mailbox of a tracker; passes the client's events to it, in stream order
//! early, progress    events of sessions that are being created; the stored position of the stream          (pure)
//! answers            stores responses to agent requests before they are sent
//! scan               reads a part of the server's stream again
//! incarnations       determines the incarnation that a stream belongs to
//! calls              calls of the store, with their timeouts
//! remote             follows a turn on the endpoint of another process
//! entry, holder      the stored form of an event; delays an event until it is stored
//! endpoints          the endpoints of a released server
//! stored_options     the options of a session as they are stored
//! failures           what failures mean for a session                                      (pure)
//! compare, replay    compares the replayed with the stored history; the history as text        (pure)
//! transcript         a session as lines of JSON
//! maintenance        idle agents, old sessions, shutting down
//! store              the trait `SessionStore` and three stores
//! ```

#[macro_use]
mod setters;

mod answers;
mod calls;
mod client;
mod compare;
mod early;
mod endpoints;
mod entry;
mod failures;
mod feed;
mod holder;
mod inbox;
mod incarnations;
mod maintenance;
mod options;
mod progress;
mod remote;
mod replay;
mod scan;
mod session;
mod shared;
pub(crate) mod status;
pub mod store;
mod stored_options;
mod tracker;
mod transcript;
mod unique;
mod usage;

/// What mailboxes are locked with. `tests/interleavings.rs` puts its own in their place.
mod sync {
    pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
}

#[doc(inline)]
pub use crate::event::{EventsLost, Restored, RestoredBy};
pub use client::StoredClient;
pub use maintenance::Suspend;
pub use options::{Durability, StoreOptions};
pub use replay::ReplayLimits;
pub use session::StoredSession;
pub use status::{
    ArchivedSessions, ResumeRequirement, ResumeSupport, RetentionPolicy, SessionStatus, StatusEvent,
    TransitionError, UnknownStatus, UserAction,
};
pub use store::{
    EventPage, EventQuery, MemoryStore, RecordPage, RecordQuery, SessionRecord, SessionStore, StoreError,
    StoredEvent, StoredEventKind,
};
#[cfg(feature = "postgres")]
pub use store::{PostgresOptions, PostgresStore, PostgresTls};
#[cfg(feature = "sqlite")]
pub use store::{SqliteOptions, SqliteStore, SqliteSync};
pub use tracker::OpenTurn;
#[cfg(feature = "fuzzing")]
pub(crate) use transcript::read_all as read_transcript;
