//! A thread that starts processes.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// How many starts may be queued.
const QUEUE: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that starts processes and lives as long as this value.
///
/// The kernel's "kill with parent" takes effect when the *thread* that started the process exits, and idle
/// threads of a runtime's blocking pool exit.
#[derive(Debug)]
pub(super) struct Spawner {
    jobs: SyncSender<Job>,
}

impl Spawner {
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, queue) = sync_channel::<Job>(QUEUE);
        // The thread ends when the sender is dropped.
        thread::Builder::new().name("sandbox-spawner".to_owned()).spawn(move || {
            while let Ok(job) = queue.recv() {
                job();
            }
        })?;
        Ok(Self { jobs })
    }

    /// Runs a closure on the thread and waits for it.
    pub(super) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let (done, result) = sync_channel(1);
        let job = Box::new(move || {
            // An error means that the caller no longer waits for the result.
            let _ = done.send(work());
        });
        let gone = || io::Error::other("the thread that starts processes has exited");
        self.jobs.send(job).map_err(|_| gone())?;
        result.recv().map_err(|_| gone())
    }
}
