//! The log of a client: all events, without loss.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

use self::continuity::{Continuity, Verdict};
use super::hub::LogSink;
use super::lifecycle::Inner;
use super::reading::StreamReader;
use super::stream::{LogEntry, LogRecord, StreamPosition};
use super::sync::{Mutex, MutexGuard, PoisonError};
use crate::Event;
use crate::client::event::Hold;
use crate::convert::text::OneLine;
use crate::event::{Gap, Origin};

mod continuity;

/// How much memory entries may take that the server cannot send again, beyond the budget.
const RESERVE: usize = 1 << 20;

/// A lossless log of all events after a position, in one order.
///
/// Entries wait in memory up to the [budget](crate::ClientOptions::event_budget) of a subscriber. Entries beyond the
/// budget are read from the server again when the reader reaches them. If the server no longer has them, the log
/// contains a [`LogRecord::Missing`] instead. Entries that only this client has, such as [`Event::TurnEnded`], may
/// take 1 MiB more. Beyond that they are dropped, and the log contains an [`Event::Lagged`] instead.
///
/// A new connection replays the server's replay buffer. If the fingerprints show that the server has not restarted, the
/// log does not repeat entries that it already has. Otherwise all entries are new.
#[derive(Debug)]
#[must_use = "an unread log only fills its memory"]
pub struct EventLog {
    inner: Weak<Inner>,
    queue: Arc<LogQueue>,
    /// Reads what is not in the queue.
    catching_up: Option<CatchingUp>,
    /// The last position that was returned.
    position: Option<StreamPosition>,
}

#[derive(Debug)]
struct CatchingUp {
    reader: StreamReader,
    hole: Hole,
    /// Whether the hole is in the current stream, unless the reader finds another one.
    is_present: bool,
}

/// A part of the stream that is read from the server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hole {
    /// The last position before it.
    pub(super) after: StreamPosition,
    /// The last position in it; `None` if it has no end yet.
    pub(super) last: Option<StreamPosition>,
}

impl EventLog {
    pub(super) fn new(inner: &Arc<Inner>, queue: Arc<LogQueue>, from: Option<StreamPosition>) -> Self {
        // The number of an incarnation has a meaning only in the process that counted it.
        let from = from.map(|from| StreamPosition { incarnation: inner.hub.incarnation(), ..from });
        let mut log = Self { inner: Arc::downgrade(inner), queue, catching_up: None, position: from };
        if let Some(after) = from {
            log.catch_up(Hole { after, last: None });
        }
        log
    }

    /// Returns the next entry, or `None` after the client was dropped.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn next(&mut self) -> Option<LogEntry> {
        loop {
            let entry = match &mut self.catching_up {
                Some(catching_up) => {
                    let hole = catching_up.hole;
                    match catching_up.next().await {
                        Filled::Entry(entry) => {
                            if hole.last.is_none() && is_restart(&entry) {
                                self.position = None;
                            }
                            *entry
                        }
                        Filled::Gone => {
                            self.catching_up = None;
                            match self.missing(hole) {
                                Some(missing) => return Some(missing),
                                None => continue,
                            }
                        }
                        Filled::End => {
                            self.catching_up = None;
                            continue;
                        }
                    }
                }
                None => match poll_fn(|context| self.queue.poll(context)).await? {
                    Item::Entry(entry) => *entry,
                    Item::Hole(hole) => {
                        self.catch_up(hole);
                        continue;
                    }
                    Item::Lagged(count) => LogEntry::of_event(&Event::Lagged(count), None),
                },
            };
            if self.is_new(&entry) {
                return Some(entry);
            }
        }
    }

    /// Returns the position of the last entry that has one.
    #[must_use]
    pub fn position(&self) -> Option<StreamPosition> {
        self.position
    }

    fn catch_up(&mut self, hole: Hole) {
        let Some(inner) = self.inner.upgrade() else { return };
        let is_present = hole.after.incarnation == inner.hub.incarnation();
        let reader = StreamReader::new(inner, None, hole.after, hole.last.map(|last| last.offset));
        self.catching_up = Some(CatchingUp { reader, hole, is_present });
    }

    /// Creates the entry for a part of the stream that cannot be read again.
    fn missing(&mut self, hole: Hole) -> Option<LogEntry> {
        let after = self.position.filter(|position| position.is_after(&hole.after)).unwrap_or(hole.after);
        let last = hole.last.filter(|last| last.is_after(&after))?;
        self.position = Some(last);
        let gap = Gap { from: after.offset.saturating_add(1), to: last.offset };
        Some(LogEntry::new(LogRecord::Missing(gap), None, Origin::Live))
    }

    /// Whether an entry was not returned before: what is read again may overlap with what is queued.
    fn is_new(&mut self, entry: &LogEntry) -> bool {
        let Some(position) = entry.position else { return true };
        let is_new = self.position.is_none_or(|last| position.is_after(&last));
        if is_new {
            self.position = Some(position);
        }
        is_new
    }
}

/// A step of filling a hole.
enum Filled {
    Entry(Box<LogEntry>),
    /// The server does not have the rest.
    Gone,
    End,
}

impl CatchingUp {
    async fn next(&mut self) -> Filled {
        let mut entry = match self.reader.next().await {
            Some(Ok(entry)) => entry,
            Some(Err(error)) => {
                tracing::warn!(error = %OneLine(&error), "a part of the stream cannot be read again");
                return Filled::Gone;
            }
            None => return Filled::End,
        };
        if self.hole.last.is_some() {
            let is_same = self.reader.is_same_stream().unwrap_or(self.is_present);
            if !is_same {
                // The server that had these events is gone.
                return Filled::Gone;
            }
            let incarnation = self.hole.after.incarnation;
            entry.position = entry.position.map(|at| StreamPosition { incarnation, ..at });
        }
        Filled::Entry(Box::new(entry))
    }
}

/// Queued entries are dropped at once. Otherwise the hub would drop them under its lock, and dropping an unclaimed
/// request takes other locks.
impl Drop for EventLog {
    fn drop(&mut self) {
        self.queue.abandon();
    }
}

/// The entries that wait for the reader of a log.
pub(super) struct LogQueue {
    budget: usize,
    /// Guards the waiting entries; held for a push or a pop.
    state: Mutex<State>,
    waker: AtomicWaker,
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    bytes: usize,
    /// The last position that was pushed or omitted.
    position: Option<StreamPosition>,
    continuity: Continuity,
    /// Entries of a new connection, until it is known whether the log has them.
    undecided: Vec<LogEntry>,
    ended: bool,
}

pub(super) enum Item {
    Entry(Box<LogEntry>),
    Hole(Hole),
    /// This many entries that cannot be read again were dropped here.
    Lagged(u64),
}

impl LogQueue {
    /// A queue that begins after a position, or now.
    pub(super) fn new(budget: usize, from: Option<StreamPosition>) -> Self {
        let continuity = from.map(Continuity::after).unwrap_or_default();
        let state = State { continuity, ..State::default() };
        Self { budget, state: Mutex::new(state), waker: AtomicWaker::new() }
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Item>> {
        self.waker.register(context.waker());
        let mut state = self.lock();
        match state.items.pop_front() {
            Some(item) => {
                if let Item::Entry(entry) = &item {
                    state.bytes -= entry.weight();
                }
                Poll::Ready(Some(item))
            }
            None if state.ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// The reader is gone: drops all entries, including later ones.
    fn abandon(&self) {
        let waiting = std::mem::replace(&mut *self.lock(), State { ended: true, ..State::default() });
        // Dropping an unclaimed request must not happen under the lock.
        drop(waiting);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogSink for LogQueue {
    fn is_read(&self) -> bool {
        !self.lock().ended
    }

    /// Adds an entry, unless the log has it.
    fn push(&self, entry: &LogEntry, _is_of_turn: bool) -> Option<Hold> {
        let mut state = self.lock();
        if !state.ended && state.is_new(entry, self.budget) {
            let undecided = std::mem::take(&mut state.undecided);
            undecided.iter().chain([entry]).for_each(|entry| state.add(entry, self.budget));
        }
        drop(state);
        self.waker.wake();
        None
    }

    fn end(&self) {
        self.lock().ended = true;
        self.waker.wake();
    }
}

impl State {
    /// Whether to add an entry, and the undecided ones with it.
    fn is_new(&mut self, entry: &LogEntry, budget: usize) -> bool {
        if is_restart(entry) {
            self.continuity.differs();
        }
        let Some(position) = entry.position else {
            if self.undecided.is_empty() || is_restart(entry) {
                return true;
            }
            self.add(entry, budget);
            return false;
        };
        match self.continuity.judge(position, entry.origin) {
            Verdict::New => true,
            Verdict::Behind(gap) => {
                let missing = LogEntry::new(LogRecord::Missing(gap), None, Origin::Replayed);
                self.undecided.push(missing);
                true
            }
            Verdict::Repeat => {
                self.undecided.clear();
                self.position = Some(position);
                false
            }
            Verdict::Undecided => {
                let bytes: usize = self.undecided.iter().map(LogEntry::weight).sum();
                let fits = bytes.saturating_add(entry.weight()) <= budget;
                match fits {
                    true => self.undecided.push(entry.clone()),
                    false => self.continuity.differs(),
                }
                !fits
            }
        }
    }

    /// Adds an entry. An entry that exceeds the budget is omitted if it can be read from the server again.
    fn add(&mut self, entry: &LogEntry, budget: usize) {
        let weight = entry.weight();
        let before = self.position;
        if let Some(position) = entry.position {
            self.position = Some(position);
        }
        let total = self.bytes.saturating_add(weight);
        let fits = self.bytes == 0 || total <= budget;
        match (entry.position, before, self.items.back_mut()) {
            (Some(position), Some(after), last)
                if !fits && is_readable(entry) && after.incarnation == position.incarnation =>
            {
                match last {
                    Some(Item::Hole(hole)) if hole.after.incarnation == position.incarnation => {
                        hole.last = Some(position);
                    }
                    _ => self.items.push_back(Item::Hole(Hole { after, last: Some(position) })),
                }
            }
            (_, _, Some(Item::Lagged(count))) if total > budget.saturating_add(RESERVE) => *count += 1,
            _ if !fits && total > budget.saturating_add(RESERVE) => self.items.push_back(Item::Lagged(1)),
            _ => {
                self.bytes = total;
                self.items.push_back(Item::Entry(Box::new(entry.clone())));
            }
        }
    }
}

/// Whether the server has restarted here.
fn is_restart(entry: &LogEntry) -> bool {
    matches!(entry.record, LogRecord::Event(Event::ServerRestarted))
}

/// Whether the server can send an entry again. It cannot resend events that this client creates, such as the end of a
/// session.
fn is_readable(entry: &LogEntry) -> bool {
    matches!(
        &entry.record,
        LogRecord::Event(Event::Update(_) | Event::Other { .. } | Event::AgentUnparsed { .. })
            | LogRecord::AgentRequest { .. }
            | LogRecord::Response { .. }
    )
}

impl fmt::Debug for LogQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("LogQueue")
            .field("items", &state.items.len())
            .field("bytes", &state.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Update;

    fn update(offset: u64) -> LogEntry {
        let content = json!({"type": "text", "text": offset.to_string()});
        let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
        let update = Update::read(json!({"sessionId": "s", "update": update}), Origin::Live, 1000);
        LogEntry::of_event(&Event::Update(update), Some(StreamPosition::of(0, offset, b"")))
    }

    fn pop(queue: &LogQueue) -> Option<Item> {
        match queue.poll(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(item) => item,
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_log_that_is_dropped_drops_its_entries_at_once() {
        let queue = Arc::new(LogQueue::new(1 << 20, None));
        let log =
            EventLog { inner: Weak::new(), queue: Arc::clone(&queue), catching_up: None, position: None };
        queue.push(&update(1), true);
        assert_eq!(queue.lock().items.len(), 1);
        drop(log);
        queue.push(&update(2), true);
        assert!(queue.lock().items.is_empty() && !queue.is_read());
    }

    #[test]
    fn what_exceeds_the_budget_becomes_a_hole_and_everything_else_stays() {
        let queue = LogQueue::new(2 * update(1).weight(), None);
        (1..=4).for_each(|offset| drop(queue.push(&update(offset), true)));
        let news = LogEntry::of_event(&Event::Reconnected { checked: true }, None);
        queue.push(&news, true);
        (5..=6).for_each(|offset| drop(queue.push(&update(offset), true)));
        let mut seen = Vec::new();
        while let Some(item) = pop(&queue) {
            seen.push(match item {
                Item::Entry(entry) => entry.position.map_or("news".to_owned(), |at| at.offset.to_string()),
                Item::Hole(hole) => format!("{}..{}", hole.after.offset, hole.last.map_or(0, |at| at.offset)),
                Item::Lagged(count) => format!("{count} lost"),
            });
        }
        assert_eq!(seen, ["1", "2", "2..4", "news", "4..6"]);
        assert_eq!(queue.lock().bytes, 0);
        queue.push(&update(7), true);
        assert!(matches!(pop(&queue), Some(Item::Entry(_))));
        queue.end();
        queue.push(&update(8), true);
        assert!(pop(&queue).is_none());
    }
}
