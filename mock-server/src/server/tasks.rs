use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use tokio::task::JoinSet;

/// The panics of a server's tasks, kept until the owner of the server is told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Panics(Arc<Mutex<Option<String>>>);

impl Panics {
    /// Runs `future` and records a panic in it. The first panic is kept; it is the cause of the others.
    pub(crate) async fn guard(self, future: impl Future<Output = ()>) -> Result<(), Panicked> {
        let ran = AssertUnwindSafe(future).catch_unwind().await;
        ran.map_err(|panic| self.record(panic.as_ref()))
    }

    /// The first panic, taken out.
    pub(crate) fn take(&self) -> Option<String> {
        self.lock().take()
    }

    fn record(&self, panic: &(dyn Any + Send)) -> Panicked {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".to_owned());
        self.lock().get_or_insert(text.clone());
        Panicked(text)
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The message of a panic that was recorded.
#[derive(Debug)]
pub(crate) struct Panicked(pub(crate) String);

/// Tasks with one owner: when the last handle goes, they end.
#[derive(Debug, Clone)]
pub(crate) struct Tasks {
    /// Guards the set only while a task is added or all are aborted.
    set: Arc<Mutex<JoinSet<()>>>,
    panics: Panics,
}

impl Tasks {
    /// An empty set that records panics in `panics`.
    pub(crate) fn new(panics: Panics) -> Self {
        Self { set: Arc::default(), panics }
    }

    /// Starts a task.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let panics = self.panics.clone();
        let guarded = async move {
            // The record is what matters; the owner of the server is told by it.
            let _ = panics.guard(future).await;
        };
        let mut set = self.lock();
        // Finished tasks are let go as new ones come, so that the set does not grow with the server's age.
        while set.try_join_next().is_some() {}
        set.spawn(guarded);
    }

    /// Ends every task without waiting.
    pub(crate) fn abort(&self) {
        self.lock().abort_all();
    }

    /// Ends every task and waits until each has let go of what it held.
    pub(crate) async fn shutdown(&self) {
        let mut set = std::mem::take(&mut *self.lock());
        set.shutdown().await;
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
