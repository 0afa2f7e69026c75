//! The queue of one reader, within a budget.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

use super::hold::Hold;
use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, PoisonError};
use super::{Class, Weight};

/// The minimum budget of requests and news.
pub(super) const RESERVE: usize = 1 << 20;

/// A queue whose writer never waits: items beyond the budget of their class are dropped and counted. One item of each
/// class always fits.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    budget: usize,
    /// Whether the reader decides agent requests.
    deciding: AtomicBool,
    /// Whether the reader has read requests.
    committed: AtomicBool,
    /// Guards the queued items; held for a push or a pop.
    state: Mutex<State<T>>,
    waker: AtomicWaker,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<Item<T>>,
    /// The weight of the items of each class.
    bytes: [usize; Class::COUNT],
    /// How many items were dropped.
    dropped: u64,
    ended: bool,
}

#[derive(Debug)]
enum Item<T> {
    Given { item: T, class: Class, weight: usize, hold: Option<Hold> },
    Lagged(u64),
}

impl<T: Weight> Queue<T> {
    pub(crate) fn new(budget: usize) -> Self {
        let state = State { items: VecDeque::new(), bytes: [0; Class::COUNT], dropped: 0, ended: false };
        Self {
            budget,
            deciding: AtomicBool::new(false),
            committed: AtomicBool::new(false),
            state: Mutex::new(state),
            waker: AtomicWaker::new(),
        }
    }

    pub(crate) fn push(&self, item: T) {
        self.push_held(item, None);
    }

    /// Adds an item that the reader gets when its hold ends. Later items wait too.
    pub(crate) fn push_held(&self, item: T, hold: Option<Hold>) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        let (class, weight) = (item.class(), item.weight());
        let budget = if class == Class::Report { self.budget } else { self.budget.max(RESERVE) };
        let bytes = &mut state.bytes[class as usize];
        let mut dropped = None;
        if *bytes == 0 || bytes.saturating_add(weight) <= budget {
            *bytes += weight;
            state.items.push_back(Item::Given { item, class, weight, hold });
        } else {
            dropped = Some(item);
            state.dropped += 1;
            if let Some(Item::Lagged(count)) = state.items.back_mut() {
                *count += 1;
            } else {
                state.items.push_back(Item::Lagged(1));
            }
        }
        drop(state);
        // Dropping a request responds to it, which must not happen under the lock.
        drop(dropped);
        self.waker.wake();
    }

    /// How many items were dropped because there was no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    pub(crate) fn is_deciding(&self) -> bool {
        self.deciding.load(Ordering::Acquire)
    }

    pub(crate) fn set_deciding(&self, deciding: bool) {
        self.deciding.store(deciding, Ordering::Release);
    }

    /// Whether the reader has shown that it reads requests.
    pub(crate) fn is_committed(&self) -> bool {
        self.committed.load(Ordering::Acquire)
    }

    /// The reader reads requests.
    pub(crate) fn commit(&self) {
        self.set_deciding(true);
        self.committed.store(true, Ordering::Release);
    }

    /// Removes and returns the items of a class.
    pub(crate) fn take_class(&self, wanted: Class) -> Vec<T> {
        let mut state = self.lock();
        let items = std::mem::take(&mut state.items);
        let mut taken = Vec::new();
        for item in items {
            match item {
                Item::Given { item, class, .. } if class == wanted => taken.push(item),
                other => state.items.push_back(other),
            }
        }
        state.bytes[wanted as usize] = 0;
        taken
    }

    /// Ends the queue: the reader sees the end after the queued items.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.waker.wake();
    }

    /// The reader is gone: drops all items, including later ones.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.bytes = [0; Class::COUNT];
        let items = std::mem::take(&mut state.items);
        // Dropping a request responds to it, which must not happen under the lock.
        drop(state);
        drop(items);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let (item, discarded) = self.lock().pop();
        // Dropping a request responds to it, which must not happen under the lock.
        drop(discarded);
        item
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<T>> {
        loop {
            if let Some(item) = self.pop() {
                return Poll::Ready(Some(item));
            }
            self.waker.register(context.waker());
            // An item, and the end after it, may have arrived between the check and the registration.
            let (hold, is_over) = {
                let state = self.lock();
                (state.hold().cloned(), state.ended && state.items.is_empty())
            };
            match hold {
                Some(hold) if hold.wake(context.waker()) => return Poll::Pending,
                Some(_) => continue,
                None => {}
            }
            return match self.pop() {
                Some(item) => Poll::Ready(Some(item)),
                None if is_over => Poll::Ready(None),
                None => Poll::Pending,
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Weight> State<T> {
    /// The hold on the first item.
    fn hold(&self) -> Option<&Hold> {
        match self.items.front()? {
            Item::Given { hold, .. } => hold.as_ref(),
            Item::Lagged(_) => None,
        }
    }

    /// Takes the first item, unless it is held. Discarded items before it are counted, and returned to be dropped.
    fn pop(&mut self) -> (Option<T>, Vec<T>) {
        let (mut lagged, mut discarded) = (0, Vec::new());
        loop {
            let is_released = self.hold().map_or(Some(true), Hold::is_released);
            if lagged > 0 && is_released != Some(false) {
                return (Some(T::lagged(lagged)), discarded);
            }
            if is_released.is_none() {
                return (None, discarded);
            }
            match self.items.pop_front() {
                Some(Item::Given { item, class, weight, .. }) => {
                    self.bytes[class as usize] -= weight;
                    if is_released == Some(true) {
                        return (Some(item), discarded);
                    }
                    discarded.push(item);
                    lagged += 1;
                    self.dropped += 1;
                }
                Some(Item::Lagged(count)) => return (Some(T::lagged(count)), discarded),
                None => return (None, discarded),
            }
        }
    }
}
