//! Stores of sessions.
//!
//! A [`SessionStore`] holds [records](SessionRecord) and [events](StoredEvent), so that sessions outlive agents,
//! servers and programs. [`MemoryStore`] holds them until the program exits. `SqliteStore` uses one file, and
//! `PostgresStore` can be shared by several machines. To add another store, implement the trait and run the public
//! conformance suite (feature `conformance`).
//!
//! # Ownership
//! A session has at most one owner, which is a process. [`SessionStore::acquire`] makes a process the owner and
//! increments the session's `epoch`, a fencing token. The owner passes its [`Fence`] with every [`Append`]. If the
//! epoch of the fence is not the current one, the store writes nothing and returns [`StoreError::OwnershipLost`].
//! [`SessionStore::release`] increments the epoch too, so that nothing can be written with a released fence.
//!
//! # Appending
//! [`SessionStore::append`] is one transaction. It writes events, a [`RecordPatch`], the session's position and the
//! owner's `scanned_to`, or nothing. Every event has an [`EventKey`], its idempotency key: the incarnation and offset
//! of its stream message, or a unique id. An event whose key is already stored is not stored again and keeps its
//! index. A writer that does not know whether an append succeeded can therefore repeat it.
//!
//! Prompts and responses to agent requests are appended before they are sent (write ahead), with their request id
//! ([`NewEvent::rpc_id`]). [`SessionStore::open`] returns what is still open: turns without an end, and agent
//! requests that are not closed.
//!
//! ```text
//! prompt ─ prompt_resent* ─────────────────▶ turn_ended       closes by turn id, with the requests of the turn
//! permission | question | agent_request ─▶ answered ─▶ request_closed   closes by request id
//! ```
//!
//! # Positions
//! A [`StreamPosition`] is an offset in the server's stream, the incarnation of the server, and a fingerprint of the
//! event at that offset. Servers do not report their incarnation, so the store counts incarnations for each endpoint.
//! [`SessionStore::raise_incarnation`] is a compare-and-set: if several programs detect the same restart, the
//! incarnation is raised once.
//!
//! Each owner has one `scanned_to` per endpoint. All events up to this position are stored, for all sessions that the
//! owner owns *and has caught up with*. [`SessionRecord::caught_up`] is false after an acquire. The owner stores the
//! events that the server has after [`SessionRecord::position`], then sets [`RecordPatch::caught_up`]. After a lost
//! connection the owner may read another stream without acquiring the session there. Then it clears `caught_up`. The
//! next acquire moves the position to the previous owner's `scanned_to`, but only if that owner had caught up. So a
//! session without events on a busy endpoint does not get a gap, and an owner that was killed before it caught up does
//! not hide missing events.
//!
//! A record is created with the current position of the stream. A record with events but without a position was
//! written by an earlier version of this library. Its events cannot be compared with those of the server, so the
//! owner stores a gap.
//!
//! An agent's session id is bound to one stored session per endpoint and incarnation. If a patch binds an id that is
//! bound to another stored session there, the older binding ends.
//!
//! # What is not stored
//! Records do not contain MCP servers, tokens or environment variables, because these may be secrets. Prompts, updates,
//! agent requests, responses, errors and the stderr output of ended agents are stored unchanged, so a store contains
//! everything that users and agents write.

#[cfg(feature = "conformance")]
pub mod conformance;
mod cursor;
mod error;
mod event;
mod limits;
mod memory;
mod open;
mod ownership;
mod patch;
mod position;
#[cfg(feature = "postgres")]
mod postgres;
mod query;
mod record;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod rows;
mod session_store;
#[cfg(feature = "sqlite")]
mod sqlite;
mod turn_end;

pub use cursor::Cursor;
pub use error::StoreError;
pub(super) use event::opens_request;
pub(super) use event::raw_update;
pub use event::{Closes, EventKey, NewEvent, StoredEvent, StoredEventKind};
pub(super) use limits::PAGE_BYTES;
pub use limits::{MAX_DEPTH, MAX_EARLIER_AGENT_SESSIONS, MAX_KEY_BYTES, MAX_PAGE, read_json};
pub use memory::MemoryStore;
pub use open::{OpenEvents, OpenRequest, OpenTurn};
pub use ownership::{Acquire, Fence, ScannedTo, Suspend};
pub use patch::{Append, Appended, Change, RecordPatch};
pub use position::{Fingerprint, StreamPosition};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore, PostgresTls};
pub use query::{EventOrder, EventPage, EventQuery, RecordPage, RecordQuery};
pub use record::{AgentSession, ResumeData, SessionDetails, SessionRecord};
pub use session_store::{SessionStore, StoreFuture};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteOptions, SqliteStore, SqliteSync};
pub use turn_end::{StoredError, TurnEnd};
