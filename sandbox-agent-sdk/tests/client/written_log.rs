//! The log that a test writes.

use std::io;
use std::sync::{Arc, Mutex};

use tracing_subscriber::filter::LevelFilter;

/// Collects the log.
#[derive(Clone, Default)]
pub(crate) struct WrittenLog(Arc<Mutex<Vec<u8>>>);

impl WrittenLog {
    /// Creates an empty log, and a subscriber that writes events of this level and above to it.
    pub(crate) fn at(level: LevelFilter) -> (Self, impl tracing::Subscriber + Send + Sync) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(move || writer.clone())
            .finish();
        (log, subscriber)
    }

    /// Returns what was written so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for WrittenLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
