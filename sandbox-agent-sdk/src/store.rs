//! Where sessions are kept, so that they outlive agents, servers and programs.
//!
//! ```text
//! keeper              the trait that every store implements
//! record, event       what is kept
//! fence               who may write                                            (pure)
//! query               how it is found, page by page
//! json, limits        what every store agrees to keep                          (pure)
//! memory              a store that ends with the program
//! sqlite, postgres    stores that do not
//! placing             which event of a batch gets which index                   (pure)
//! recorder            the queue between what happens and the store that keeps it
//! ```

mod error;
mod event;
mod fence;
mod json;
mod keeper;
mod limits;
mod memory;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod placing;
#[cfg(feature = "postgres")]
mod postgres;
mod query;
mod record;
mod recorder;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod rows;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use error::StoreError;
pub use event::{NewEvent, StoredEvent, StoredEventKind};
pub(crate) use json::read as read_json;
pub use keeper::SessionStore;
pub use limits::{MAX_DEPTH, MAX_KEY_BYTES, MAX_PAGE};
pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore, PostgresTls};
pub use query::{Cursor, EventPage, EventQuery, InactiveQuery, RecordPage, RecordQuery};
pub use record::SessionRecord;
pub(crate) use recorder::{Listeners, deadline_after, life_of, number_of, place_of};
pub use recorder::{Recorder, RecorderOptions, Unrecorded};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteOptions, SqliteStore, SqliteSync};
