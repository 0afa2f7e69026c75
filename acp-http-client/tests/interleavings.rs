//! The hub of events under random schedules: overflow, subscribers that are dropped, and the end.
//!
//! The file of the hub is compiled a second time here, with locks at which the scheduler may switch.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

use bytes::Bytes;
use futures::StreamExt;
use shuttle::{future::block_on, thread};
use std::sync::Arc;

#[path = "../src/events/hub.rs"]
#[allow(dead_code, unreachable_pub)]
mod hub;

mod sync {
    pub(super) use shuttle::sync::{Mutex, MutexGuard};
    pub(super) use std::sync::PoisonError;
}

use hub::{Events, Hub};

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
    method: String,
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
            // The end races with whoever subscribes, and comes behind what was written.
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
