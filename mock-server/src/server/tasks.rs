use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use tokio::task::JoinSet;

/// The first panic of a server's tasks, until it is reported to the owner of the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Panics(Arc<Mutex<Option<String>>>);

impl Panics {
    /// Runs `future` and records a panic in it. Only the first panic is kept, because it causes the others.
    pub(crate) async fn guard(self, future: impl Future<Output = ()>) -> Result<(), Panicked> {
        let ran = AssertUnwindSafe(future).catch_unwind().await;
        ran.map_err(|panic| self.record(panic.as_ref()))
    }

    /// Takes the first panic.
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

/// The message of a recorded panic.
#[derive(Debug)]
pub(crate) struct Panicked(pub(crate) String);

/// Tasks with one owner: they end when the last handle is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Tasks {
    /// Guards the set only while a task is added or all are aborted.
    set: Arc<Mutex<JoinSet<()>>>,
    panics: Panics,
}

impl Tasks {
    /// Creates an empty set that records panics in `panics`.
    pub(crate) fn new(panics: Panics) -> Self {
        Self { set: Arc::default(), panics }
    }

    /// Starts a task.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let panics = self.panics.clone();
        let guarded = async move {
            // The panic is already recorded and is reported to the owner of the server.
            let _ = panics.guard(future).await;
        };
        let mut set = self.lock();
        // Finished tasks are removed as new ones are added, so that the set does not grow.
        while set.try_join_next().is_some() {}
        set.spawn(guarded);
    }

    /// Aborts every task without waiting.
    pub(crate) fn abort(&self) {
        self.lock().abort_all();
    }

    /// Aborts every task and waits until all are dropped.
    pub(crate) async fn shutdown(&self) {
        let mut set = std::mem::take(&mut *self.lock());
        set.shutdown().await;
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
