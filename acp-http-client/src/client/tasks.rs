//! The tasks of a connection, and their one end.

use std::{
    future::Future,
    sync::{Mutex, PoisonError},
};

use tokio::task::JoinSet;

/// Owns every task of a connection.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    /// Guards the set; held to spawn and to take it. `None` once the connection has ended.
    set: Mutex<Option<JoinSet<()>>>,
}

impl Tasks {
    pub(crate) fn new() -> Self {
        Self { set: Mutex::new(Some(JoinSet::new())) }
    }

    /// Starts a task; `false` if the connection has ended.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(set) = set.as_mut() else { return false };
        // Finished tasks are forgotten as new ones come.
        while set.try_join_next().is_some() {}
        set.spawn(task);
        true
    }

    pub(crate) fn len(&self) -> usize {
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        set.as_ref().map_or(0, JoinSet::len)
    }

    /// Ends all tasks; none starts after this.
    pub(crate) fn end(&self) -> Option<JoinSet<()>> {
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner).take();
        set.map(|mut set| {
            set.abort_all();
            set
        })
    }
}
