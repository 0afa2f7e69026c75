//! What waits for one reader, within a budget.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

/// What the items of a queue have to tell about themselves.
pub(crate) trait Weight {
    /// What it counts for in the budget, in bytes.
    fn weight(&self) -> usize;
    /// Whether it is small and rare and nobody may miss it.
    fn is_vital(&self) -> bool;
    /// The item that stands for so many others which were dropped.
    fn lagged(count: u64) -> Self;
}

/// A queue that never makes its writer wait: once the budget is spent, items are dropped and counted.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    budget: usize,
    /// Guards what waits; held for a push or a pop.
    state: Mutex<State<T>>,
    waker: AtomicWaker,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<Item<T>>,
    bytes: usize,
    ended: bool,
}

#[derive(Debug)]
enum Item<T> {
    Given(T),
    Lagged(u64),
}

impl<T: Weight> Queue<T> {
    pub(crate) fn new(budget: usize) -> Self {
        let state = State { items: VecDeque::new(), bytes: 0, ended: false };
        Self { budget, state: Mutex::new(state), waker: AtomicWaker::new() }
    }

    pub(crate) fn push(&self, item: T) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        let weight = item.weight();
        let fits = state.bytes == 0 || state.bytes + weight <= self.budget;
        if fits || item.is_vital() {
            state.bytes += weight;
            state.items.push_back(Item::Given(item));
        } else if let Some(Item::Lagged(count)) = state.items.back_mut() {
            *count += 1;
        } else {
            state.items.push_back(Item::Lagged(1));
        }
        drop(state);
        self.waker.wake();
    }

    /// Nothing will be pushed any more: the reader sees the end behind what is there.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.waker.wake();
    }

    /// Nobody reads any more: what is there is dropped, and nothing is taken.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.bytes = 0;
        let items = std::mem::take(&mut state.items);
        // Dropping a request answers it, which is not to happen under the lock.
        drop(state);
        drop(items);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        match state.items.pop_front()? {
            Item::Given(item) => {
                state.bytes -= item.weight();
                Some(item)
            }
            Item::Lagged(count) => Some(T::lagged(count)),
        }
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(item) = self.pop() {
            return Poll::Ready(Some(item));
        }
        self.waker.register(context.waker());
        // An item may have come between the look and the registration, and the end after it.
        let ended = self.lock().ended;
        match self.pop() {
            Some(item) => Poll::Ready(Some(item)),
            None if ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Queue, Weight};

    #[derive(Debug, PartialEq)]
    enum Thing {
        Small(u8),
        Vital,
        Lagged(u64),
    }

    impl Weight for Thing {
        fn weight(&self) -> usize {
            10
        }

        fn is_vital(&self) -> bool {
            *self == Self::Vital
        }

        fn lagged(count: u64) -> Self {
            Self::Lagged(count)
        }
    }

    #[test]
    fn what_does_not_fit_is_counted_in_its_place_and_the_vital_passes() {
        let queue = Queue::new(20);
        for n in 1..=4 {
            queue.push(Thing::Small(n));
        }
        queue.push(Thing::Vital);
        let seen: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(seen, [Thing::Small(1), Thing::Small(2), Thing::Lagged(2), Thing::Vital]);
        queue.push(Thing::Small(5));
        assert_eq!(queue.pop(), Some(Thing::Small(5)));
    }

    #[tokio::test]
    async fn the_end_comes_behind_what_is_there() {
        let queue = Queue::new(20);
        queue.push(Thing::Small(1));
        queue.end();
        queue.push(Thing::Small(2));
        let next = || std::future::poll_fn(|context| queue.poll(context));
        assert_eq!(next().await, Some(Thing::Small(1)));
        assert_eq!(next().await, None);
    }
}
