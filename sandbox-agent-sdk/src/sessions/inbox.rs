//! The mailbox of a tracker: events and commands, in one order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::entry::Entry;
use super::sync::{Mutex, MutexGuard, PoisonError};

/// The mailbox of one tracker. Events are bounded in number and bytes. Events that do not fit are counted in order.
#[derive(Debug)]
pub(super) struct Inbox<C> {
    session: String,
    capacity: usize,
    max_bytes: usize,
    /// Guards the queued items; held for a push or a take.
    state: Mutex<State<C>>,
    filled: Notify,
    /// Whether the tracker is doing something that may wait for the agent.
    busy: AtomicBool,
    /// Whether this process is deleting the session.
    deleting: AtomicBool,
}

#[derive(Debug)]
struct State<C> {
    items: VecDeque<Item<C>>,
    events: usize,
    bytes: usize,
    closed: bool,
}

/// The outcome of pushing an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It waits to be stored.
    Queued,
    /// It did not fit. A loss marker that waits to be stored represents it.
    FirstLost,
    /// It did not fit, like the ones before it.
    Lost,
    /// The tracker has ended.
    Closed,
}

impl Pushed {
    /// Whether the tracker will store the event or a loss marker for it.
    pub(super) fn is_held(self) -> bool {
        matches!(self, Self::Queued | Self::FirstLost)
    }
}

/// An item in the mailbox of a tracker.
#[derive(Debug)]
pub(super) enum Item<C> {
    /// An event of the session.
    Event(Entry),
    /// This many events did not fit. The first of them is given.
    Lost(Box<Entry>, u64),
    /// A command, or a notification that must be handled in order.
    Command(C),
}

impl<C> Inbox<C> {
    pub(super) fn new(session: &str, capacity: usize, max_bytes: usize) -> Self {
        let state = State { items: VecDeque::new(), events: 0, bytes: 0, closed: false };
        Self {
            session: session.to_owned(),
            capacity: capacity.max(1),
            max_bytes,
            state: Mutex::new(state),
            filled: Notify::new(),
            busy: AtomicBool::new(false),
            deleting: AtomicBool::new(false),
        }
    }

    /// The id of the session.
    pub(super) fn session(&self) -> &str {
        &self.session
    }

    pub(super) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Release);
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    pub(super) fn set_deleting(&self, deleting: bool) {
        self.deleting.store(deleting, Ordering::Release);
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.deleting.load(Ordering::Acquire)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Adds an event. An event that does not fit is counted at its position.
    pub(super) fn push(&self, entry: Entry) -> Pushed {
        self.add(|state| {
            let has_room = state.bytes + entry.weight <= self.max_bytes || state.events == 0;
            if state.events >= self.capacity || !has_room {
                return state.lose(entry, 1);
            }
            state.events += 1;
            state.bytes += entry.weight;
            state.items.push_back(Item::Event(entry));
            Pushed::Queued
        })
    }

    /// Counts events as lost at this position. This was the first of them.
    pub(super) fn lose(&self, first: Entry, count: u64) -> Pushed {
        self.add(|state| state.lose(first, count))
    }

    fn add(&self, add: impl FnOnce(&mut State<C>) -> Pushed) -> Pushed {
        let mut state = self.lock();
        if state.closed {
            return Pushed::Closed;
        }
        let pushed = add(&mut state);
        drop(state);
        self.filled.notify_one();
        pushed
    }

    /// Adds a command. Returns it if the tracker has ended.
    pub(super) fn command(&self, command: C) -> Result<(), C> {
        let mut state = self.lock();
        if state.closed {
            return Err(command);
        }
        state.items.push_back(Item::Command(command));
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    /// Adds a command, unless the tracker has ended.
    pub(super) fn note(&self, command: C) {
        // A tracker that has ended has nothing to notice.
        let _ = self.command(command);
    }

    /// Waits until the mailbox is not empty; `false` if it was closed.
    pub(super) async fn filled(&self) -> bool {
        loop {
            let filled = self.filled.notified();
            {
                let state = self.lock();
                if state.closed || !state.items.is_empty() {
                    return !state.closed;
                }
            }
            filled.await;
        }
    }

    /// Whether a command waits, or a whole batch of events.
    pub(super) fn is_urgent(&self, batch: usize) -> bool {
        let state = self.lock();
        state.events >= batch || state.items.iter().any(|item| matches!(item, Item::Command(_)))
    }

    /// Waits for the next item.
    pub(super) async fn more(&self) {
        self.filled.notified().await;
    }

    /// Takes the events before the first command, at most this many; or the command, if it is first.
    pub(super) fn take(&self, batch: usize) -> Vec<Item<C>> {
        let mut state = self.lock();
        let is_event = |item: &&Item<C>| !matches!(item, Item::Command(_));
        let events = state.items.iter().take(batch).take_while(is_event).count();
        let count = events.max(1).min(state.items.len());
        let taken: Vec<_> = state.items.drain(..count).collect();
        let weights = taken.iter().filter_map(|item| match item {
            Item::Event(entry) => Some(entry.weight),
            Item::Lost(..) | Item::Command(_) => None,
        });
        for weight in weights {
            state.events -= 1;
            state.bytes -= weight;
        }
        taken
    }

    /// Takes everything except the commands that `waits` selects, which stay in order.
    pub(super) fn take_all_but(&self, waits: impl Fn(&C) -> bool) -> Vec<Item<C>> {
        let mut state = self.lock();
        let items = std::mem::take(&mut state.items);
        let stays = |item: &Item<C>| matches!(item, Item::Command(command) if waits(command));
        let (stay, taken): (VecDeque<_>, VecDeque<_>) = items.into_iter().partition(stays);
        state.items = stay;
        (state.events, state.bytes) = (0, 0);
        drop(state);
        self.filled.notify_one();
        taken.into()
    }

    /// Takes the events and leaves the commands.
    pub(super) fn take_events(&self) -> Vec<Item<C>> {
        self.take_all_but(|_| true)
    }

    /// Closes the mailbox if it is empty. Returns whether it closed it.
    pub(super) fn close_if_empty(&self) -> bool {
        let mut state = self.lock();
        state.closed |= state.items.is_empty();
        state.closed
    }

    /// Closes the mailbox and returns the remaining items.
    pub(super) fn close(&self) -> VecDeque<Item<C>> {
        let mut state = self.lock();
        state.closed = true;
        (state.events, state.bytes) = (0, 0);
        let items = std::mem::take(&mut state.items);
        drop(state);
        self.filled.notify_one();
        items
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> State<C> {
    fn lose(&mut self, first: Entry, count: u64) -> Pushed {
        if let Some(Item::Lost(_, lost)) = self.items.back_mut() {
            *lost = lost.saturating_add(count);
            return Pushed::Lost;
        }
        self.items.push_back(Item::Lost(Box::new(first), count));
        Pushed::FirstLost
    }
}
