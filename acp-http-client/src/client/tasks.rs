//! The tasks of a connection, and their one end.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{runtime::Handle, task::JoinHandle};
use tracing::{Instrument, Span};

/// Owns every task of a connection. A task that has finished takes no memory.
#[derive(Debug)]
pub(crate) struct Tasks {
    /// The span of the connection, in which every task runs.
    span: Span,
    running: Arc<Running>,
}

#[derive(Debug)]
struct Running {
    /// Guards the handles by the numbers of their tasks; held to insert, to remove and to take them. `None` once the
    /// connection has ended.
    handles: Mutex<Option<Handles>>,
}

#[derive(Debug, Default)]
struct Handles {
    spawned: u64,
    /// `None` for a task that is being started.
    tasks: BTreeMap<u64, Option<JoinHandle<()>>>,
}

impl Tasks {
    pub(crate) fn new(span: Span) -> Self {
        let handles = Mutex::new(Some(Handles::default()));
        Self { span, running: Arc::new(Running { handles }) }
    }

    /// Starts a task; `false` if the connection has ended or there is no runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        let Ok(runtime) = Handle::try_current() else { return false };
        let Some(number) = self.running.reserve() else { return false };
        let finished = Finished { running: self.running.clone(), number };
        let task = async move {
            let _finished = finished;
            task.await;
        };
        // Not under the lock: a runtime that shuts down drops the task at once, and its destructor takes the lock.
        let task = runtime.spawn(task.instrument(self.span.clone()));
        match self.running.lock().as_mut() {
            Some(handles) => {
                // A finished task is no longer in the table.
                if let Some(place) = handles.tasks.get_mut(&number) {
                    *place = Some(task);
                }
            }
            None => task.abort(),
        }
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.running.lock().as_ref().map_or(0, |handles| handles.tasks.len())
    }

    /// Aborts all tasks; none starts after this. Returns them, so that the caller can wait for their end.
    pub(crate) fn end(&self) -> Vec<JoinHandle<()>> {
        let handles = self.running.lock().take();
        let tasks: Vec<_> =
            handles.map(|handles| handles.tasks.into_values().flatten().collect()).unwrap_or_default();
        tasks.iter().for_each(JoinHandle::abort);
        tasks
    }
}

impl Running {
    /// A number for a task that is about to start; `None` if the connection has ended.
    fn reserve(&self) -> Option<u64> {
        let mut handles = self.lock();
        let handles = handles.as_mut()?;
        handles.spawned += 1;
        handles.tasks.insert(handles.spawned, None);
        Some(handles.spawned)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Handles>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a task from the table when it has finished or was aborted.
struct Finished {
    running: Arc<Running>,
    number: u64,
}

impl Drop for Finished {
    fn drop(&mut self) {
        if let Some(handles) = self.running.lock().as_mut() {
            handles.tasks.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_is_forgotten_when_it_has_finished_and_aborted_at_the_end() {
        let tasks = Tasks::new(Span::none());
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        assert!(tasks.spawn(async {}) && tasks.spawn(std::future::pending()));
        assert!(tasks.spawn(async move { drop(receiver.await) }));
        tokio::task::yield_now().await;
        assert_eq!(tasks.len(), 2);
        drop(sender);
        tokio::task::yield_now().await;
        assert_eq!(tasks.len(), 1);
        for task in tasks.end() {
            assert!(task.await.is_err_and(|error| error.is_cancelled()));
        }
        assert!(!tasks.spawn(async {}));
        assert_eq!(tasks.len(), 0);
    }

    /// Starts a task when it is dropped.
    struct Again(Arc<Tasks>);

    impl Drop for Again {
        fn drop(&mut self) {
            self.0.spawn(async {});
        }
    }

    #[test]
    fn a_task_can_start_another_while_the_runtime_shuts_down() {
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let tasks = Arc::new(Tasks::new(Span::none()));
            let again = Again(tasks.clone());
            runtime.block_on(async {
                tasks.spawn(async move {
                    let _again = again;
                    std::future::pending().await
                });
                tokio::task::yield_now().await;
            });
            drop(runtime);
            done.send(tasks.len())
        });
        assert_eq!(ended.recv_timeout(std::time::Duration::from_secs(10)), Ok(0));
    }
}
