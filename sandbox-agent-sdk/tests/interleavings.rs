//! The queue of a subscriber under random schedules: overflow, a reader that is dropped, and the end.
//!
//! The file of the queue is compiled a second time here, with locks at which the scheduler may switch.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering as Memory};

use shuttle::future::block_on;
use shuttle::thread;

#[path = "../src/client/event/queue.rs"]
#[allow(dead_code)]
mod queue;

mod sync {
    pub(super) use shuttle::sync::atomic::{AtomicBool, Ordering};
    pub(super) use shuttle::sync::{Mutex, MutexGuard};
    pub(super) use std::sync::PoisonError;
}

use queue::Queue;

/// How many schedules each test tries.
const SCHEDULES: usize = 2_000;
const WRITERS: usize = 2;
const ITEMS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Report,
    Request,
}

impl Class {
    const COUNT: usize = 2;
}

trait Weight {
    fn weight(&self) -> usize;
    fn class(&self) -> Class;
    fn lagged(count: u64) -> Self;
}

#[derive(Debug)]
enum Thing {
    Report {
        writer: usize,
        number: usize,
    },
    /// Dropping it looks at its queue, as dropping a request answers it.
    #[allow(dead_code, reason = "it is there to be dropped")]
    Request(Answer),
    Lagged(u64),
}

#[derive(Debug)]
struct Answer {
    queue: Arc<Queue<Thing>>,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        // This would never return if the queue dropped items while it is locked.
        let _counted = self.queue.dropped();
        self.dropped.fetch_add(1, Memory::SeqCst);
    }
}

impl Weight for Thing {
    fn weight(&self) -> usize {
        match self {
            Self::Request(_) => 1 << 20,
            _ => 10,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Request(_) => Class::Request,
            _ => Class::Report,
        }
    }

    fn lagged(count: u64) -> Self {
        Self::Lagged(count)
    }
}

fn write(queue: &Arc<Queue<Thing>>) -> Vec<thread::JoinHandle<()>> {
    let writer = |writer| {
        let queue = Arc::clone(queue);
        thread::spawn(move || (0..ITEMS).for_each(|number| queue.push(Thing::Report { writer, number })))
    };
    (0..WRITERS).map(writer).collect()
}

fn next(queue: &Queue<Thing>) -> Option<Thing> {
    block_on(poll_fn(|context| queue.poll(context)))
}

#[test]
fn every_item_is_read_in_order_or_counted_and_the_end_wakes_the_reader() {
    shuttle::check_random(
        || {
            let queue = Arc::new(Queue::new(20));
            let writers = write(&queue);
            let reader = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let (mut seen, mut from) = (0, [0; WRITERS]);
                    while let Some(thing) = next(&queue) {
                        match thing {
                            Thing::Report { writer, number } => {
                                assert!(number >= from[writer], "items of one writer came in another order");
                                from[writer] = number + 1;
                                seen += 1;
                            }
                            Thing::Lagged(count) => seen += usize::try_from(count).unwrap(),
                            Thing::Request(_) => unreachable!("none was pushed"),
                        }
                    }
                    seen
                })
            };
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            queue.end();
            assert_eq!(reader.join().unwrap(), WRITERS * ITEMS);
        },
        SCHEDULES,
    );
}

#[test]
fn a_reader_that_is_dropped_while_others_push_leaves_nothing_behind() {
    shuttle::check_random(
        || {
            let (queue, dropped) = (Arc::new(Queue::new(20)), Arc::new(AtomicUsize::new(0)));
            let writer = {
                let (queue, dropped) = (Arc::clone(&queue), Arc::clone(&dropped));
                thread::spawn(move || {
                    for _ in 0..ITEMS {
                        let answer = Answer { queue: Arc::clone(&queue), dropped: Arc::clone(&dropped) };
                        queue.push(Thing::Request(answer));
                    }
                })
            };
            let taker = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.take_class(Class::Request).len())
            };
            queue.abandon();
            writer.join().unwrap();
            taker.join().unwrap();
            assert!(queue.pop().is_none(), "something was pushed behind the end");
            assert_eq!(dropped.load(Memory::SeqCst), ITEMS);
        },
        SCHEDULES,
    );
}

#[test]
fn an_end_that_races_with_pushes_is_always_seen() {
    shuttle::check_random(
        || {
            let queue = Arc::new(Queue::new(1000));
            let writers = write(&queue);
            let ender = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.end())
            };
            let mut seen = 0;
            while let Some(thing) = next(&queue) {
                assert!(matches!(thing, Thing::Report { .. }));
                seen += 1;
            }
            ender.join().unwrap();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            assert!(seen <= WRITERS * ITEMS && queue.pop().is_none());
        },
        SCHEDULES,
    );
}
