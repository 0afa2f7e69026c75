//! Fan-out to subscribers, each with its own byte budget.

use std::{
    borrow::Cow,
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use agent_client_protocol_schema::v1::CLIENT_METHOD_NAMES;
use bytes::Bytes;
use futures::{Stream, task::AtomicWaker};

use super::{
    Event, Meta, Notification, Stored,
    sync::{Mutex, MutexGuard, PoisonError},
};
use crate::Json;

/// The capacity that an empty queue of a subscriber retains, in events.
const SPARE: usize = 256;

/// Sends every event to every subscriber. It never waits for one.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    /// Guards the list of queues and whether more events follow; held for a push.
    subscribers: Mutex<Subscribers>,
}

#[derive(Debug, Default)]
struct Subscribers {
    queues: Vec<Arc<Queue>>,
    /// The last event, once no more follow.
    ended: Option<Event>,
}

impl Hub {
    pub(crate) fn subscribe(&self, budget: usize) -> Events {
        let queue = Arc::new(Queue::new(budget));
        let mut subscribers = lock(&self.subscribers);
        match &subscribers.ended {
            Some(event) => {
                queue.push(Item::Own(Stored::Other(Box::new(event.clone()))));
                queue.end();
            }
            None => subscribers.queues.push(queue.clone()),
        }
        Events { queue, untyped: false }
    }

    pub(crate) fn publish(&self, event: Stored) {
        let mut subscribers = lock(&self.subscribers);
        if subscribers.queues.is_empty() {
            return;
        }
        // A queue without a reader has only this reference left.
        subscribers.queues.retain(|queue| Arc::strong_count(queue) > 1);
        match &subscribers.queues[..] {
            [] => {}
            // The usual case: one reader takes the event as it is.
            [queue] => queue.push(Item::Own(event)),
            queues => {
                let event = Arc::new(event);
                queues.iter().for_each(|queue| queue.push(Item::Shared(event.clone())));
            }
        }
    }

    /// Publishes the last event.
    pub(crate) fn end(&self, event: Event) {
        let mut subscribers = lock(&self.subscribers);
        for queue in subscribers.queues.drain(..) {
            queue.push(Item::Own(Stored::Other(Box::new(event.clone()))));
            queue.end();
        }
        subscribers.ended = Some(event);
    }

    /// How many subscriptions there are.
    pub(crate) fn subscriber_count(&self) -> usize {
        lock(&self.subscribers).queues.iter().filter(|queue| Arc::strong_count(queue) > 1).count()
    }
}

/// A subscription to the later events of a connection.
///
/// It ends after [`ConnectionState::Terminated`](crate::ConnectionState::Terminated).
#[derive(Debug)]
#[must_use = "an unread subscription only counts the events that it misses"]
pub struct Events {
    queue: Arc<Queue>,
    /// Whether updates are delivered as notifications.
    untyped: bool,
}

impl Events {
    /// Delivers updates as [`Event::Notification`], with their parameters as JSON. Use it to parse updates into your
    /// own types.
    pub fn untyped(mut self) -> Self {
        self.untyped = true;
        self
    }

    /// Returns the next event, or `None` after the last one.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn recv(&mut self) -> Option<Event> {
        futures::StreamExt::next(self).await
    }

    /// Returns how many events are queued. Events that were dropped in a row count as one.
    #[must_use]
    pub fn queued(&self) -> usize {
        lock(&self.queue.state).items.len()
    }

    /// Returns the next event if one is queued, without waiting.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.queue.pop(self.untyped).event()
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if let popped @ (Popped::Event(_) | Popped::Ended) = self.queue.pop(self.untyped) {
            return Poll::Ready(popped.event());
        }
        self.queue.waker.register(context.waker());
        // An event may have been pushed before the waker was registered.
        match self.queue.pop(self.untyped) {
            Popped::Empty => Poll::Pending,
            popped => Poll::Ready(popped.event()),
        }
    }
}

#[derive(Debug)]
struct Queue {
    budget: usize,
    /// Guards the queued events; held for a push or a pop.
    state: Mutex<QueueState>,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct QueueState {
    items: VecDeque<Item>,
    bytes: usize,
    ended: bool,
}

#[derive(Debug)]
enum Item {
    Own(Stored),
    /// An event that is shared with other subscribers.
    Shared(Arc<Stored>),
    /// This many events were dropped here.
    Lagged(u64),
}

impl Item {
    fn event(&self) -> Option<&Stored> {
        match self {
            Self::Own(event) => Some(event),
            Self::Shared(event) => Some(event),
            Self::Lagged(_) => None,
        }
    }
}

/// The front of a queue.
enum Popped {
    Event(Event),
    Empty,
    Ended,
}

impl Popped {
    fn event(self) -> Option<Event> {
        match self {
            Self::Event(event) => Some(event),
            Self::Empty | Self::Ended => None,
        }
    }
}

impl Queue {
    fn new(budget: usize) -> Self {
        Self { budget, state: Mutex::default(), waker: AtomicWaker::new() }
    }

    fn push(&self, item: Item) {
        let mut state = lock(&self.state);
        let Some(event) = item.event() else { return };
        let weight = event.weight();
        let fits = state.bytes == 0 || state.bytes + weight <= self.budget;
        // The end is never dropped.
        if fits || event.is_the_end() {
            state.bytes += weight;
            state.items.push_back(item);
        } else if let Some(Item::Lagged(count)) = state.items.back_mut() {
            *count += 1;
        } else {
            state.items.push_back(Item::Lagged(1));
        }
        drop(state);
        self.waker.wake();
    }

    /// Takes the first event. Whether more follow is read under the same lock, so that the last is not missed.
    fn pop(&self, untyped: bool) -> Popped {
        let mut state = lock(&self.state);
        let Some(item) = state.items.pop_front() else {
            return if state.ended { Popped::Ended } else { Popped::Empty };
        };
        state.bytes -= item.event().map_or(0, Stored::weight);
        if state.items.is_empty() && state.items.capacity() > SPARE {
            // Memory that a burst needed is freed after it is read.
            state.items = VecDeque::new();
        }
        drop(state);
        Popped::Event(match item {
            Item::Lagged(count) => Event::Lagged(count),
            Item::Own(event) => given(event, untyped),
            // The last subscriber that reads an event takes it without a copy.
            Item::Shared(event) => match Arc::try_unwrap(event) {
                Ok(event) => given(event, untyped),
                Err(event) => match &*event {
                    Stored::Update { params, meta } if untyped => notification(params.clone(), meta.clone()),
                    event => event.to_event(),
                },
            },
        })
    }

    fn end(&self) {
        lock(&self.state).ended = true;
        self.waker.wake();
    }
}

fn given(event: Stored, untyped: bool) -> Event {
    match event {
        Stored::Update { params, meta } if untyped => notification(params, meta),
        event => event.into_event(),
    }
}

/// An update as a notification. A byte that is not UTF-8 is replaced, as the event stream format requires.
fn notification(params: Bytes, meta: Meta) -> Event {
    let params = match std::str::from_utf8(&params) {
        Ok(_) => params,
        Err(_) => Bytes::from(String::from_utf8_lossy(&params).into_owned()),
    };
    let method = Cow::Borrowed(CLIENT_METHOD_NAMES.session_update);
    Event::Notification(Notification { method, params: Json::new(params), meta })
}

/// A panic under the lock cannot leave a list half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
