//! The store as one program sees it: calls fail, take time, or never end.

use std::{fmt, io, sync::Arc};

use futures::future::BoxFuture;
use sandbox_agent_sdk::{
    session::Timestamp,
    sessions::{
        MemoryStore, SessionStore,
        store::{
            Acquire, Append, Appended, EventPage, EventQuery, Fence, NewEvent, OpenEvents, RecordPage,
            RecordQuery, ScannedTo, SessionRecord, StoreError, StoreFuture, StreamPosition, Suspend,
        },
    },
};

use super::{plan::StoreFaults, program::Life};
use crate::sim::world::World;

/// A program's way to the store that all programs share.
pub(super) struct ProgramStore {
    pub(super) world: Arc<World>,
    pub(super) shared: Arc<MemoryStore>,
    pub(super) faults: StoreFaults,
    pub(super) life: Life,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Refused,
    ResponseLost,
    Stalled,
}

impl ProgramStore {
    /// Makes a call, or does not.
    async fn call<T>(
        &self,
        name: &str,
        call: impl AsyncFnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut random = self.world.random(&format!("store {name}"));
        let mut fate = Fate::Done;
        if !self.world.is_over() {
            let faults = &self.faults;
            if random.per_mille(faults.slow) {
                tokio::time::sleep(random.millis(4_000)).await;
            }
            if random.per_mille(faults.refuse) {
                fate = Fate::Refused;
            } else if random.per_mille(faults.lose) {
                fate = Fate::ResponseLost;
            } else if random.per_mille(faults.stall) {
                fate = Fate::Stalled;
            }
        }
        if fate != Fate::Done {
            self.world.note(|| format!("store: {name}: {fate:?}"));
        }
        self.life.wait_if_over().await;
        match fate {
            Fate::Refused => return Err(unavailable()),
            Fate::Stalled => std::future::pending().await,
            Fate::Done | Fate::ResponseLost => {}
        }
        let result = call().await;
        self.world.note(|| {
            let outcome = result.as_ref().map(|_| "done").map_err(ToString::to_string);
            format!("store: {} {name}: {outcome:?}", self.life.name)
        });
        // The response takes a moment, in which others are heard and the program may be killed.
        if random.per_mille(300) {
            tokio::time::sleep(random.millis(5)).await;
        } else {
            tokio::task::yield_now().await;
        }
        self.life.wait_if_over().await;
        if fate == Fate::ResponseLost { Err(unavailable()) } else { result }
    }

    /// This program owns a session from now on, or does not any more.
    fn owns(&self, id: &str, owns: bool) {
        self.world.ledger().own(id, owns.then_some(&*self.life.name));
    }

    /// Appends, and checks that no earlier owner writes.
    async fn append_checked(&self, append: Append) -> Result<Appended, StoreError> {
        let (id, fence) = (append.session_id.clone(), append.fence);
        let before = self.shared.get(&id).await?;
        let appended = self.shared.append(append).await;
        if let (Ok(_), Some(record), Some(fence)) = (&appended, before, fence)
            && record.epoch != fence.epoch
        {
            self.world.fail(format!("epoch {} of {id} wrote in epoch {}", fence.epoch, record.epoch));
        }
        appended
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable(Arc::new(io::Error::other("simulated")))
}

impl fmt::Debug for ProgramStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramStore").field("life", &self.life).finish_non_exhaustive()
    }
}

/// Passes calls on by name.
macro_rules! pass_on {
    ($self:ident.$name:ident($($argument:expr),*)) => {
        Box::pin($self.call(stringify!($name), async move || $self.shared.$name($($argument),*).await))
    };
}

impl SessionStore for ProgramStore {
    fn create(&self, record: SessionRecord, events: Vec<NewEvent>) -> StoreFuture<'_, SessionRecord> {
        Box::pin(self.call("create", async move || {
            let created = self.shared.create(record, events).await?;
            self.owns(&created.id, true);
            Ok(created)
        }))
    }
    fn get<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<SessionRecord>> {
        pass_on!(self.get(id))
    }
    fn append(&self, append: Append) -> StoreFuture<'_, Appended> {
        let kinds: Vec<_> = append.events.iter().map(|event| event.kind.as_str().to_owned()).collect();
        let name = format!("append {} {}", append.session_id, kinds.join(","));
        Box::pin(async move { self.call(&name, async move || self.append_checked(append).await).await })
    }
    fn acquire<'a>(&'a self, id: &'a str, acquire: Acquire) -> StoreFuture<'a, SessionRecord> {
        Box::pin(self.call("acquire", async move || {
            let acquired = self.shared.acquire(id, acquire).await?;
            self.owns(id, true);
            Ok(acquired)
        }))
    }
    fn release<'a>(&'a self, id: &'a str, fence: Fence) -> StoreFuture<'a, SessionRecord> {
        Box::pin(self.call("release", async move || {
            let released = self.shared.release(id, fence).await?;
            self.owns(id, false);
            Ok(released)
        }))
    }
    fn open<'a>(&'a self, id: &'a str) -> StoreFuture<'a, OpenEvents> {
        pass_on!(self.open(id))
    }
    fn events<'a>(&'a self, query: &'a EventQuery) -> StoreFuture<'a, EventPage> {
        pass_on!(self.events(query))
    }
    fn list<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, RecordPage> {
        pass_on!(self.list(query))
    }
    fn count<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, u64> {
        pass_on!(self.count(query))
    }
    fn suspend(&self, which: Suspend, now: Timestamp) -> StoreFuture<'_, u64> {
        pass_on!(self.suspend(which, now))
    }
    fn delete<'a>(&'a self, id: &'a str) -> StoreFuture<'a, bool> {
        pass_on!(self.delete(id))
    }
    fn delete_unchanged<'a>(&'a self, record: &'a SessionRecord) -> StoreFuture<'a, bool> {
        pass_on!(self.delete_unchanged(record))
    }
    fn incarnation<'a>(&'a self, endpoint: &'a str) -> StoreFuture<'a, u64> {
        pass_on!(self.incarnation(endpoint))
    }
    fn raise_incarnation<'a>(&'a self, endpoint: &'a str, from: u64) -> StoreFuture<'a, u64> {
        pass_on!(self.raise_incarnation(endpoint, from))
    }
    fn scanned_to<'a>(
        &'a self,
        owner: &'a str,
        endpoint: &'a str,
    ) -> StoreFuture<'a, Option<StreamPosition>> {
        pass_on!(self.scanned_to(owner, endpoint))
    }
    fn advance(&self, scanned_to: ScannedTo) -> StoreFuture<'_, ()> {
        pass_on!(self.advance(scanned_to))
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
