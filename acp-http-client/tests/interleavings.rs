//! The hub of events, the outboxes and the queue of agent requests under random schedules.
//!
//! Their files are compiled a second time here, with locks at which the scheduler may switch.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

use bytes::Bytes;
use futures::StreamExt;
use shuttle::{future::block_on, thread};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[path = "../src/events/hub.rs"]
#[allow(dead_code, unreachable_pub)]
mod hub;

#[path = "../src/outbound/outbox.rs"]
#[allow(dead_code, unreachable_pub)]
mod outbox;

#[path = "../src/handler/queue.rs"]
#[allow(dead_code, unreachable_pub)]
mod queue;

mod sync {
    pub(super) use shuttle::sync::{Mutex, MutexGuard};
    pub(super) use std::sync::PoisonError;
}

use hub::{Events, Hub};
use outbox::Outbox;
use queue::RequestQueue;

/// How many schedules each test tries.
const SCHEDULES: usize = 2_000;
const WRITERS: u64 = 2;
const EVENTS: u64 = 4;

/// Stands for the events of a connection.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Sent { writer: u64, number: u64 },
    Notification(Notification),
    Lagged(u64),
    End,
}

#[derive(Debug, Clone, PartialEq)]
#[allow(dead_code, reason = "the hub makes it")]
pub struct Notification {
    method: std::borrow::Cow<'static, str>,
    params: Json,
    meta: Meta,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Json(#[allow(dead_code, reason = "the hub makes it")] Bytes);

impl Json {
    fn new(text: Bytes) -> Self {
        Self(text)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Meta;

#[derive(Debug)]
pub enum Stored {
    #[allow(dead_code, reason = "the hub asks for it")]
    Update {
        params: Bytes,
        meta: Meta,
    },
    Other(Box<Event>),
}

impl Stored {
    fn weight(&self) -> usize {
        10
    }

    fn is_the_end(&self) -> bool {
        matches!(self, Self::Other(event) if **event == Event::End)
    }

    fn to_event(&self) -> Event {
        match self {
            Self::Update { .. } => unreachable!("none is published"),
            Self::Other(event) => (**event).clone(),
        }
    }

    fn into_event(self) -> Event {
        self.to_event()
    }
}

/// Stand for an agent request and its responder. A responder that is dropped cancels its request.
mod channel {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug)]
    pub struct AgentRequest(pub(super) u64);

    #[derive(Debug)]
    pub struct Responder {
        pub(super) dropped: Arc<AtomicUsize>,
        /// Whether nothing waits for the response.
        pub(super) is_closed: bool,
    }

    impl Responder {
        pub(super) fn is_closed(&self) -> bool {
            self.is_closed
        }
    }

    impl Drop for Responder {
        fn drop(&mut self) {
            self.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn write(hub: &Arc<Hub>) -> Vec<thread::JoinHandle<()>> {
    let writer = |writer| {
        let hub = hub.clone();
        thread::spawn(move || {
            for number in 0..EVENTS {
                hub.publish(Stored::Other(Box::new(Event::Sent { writer, number })));
            }
        })
    };
    (0..WRITERS).map(writer).collect()
}

/// Reads to the end: how many events came, and how many were counted as dropped.
fn read(mut events: Events) -> (u64, u64) {
    let (mut seen, mut lagged, mut next) = (0, 0, [0; WRITERS as usize]);
    let mut ended = false;
    while let Some(event) = block_on(events.next()) {
        assert!(!ended, "{event:?} came behind the end");
        match event {
            Event::Sent { writer, number } => {
                assert!(number >= next[writer as usize], "events of one writer came in another order");
                next[writer as usize] = number + 1;
                seen += 1;
            }
            Event::Lagged(count) => lagged += count,
            Event::Notification(_) => unreachable!("none is published"),
            Event::End => ended = true,
        }
    }
    assert!(ended, "the last event is missing");
    (seen, lagged)
}

#[test]
fn every_event_is_read_or_counted_and_the_end_is_never_missed() {
    shuttle::check_random(
        || {
            let hub = Arc::new(Hub::default());
            let subscribers: Vec<Events> = [20, 1000].map(|budget| hub.subscribe(budget)).into();
            let readers: Vec<_> =
                subscribers.into_iter().map(|events| thread::spawn(move || read(events))).collect();
            let writers = write(&hub);
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            hub.end(Event::End);
            let read: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
            assert!(read.iter().all(|(seen, lagged)| seen + lagged == WRITERS * EVENTS), "{read:?}");
            assert_eq!(read[1].1, 0, "there was room for everything");
        },
        SCHEDULES,
    );
}

#[test]
fn subscribers_that_are_dropped_or_come_late_lose_nothing_for_others_and_see_the_end() {
    shuttle::check_random(
        || {
            let hub = Arc::new(Hub::default());
            let (kept, dropped) = (hub.subscribe(1000), hub.subscribe(10));
            let reader = thread::spawn(move || read(kept));
            let writers = write(&hub);
            let dropper = thread::spawn(move || drop(dropped));
            let late = {
                let hub = hub.clone();
                thread::spawn(move || read(hub.subscribe(1000)))
            };
            // The end races with a new subscriber, and comes behind what was written.
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            hub.end(Event::End);
            dropper.join().unwrap();
            assert_eq!(reader.join().unwrap(), (WRITERS * EVENTS, 0));
            assert!(late.join().unwrap().0 <= WRITERS * EVENTS);
            assert_eq!(hub.subscriber_count(), 0);
        },
        SCHEDULES,
    );
}

#[test]
fn one_message_of_a_session_leaves_at_a_time_and_no_lane_is_left() {
    shuttle::check_random(
        || {
            let outbox = Arc::new(Outbox::default());
            let session: Arc<str> = "s".into();
            let sending = Arc::new(AtomicUsize::new(0));
            let sender = |gives_up: bool| {
                let (outbox, session, sending) = (outbox.clone(), session.clone(), sending.clone());
                thread::spawn(move || {
                    let mut slot = Box::pin(outbox.enter(&session));
                    if gives_up {
                        drop(block_on(async { futures::poll!(&mut slot) }));
                        return;
                    }
                    let slot = block_on(slot);
                    assert_eq!(sending.fetch_add(1, Ordering::SeqCst), 0, "two messages leave at once");
                    // The scheduler may switch here.
                    assert!(outbox.len() == 1);
                    sending.fetch_sub(1, Ordering::SeqCst);
                    drop(slot);
                })
            };
            let senders = [false, true, false, false].map(sender);
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            assert_eq!(outbox.len(), 0);
        },
        SCHEDULES,
    );
}

#[test]
fn a_prompt_behind_a_cancel_is_sent_or_withdrawn_and_never_stuck() {
    shuttle::check_random(
        || {
            let outbox = Arc::new(Outbox::default());
            let session: Arc<str> = "s".into();
            outbox.begin_turn(&session, 1);
            assert!(outbox.start_turn(&session, 1));
            let spawn = |work: fn(&Arc<Outbox>, &Arc<str>)| {
                let (outbox, session) = (outbox.clone(), session.clone());
                thread::spawn(move || work(&outbox, &session))
            };
            let threads = [
                spawn(|outbox, session| {
                    let cancelled = outbox.cancel(session);
                    drop(cancelled.cancelling);
                    drop(outbox.cancel_again(session, &cancelled.running));
                }),
                spawn(|outbox, _| outbox.end_turn(1)),
                spawn(|outbox, session| {
                    outbox.begin_turn(session, 2);
                    assert!(block_on(outbox.settled(session, None)));
                    if outbox.start_turn(session, 2) {
                        outbox.end_turn(2);
                    }
                }),
            ];
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(outbox.len(), 0);
        },
        SCHEDULES,
    );
}

#[test]
fn a_prompt_is_never_sent_while_a_cancel_of_another_turn_is_open() {
    shuttle::check_random(
        || {
            let outbox = Arc::new(Outbox::default());
            let session: Arc<str> = "s".into();
            outbox.begin_turn(&session, 1);
            assert!(outbox.start_turn(&session, 1));
            // In the order of the client: the cancel is counted with its turns, sent, and repeated while they run.
            let canceller = {
                let (outbox, session) = (outbox.clone(), session.clone());
                thread::spawn(move || {
                    let cancelled = outbox.cancel(&session);
                    drop(cancelled.cancelling);
                    for _ in 0..2 {
                        drop(outbox.cancel_again(&session, &cancelled.running));
                    }
                    cancelled.running
                })
            };
            let ender = {
                let outbox = outbox.clone();
                thread::spawn(move || outbox.end_turn(1))
            };
            let prompter = {
                let (outbox, session) = (outbox.clone(), session.clone());
                thread::spawn(move || {
                    outbox.begin_turn(&session, 2);
                    assert!(block_on(outbox.settled(&session, None)));
                    let sent = outbox.start_turn(&session, 2);
                    let hit = sent && outbox.is_cancelling(&session);
                    outbox.end_turn(2);
                    hit
                })
            };
            let running = canceller.join().unwrap();
            ender.join().unwrap();
            let hit = prompter.join().unwrap();
            assert!(!hit || running.contains(&2), "the cancel of turn 1 hits turn 2");
            assert_eq!(outbox.len(), 0);
        },
        SCHEDULES,
    );
}

/// More than the length at which the queue first removes cancelled requests.
const REQUESTS: u64 = 40;

/// Queues requests in their order; every third one is cancelled.
fn queue_requests(queue: &Arc<RequestQueue>, dropped: &Arc<AtomicUsize>) -> thread::JoinHandle<()> {
    let (queue, dropped) = (queue.clone(), dropped.clone());
    thread::spawn(move || {
        for number in 0..REQUESTS {
            let responder = channel::Responder { dropped: dropped.clone(), is_closed: number % 3 == 0 };
            queue.push(channel::AgentRequest(number), responder);
        }
    })
}

/// Reads agent requests to the end.
fn read_requests(queue: &Arc<RequestQueue>) -> thread::JoinHandle<Vec<u64>> {
    let queue = queue.clone();
    thread::spawn(move || {
        let mut read = Vec::new();
        while let Some((request, _)) = block_on(std::future::poll_fn(|context| queue.poll_pop(context))) {
            read.push(request.0);
        }
        read
    })
}

#[test]
fn every_open_agent_request_is_read_in_order_and_the_end_wakes_the_reader() {
    shuttle::check_random(
        || {
            let (queue, dropped) = (Arc::new(RequestQueue::default()), Arc::default());
            let reader = read_requests(&queue);
            queue_requests(&queue, &dropped).join().unwrap();
            queue.end();
            let read = reader.join().unwrap();
            assert!(read.is_sorted_by(|one, next| one < next), "{read:?}");
            let open = (0..REQUESTS).filter(|number| number % 3 != 0);
            assert!(open.into_iter().all(|number| read.contains(&number)), "{read:?}");
            assert_eq!(dropped.load(Ordering::SeqCst), REQUESTS as usize);
        },
        SCHEDULES,
    );
}

#[test]
fn an_agent_request_that_races_with_the_end_or_a_dropped_reader_is_read_or_cancelled() {
    shuttle::check_random(
        || {
            let (queue, dropped) = (Arc::new(RequestQueue::default()), Arc::default());
            let writer = queue_requests(&queue, &dropped);
            let (reader, ender) = (read_requests(&queue), queue.clone());
            let ender = thread::spawn(move || ender.end());
            let read = reader.join().unwrap();
            assert!(read.is_sorted_by(|one, next| one < next), "{read:?}");
            // The reader has reached the end, and is dropped.
            queue.abandon();
            writer.join().unwrap();
            ender.join().unwrap();
            assert!(queue.try_pop().is_none(), "a request without a reader is queued");
            assert_eq!(dropped.load(Ordering::SeqCst), REQUESTS as usize);
        },
        SCHEDULES,
    );
}

#[test]
fn a_reader_that_is_dropped_cancels_every_agent_request() {
    shuttle::check_random(
        || {
            let (queue, dropped) = (Arc::new(RequestQueue::default()), Arc::default());
            let writer = queue_requests(&queue, &dropped);
            let abandoning = {
                let queue = queue.clone();
                thread::spawn(move || {
                    drop(queue.try_pop());
                    queue.abandon();
                })
            };
            writer.join().unwrap();
            abandoning.join().unwrap();
            assert!(queue.try_pop().is_none(), "a request without a reader is queued");
            assert_eq!(dropped.load(Ordering::SeqCst), REQUESTS as usize);
        },
        SCHEDULES,
    );
}
