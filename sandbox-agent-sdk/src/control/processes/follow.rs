//! Streams the output of a process.

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
use crate::client::deadline::deadline_after;
use crate::client::network::check_runtime;
use crate::convert::text::OneLine;

/// The text that released servers append to a terminal's output when its process has exited.
pub(in crate::control) const PTY_END: &[u8] = b"\n[process stream error: I/O error (os error 5)]\n";

/// The first delay between two connection attempts, and between two status checks.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest delay between two connection attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Options for following the output of a process.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct FollowOptions {
    /// Where to start.
    pub from: FollowFrom,
    /// Restricts the output to one stream. `None` and [`LogStream::Combined`] mean all output.
    pub stream: Option<LogStream>,
    /// How often to check whether a silent process has exited. Default 1 s. The event streams of released servers do
    /// not end when the process exits.
    pub status_interval: Duration,
    /// How long the output of an exited process must be silent to count as drained. Default 500 ms.
    ///
    /// Servers before 0.5.5 report the exit before the last output and do not report the end of the output. A
    /// child process may keep the output open, so there is no other signal to wait for.
    pub drain: Duration,
    /// How long to retry a lost connection before the stream fails. Default 30 s.
    pub retry_for: Duration,
}

/// Where to start following.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FollowFrom {
    /// At the beginning of the output.
    #[default]
    Start,
    /// At the last stored entries: this many entries before the end.
    Tail(u64),
    /// After this sequence number.
    After(u64),
}

impl FollowOptions {
    /// Creates options that follow all output from the beginning.
    pub fn new() -> Self {
        Self {
            from: FollowFrom::Start,
            stream: None,
            status_interval: Duration::from_secs(1),
            drain: Duration::from_millis(500),
            retry_for: Duration::from_secs(30),
        }
    }

    /// Sets where to start.
    pub fn from(mut self, from: FollowFrom) -> Self {
        self.from = from;
        self
    }

    /// Restricts the output to one stream.
    pub fn stream(mut self, stream: LogStream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Sets how long the output of an exited process must be silent to count as drained.
    pub fn drain(mut self, quiet: Duration) -> Self {
        self.drain = quiet;
        self
    }

    /// Sets how long to retry a lost connection.
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

/// An event of a followed process.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum FollowEvent {
    /// A piece of output.
    Output(LogEntry),
    /// The server no longer has some output: the entries after `after` and before `next`.
    #[non_exhaustive]
    Gap {
        /// The last entry before the gap; 0 if there is none.
        after: u64,
        /// The first entry after the gap.
        next: u64,
    },
    /// The process has exited and its output is drained. This is the last event.
    Exited(ProcessInfo),
}

/// A stream of the output of a process. See [`Processes::follow`].
///
/// If the connection is lost, it reconnects and continues after the last entry. It also fetches entries that the
/// server's event stream skipped. It reads only while it is polled.
///
/// # Errors
/// The stream ends after an error:
///
/// - [`Error::Http`] with status 404: the record of the process was deleted;
/// - [`Error::ServerRestarted`]: another process has the id now;
/// - the last connection error, if reconnecting took longer than [`FollowOptions::retry_for`].
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
    /// The last accepted entry; `None` until the start is known.
    after: Option<u64>,
    /// When the process was created. Distinguishes it from another process with the same id.
    created_at: Option<u64>,
    /// The server's event stream.
    events: Option<LogEvents>,
    /// Events to deliver.
    ready: VecDeque<FollowEvent>,
    /// An entry that is dropped if it is the last one: see [`PTY_END`].
    held: Option<LogEntry>,
    /// The exited process.
    exited: Option<ProcessInfo>,
    done: bool,
    /// When to check the status, or whether the output is drained.
    look_at: Instant,
    pause: Duration,
    connected_at: Instant,
    retry: Retry,
}

/// The current series of failed reconnects.
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

    /// Receives an event, checks the status, or connects.
    async fn step(&mut self) -> Result<(), Error> {
        check_runtime()?;
        let Some(events) = &mut self.events else { return self.connect().await };
        tokio::select! {
            entry = events.next() => match entry {
                Some(entry) => self.receive(entry?).await,
                // The record was deleted, or the server is shutting down. The next connection attempt shows
                // which.
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
        self.events = Some(LogEvents::new(body, self.processes.http.limits().log_event));
        self.connected_at = Instant::now();
        self.look_at = self.connected_at;
        Ok(())
    }

    /// Returns the process. Fails if another process has its id now.
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
        // The entries before the tail were not requested, so they are not a gap.
        self.after = Some(entries.first().map_or(0, |first| first.sequence.saturating_sub(1)));
        entries.into_iter().for_each(|entry| self.accept(entry));
        Ok(self.after.unwrap_or_default())
    }

    async fn receive(&mut self, entry: LogEntry) -> Result<(), Error> {
        if entry.sequence > self.after.unwrap_or_default().saturating_add(1) {
            // The server's event stream skips entries when it is slow; the log may still have them.
            self.fetch().await?;
        }
        self.accept(entry);
        self.retry = Retry::default();
        self.pause = FIRST_PAUSE;
        let quiet = if self.exited.is_some() { self.until_drained() } else { self.pause };
        self.look_at = deadline_after(quiet);
        Ok(())
    }

    /// Fetches log entries after the last one. Returns whether there were any.
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
        if entry.sequence > after.saturating_add(1) {
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

    /// Checks whether the process has exited, and then whether its output is drained.
    async fn look(&mut self) -> Result<(), Error> {
        let Some(exited) = self.exited.clone() else {
            let process = self.status().await?;
            if process.is_running() {
                self.look_at = deadline_after(self.pause);
                self.pause = (2 * self.pause).min(self.options.status_interval);
                return Ok(());
            }
            self.exited = Some(process);
            self.fetch().await?;
            self.look_at = deadline_after(self.until_drained());
            return Ok(());
        };
        if self.fetch().await? && self.held.is_none() {
            self.look_at = deadline_after(self.options.drain);
            return Ok(());
        }
        self.held = None;
        self.ready.push_back(FollowEvent::Exited(exited));
        self.done = true;
        self.events = None;
        Ok(())
    }

    /// Returns how long an exited process must still be silent. The server's end marker ends the output at
    /// once.
    fn until_drained(&self) -> Duration {
        if self.held.is_some() { Duration::ZERO } else { self.options.drain }
    }

    async fn wait_to_retry(&mut self, error: Error) -> Result<(), Error> {
        self.events = None;
        let since = *self.retry.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.options.retry_for {
            return Err(error);
        }
        tracing::debug!(error = %OneLine(&error), process = self.id, "reconnecting to the output of a process");
        sleep(self.retry.pause).await;
        self.retry.pause = (2 * self.retry.pause).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// The error of an event stream that ended. On released servers it normally stays open.
fn ended() -> Error {
    let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    Error::ConnectionLost { what: "follow process logs".to_owned(), source: Arc::new(source) }
}

/// Whether the same request may succeed later.
fn is_transient(error: &Error) -> bool {
    match error {
        Error::Unreachable(_) | Error::ConnectionLost { .. } | Error::Timeout(_) => true,
        Error::Http(response) => matches!(response.status, 429 | 502 | 503 | 504),
        _ => false,
    }
}
