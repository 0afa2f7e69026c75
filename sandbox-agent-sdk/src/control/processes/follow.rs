//! The output of a process as it is written.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use tokio::time::{Instant, sleep, sleep_until};

use super::calls::Processes;
use super::info::{LogEntry, LogStream, ProcessInfo};
use super::log_stream::LogEvents;
use super::request::LogQuery;
use crate::Error;

/// What released servers write into the output of a terminal when its process has exited, instead of the end.
pub(in crate::control) const PTY_END: &[u8] = b"\n[process stream error: I/O error (os error 5)]\n";

/// The first pause between two attempts to connect, and between two looks at the status.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How output is followed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct FollowOptions {
    /// Where to begin.
    pub from: FollowFrom,
    /// Only output of this stream; `None` and [`LogStream::Combined`] are all output.
    pub stream: Option<LogStream>,
    /// How often to look whether the process has exited, while it writes nothing. The event streams of released
    /// servers do not end with the process.
    pub status_interval: Duration,
    /// How long an exited process may write nothing until its output counts as drained.
    ///
    /// Servers before 0.5.5 report the exit before the last output, and do not report the end of the output. A
    /// child that outlives the process may hold its output open, so there is no other end to wait for.
    pub drain: Duration,
    /// How long to try to reconnect before the stream fails.
    pub retry_for: Duration,
}

/// Where following begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FollowFrom {
    /// At the beginning of the output.
    #[default]
    Start,
    /// At the last entries that the server has kept.
    Tail(u64),
    /// After this sequence number.
    After(u64),
}

impl FollowOptions {
    /// All output, from the beginning.
    pub fn new() -> Self {
        Self {
            from: FollowFrom::Start,
            stream: None,
            status_interval: Duration::from_secs(1),
            drain: Duration::from_millis(500),
            retry_for: Duration::from_secs(30),
        }
    }

    /// Begins elsewhere.
    pub fn from(mut self, from: FollowFrom) -> Self {
        self.from = from;
        self
    }

    /// Only output of this stream.
    pub fn stream(mut self, stream: LogStream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Sets how long an exited process may write nothing until its output counts as drained.
    pub fn drain(mut self, quiet: Duration) -> Self {
        self.drain = quiet;
        self
    }

    /// Sets how long to try to reconnect.
    pub fn retry_for(mut self, limit: Duration) -> Self {
        self.retry_for = limit;
        self
    }
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// What happens while output is followed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum FollowEvent {
    /// A piece of output.
    Output(LogEntry),
    /// Output that the server no longer has: the entries after `after` and before `next`.
    Gap {
        /// The last entry before the gap; 0 if there was none.
        after: u64,
        /// The first entry behind it.
        next: u64,
    },
    /// The process has exited and its output is drained. The stream ends here.
    Exited(ProcessInfo),
}

/// A stream of the output of a process. See [`Processes::follow`].
///
/// It reconnects from the last entry after a lost connection, and fetches again what the server's event stream
/// left out. It reads only while it is polled. After an error it ends:
///
/// - [`Error::Http`] with status 404: the record of the process was deleted;
/// - [`Error::ServerRestarted`]: another process has the id now;
/// - what the last attempt failed with, when reconnecting took longer than [`FollowOptions::retry_for`].
#[must_use = "streams do nothing unless polled"]
pub struct Follow {
    events: BoxStream<'static, Result<FollowEvent, Error>>,
}

impl Follow {
    pub(super) fn new(processes: Processes, id: String, options: FollowOptions) -> Self {
        let state = Some(Following::new(processes, id, options));
        let events = stream::unfold(state, |state| async {
            let mut following = state?;
            match following.next().await {
                Ok(Some(event)) => Some((Ok(event), Some(following))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        });
        Self { events: events.boxed() }
    }
}

impl Stream for Follow {
    type Item = Result<FollowEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_next_unpin(context)
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").finish_non_exhaustive()
    }
}

struct Following {
    processes: Processes,
    id: String,
    options: FollowOptions,
    /// The last entry that was accepted; `None` before the beginning is known.
    after: Option<u64>,
    /// When the process was created, which tells it from another with its id.
    created_at: Option<u64>,
    /// The server's event stream.
    events: Option<LogEvents>,
    /// What is to be delivered.
    ready: VecDeque<FollowEvent>,
    /// An entry that is dropped if it turns out to be the last: see [`PTY_END`].
    held: Option<LogEntry>,
    /// How the process ended.
    exited: Option<ProcessInfo>,
    done: bool,
    /// When to look at the status, or whether the output is drained.
    look_at: Instant,
    pause: Duration,
    connected_at: Instant,
    retry: Retry,
}

/// How long reconnecting has been failing.
struct Retry {
    since: Option<Instant>,
    pause: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { since: None, pause: FIRST_PAUSE }
    }
}

impl Following {
    fn new(processes: Processes, id: String, options: FollowOptions) -> Self {
        let after = match options.from {
            FollowFrom::Start => Some(0),
            FollowFrom::After(sequence) => Some(sequence),
            FollowFrom::Tail(_) => None,
        };
        Self {
            processes,
            id,
            options,
            after,
            created_at: None,
            events: None,
            ready: VecDeque::new(),
            held: None,
            exited: None,
            done: false,
            look_at: Instant::now(),
            pause: FIRST_PAUSE,
            connected_at: Instant::now(),
            retry: Retry::default(),
        }
    }

    async fn next(&mut self) -> Result<Option<FollowEvent>, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.done {
                return Ok(None);
            }
            match self.step().await {
                Ok(()) if self.connected_at.elapsed() > LONGEST_PAUSE => self.retry = Retry::default(),
                Ok(()) => {}
                Err(error) if is_transient(&error) => self.wait_to_retry(error).await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives something, looks at the status, or connects.
    async fn step(&mut self) -> Result<(), Error> {
        let Some(events) = &mut self.events else { return self.connect().await };
        tokio::select! {
            entry = events.next() => match entry {
                Some(entry) => self.receive(entry?).await,
                // The record was deleted, or the server shuts down: connecting again shows which.
                None => Err(ended()),
            },
            () = sleep_until(self.look_at) => self.look().await,
        }
    }

    async fn connect(&mut self) -> Result<(), Error> {
        self.status().await?;
        let after = match self.after {
            Some(after) => after,
            None => self.fetch_tail().await?,
        };
        let body = self.processes.log_events(&self.id, after).await?;
        self.events = Some(LogEvents::new(body));
        self.connected_at = Instant::now();
        self.look_at = self.connected_at;
        Ok(())
    }

    /// Asks for the process, which has to be the same one as before.
    async fn status(&mut self) -> Result<ProcessInfo, Error> {
        let process = self.processes.get(&self.id).await?;
        let created_at = *self.created_at.get_or_insert(process.created_at_ms);
        if created_at != process.created_at_ms {
            return Err(Error::ServerRestarted { what: "follow process logs".to_owned() });
        }
        Ok(process)
    }

    async fn fetch_tail(&mut self) -> Result<u64, Error> {
        let FollowFrom::Tail(tail) = self.options.from else { return Ok(0) };
        let entries = self.processes.logs(&self.id, LogQuery::new().tail(tail)).await?;
        // What lies before the tail was not asked for, so that it is no gap.
        self.after = Some(entries.first().map_or(0, |first| first.sequence.saturating_sub(1)));
        entries.into_iter().for_each(|entry| self.accept(entry));
        Ok(self.after.unwrap_or_default())
    }

    async fn receive(&mut self, entry: LogEntry) -> Result<(), Error> {
        if entry.sequence > self.after.unwrap_or_default() + 1 {
            // The event stream leaves entries out when it is slow; the log may still have them.
            self.fetch().await?;
        }
        self.accept(entry);
        self.retry = Retry::default();
        self.pause = FIRST_PAUSE;
        let quiet = if self.exited.is_some() { self.until_drained() } else { self.pause };
        self.look_at = Instant::now() + quiet;
        Ok(())
    }

    /// Fetches what the log has after the last entry. Returns whether it had anything.
    async fn fetch(&mut self) -> Result<bool, Error> {
        let before = self.after;
        let query = LogQuery::new().since(before.unwrap_or_default());
        let entries = self.processes.logs(&self.id, query).await?;
        entries.into_iter().for_each(|entry| self.accept(entry));
        Ok(self.after != before)
    }

    fn accept(&mut self, entry: LogEntry) {
        let after = self.after.unwrap_or_default();
        if entry.sequence <= after {
            return;
        }
        if let Some(held) = self.held.take() {
            self.ready.push_back(FollowEvent::Output(held));
        }
        if entry.sequence > after + 1 {
            self.ready.push_back(FollowEvent::Gap { after, next: entry.sequence });
        }
        self.after = Some(entry.sequence);
        let wanted = match &self.options.stream {
            None | Some(LogStream::Combined) => true,
            Some(stream) => *stream == entry.stream,
        };
        if entry.stream == LogStream::Pty && entry.data == PTY_END {
            self.held = Some(entry).filter(|_| wanted);
        } else if wanted {
            self.ready.push_back(FollowEvent::Output(entry));
        }
    }

    /// Looks whether the process has exited, and then whether its output is drained.
    async fn look(&mut self) -> Result<(), Error> {
        let Some(exited) = self.exited.clone() else {
            let process = self.status().await?;
            if process.is_running() {
                self.look_at = Instant::now() + self.pause;
                self.pause = (2 * self.pause).min(self.options.status_interval);
                return Ok(());
            }
            self.exited = Some(process);
            self.fetch().await?;
            self.look_at = Instant::now() + self.until_drained();
            return Ok(());
        };
        if self.fetch().await? && self.held.is_none() {
            self.look_at = Instant::now() + self.options.drain;
            return Ok(());
        }
        self.held = None;
        self.ready.push_back(FollowEvent::Exited(exited));
        self.done = true;
        self.events = None;
        Ok(())
    }

    /// How much longer an exited process has to write nothing. The server's mark is the end of its output.
    fn until_drained(&self) -> Duration {
        if self.held.is_some() { Duration::ZERO } else { self.options.drain }
    }

    async fn wait_to_retry(&mut self, error: Error) -> Result<(), Error> {
        self.events = None;
        let since = *self.retry.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.options.retry_for {
            return Err(error);
        }
        tracing::debug!(%error, process = self.id, "reconnecting to the output of a process");
        sleep(self.retry.pause).await;
        self.retry.pause = (2 * self.retry.pause).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// The error for an event stream that ends, which a released server's does not do by itself.
fn ended() -> Error {
    let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    Error::ConnectionLost { what: "follow process logs".to_owned(), source: Arc::new(source) }
}

/// Whether the same request may succeed a moment later.
fn is_transient(error: &Error) -> bool {
    match error {
        Error::Unreachable(_) | Error::ConnectionLost { .. } | Error::Timeout(_) => true,
        Error::Http(answer) => matches!(answer.status, 429 | 502 | 503 | 504),
        _ => false,
    }
}
