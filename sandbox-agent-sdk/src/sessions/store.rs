//! Where sessions are stored, so that they outlive agents, servers and programs.
//!
//! A [`SessionStore`] holds [records](SessionRecord) and [events](StoredEvent). [`MemoryStore`] ends with the program,
//! `SqliteStore` is one file, and `PostgresStore` is shared by several programs. Another store is an implementation of
//! the trait that passes the public conformance suite (feature `conformance`).
//!
//! # Ownership
//! A session has at most one owner, a process. [`SessionStore::acquire`] makes a process the owner and increments the
//! session's `epoch`, a fencing token. The owner passes its [`Fence`] with every [`Append`]; a store refuses a fence of an
//! earlier epoch with [`StoreError::OwnershipLost`], in the transaction that would have written.
//! [`SessionStore::release`] increments the epoch too, so that nothing is written under a fence that was given up.
//!
//! # Appending
//! [`SessionStore::append`] is one transaction: events, a [`RecordPatch`], the session's position and the owner's
//! `scanned_to`, all of it or nothing. Every event has an [`EventKey`], its idempotency key: the incarnation and offset of
//! the stream message that it came from, or an id of its own. An event whose key is stored keeps its index, so a writer
//! that does not know whether an append was stored repeats it.
//!
//! Prompts and answers to agent requests are appended before they are sent (write ahead), with their JSON-RPC id
//! ([`NewEvent::rpc_id`]). What they leave open is queried by [`SessionStore::open`]: turns without an end, and agent
//! requests that are not closed.
//!
//! ```text
//! prompt ─ prompt_resent* ─────────────────▶ turn_ended       closes by turn id
//! permission | question | agent_request ─▶ answered ─▶ request_closed   closes by JSON-RPC id
//! ```
//!
//! # Positions
//! A [`StreamPosition`] is an offset in the server's stream, the incarnation of the server, and a fingerprint of the
//! event there. Servers send no incarnation. The store counts them for each endpoint:
//! [`SessionStore::raise_incarnation`] is a compare-and-set, so that programs which detect the same restart raise it once.
//!
//! Each owner has one `scanned_to` for each endpoint: every event up to there of every session that it owns *and has
//! caught up with* is stored. [`SessionRecord::caught_up`] is false after an acquire, until the owner has stored what the
//! server had behind [`SessionRecord::position`] and sets [`RecordPatch::caught_up`]. The next acquire moves the
//! position to the previous owner's `scanned_to` if that owner had caught up. A session that was quiet on a busy
//! endpoint is therefore no gap, and an owner that was killed before it caught up hides nothing.
//!
//! A record is created with the position of the stream at that time. One with events and without a position was stored by
//! an earlier version of this library: what the server has is not comparable with what is stored, and the owner stores a
//! gap.
//!
//! An agent's session id is bound to one stored session within one incarnation of one endpoint. A patch that binds an id
//! which another session has there ends that older binding.
//!
//! # What is not stored
//! Tool servers, tokens and environment variables may hold secrets; they are not part of a record. Prompts, updates and
//! agent requests are stored as they are, so a store holds whatever users and agents write.

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
pub use limits::{MAX_DEPTH, MAX_KEY_BYTES, MAX_PAGE, read_json};
pub use memory::MemoryStore;
pub use open::{OpenEvents, OpenRequest, OpenTurn};
pub use ownership::{Acquire, Acquired, Fence, ScannedTo, Suspend};
pub use patch::{Append, Appended, Change, RecordPatch};
pub use position::{Fingerprint, StreamPosition};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore, PostgresTls};
pub use query::{EventOrder, EventPage, EventQuery, InactiveQuery, RecordPage, RecordQuery};
pub use record::{AgentSession, ResumeData, SessionDetails, SessionRecord};
pub use session_store::{SessionStore, StoreFuture};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteOptions, SqliteStore, SqliteSync};
pub use turn_end::{StoredError, TurnEnd};
