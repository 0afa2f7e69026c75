//! Sessions that outlive agents, servers and programs.
//!
//! ```text
//! handle, session       what a program holds                                  (public face)
//! ledger                which kept session is which session of the agent, and what happens in it
//! binding, entry        one such pair; what is stored of an event, and what waits to be
//! stream, strangers     how far a stream has been read that other programs read too; what it had for others (pure)
//! own                   what this program has done to records itself
//! change, amend         changing records that others change too, and bringing them up to date
//! restore, taking_over  taking a session up again: resume, else load, else tell its history
//! recent                what was stored last, by whoever had it                 (pure)
//! replay                the history as a text                                  (pure)
//! transcript            a session as lines of JSON
//! attachment            where one program left a session, for another one
//! housekeeping          idle agents, old sessions, shutting down
//! ```

mod amend;
mod attachment;
mod binding;
mod change;
mod entry;
mod handle;
mod housekeeping;
mod ledger;
mod options;
mod own;
mod recent;
mod replay;
mod restore;
mod session;
pub(crate) mod status;
pub mod store;
mod strangers;
mod stream;
mod taking_over;
mod transcript;
mod usage;

pub use attachment::Attachment;
pub use handle::Sessions;
pub use housekeeping::Suspend;
pub(crate) use ledger::Ledger;
pub use replay::ReplayLimits;
pub use restore::Restored;
pub use session::StoredSession;
pub use status::{
    ArchivedSessions, ResumeRequirement, ResumeSupport, RetentionPolicy, SessionStatus, StatusEvent,
    TransitionError, UnknownStatus, UserAction,
};

pub use crate::store::{
    Cursor, EventPage, EventQuery, InactiveQuery, MAX_DEPTH, MAX_KEY_BYTES, MAX_PAGE, MemoryStore, NewEvent,
    RecordPage, RecordQuery, Recorder, RecorderOptions, SessionRecord, SessionStore, StoreError, StoredEvent,
    StoredEventKind, Unrecorded,
};
#[cfg(feature = "postgres")]
pub use crate::store::{PostgresOptions, PostgresStore, PostgresTls};
#[cfg(feature = "sqlite")]
pub use crate::store::{SqliteOptions, SqliteStore, SqliteSync};
