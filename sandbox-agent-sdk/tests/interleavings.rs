//! The queue of a subscriber and the mailbox of a stored session under random schedules.
//!
//! Their files are compiled a second time here, with locks at which the scheduler may switch.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering as Memory};

use shuttle::future::block_on;
use shuttle::thread;

#[path = "../src/client/event/hold.rs"]
#[allow(dead_code)]
mod hold;
#[path = "../src/client/event/queue.rs"]
#[allow(dead_code)]
mod queue;

#[path = "../src/sessions/inbox.rs"]
#[allow(dead_code)]
mod inbox;

/// Stands for what is stored of an event.
mod entry {
    #[derive(Debug)]
    pub(super) struct Entry {
        pub(super) writer: usize,
        pub(super) number: usize,
        pub(super) weight: usize,
    }
}

mod sync {
    pub(super) use shuttle::sync::atomic::{AtomicBool, Ordering};
    pub(super) use shuttle::sync::{Mutex, MutexGuard};
    pub(super) use std::sync::PoisonError;
}

use entry::Entry;
use inbox::{Inbox, Item};
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

/// Reads a mailbox until it is closed. Gives how many events came or were counted as lost, and how many commands came.
fn track(inbox: &Inbox<usize>) -> (usize, usize) {
    let (mut counts, mut next) = ((0, 0), [0; WRITERS]);
    while block_on(inbox.filled()) {
        count(inbox.take(2), &mut counts, &mut next);
    }
    counts
}

fn count(
    items: impl IntoIterator<Item = Item<usize>>,
    (events, commands): &mut (usize, usize),
    next: &mut [usize; WRITERS],
) {
    for item in items {
        match item {
            Item::Event(Entry { writer, number, .. }) => {
                assert!(number >= next[writer], "events of one writer came in another order");
                next[writer] = number + 1;
                *events += 1;
            }
            Item::Lost(_, count) => *events += usize::try_from(count).unwrap(),
            Item::Command(_) => *commands += 1,
        }
    }
}

#[test]
fn a_mailbox_gives_each_event_and_command_once_or_counts_it_as_lost() {
    shuttle::check_random(
        || {
            let inbox = Arc::new(Inbox::new("s", 3, 35));
            let tracker = {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || track(&inbox))
            };
            let writer = |writer| {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || {
                    for number in 0..ITEMS {
                        inbox.push(Entry { writer, number, weight: 10 });
                    }
                    inbox.command(writer).unwrap();
                })
            };
            let writers: Vec<_> = (0..WRITERS).map(writer).collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            let left = inbox.close();
            let mut counts = tracker.join().unwrap();
            count(left, &mut counts, &mut [0; WRITERS]);
            assert_eq!(counts, (WRITERS * ITEMS, WRITERS));
        },
        SCHEDULES,
    );
}

#[test]
fn a_command_that_races_with_the_end_of_a_mailbox_is_given_or_comes_back() {
    shuttle::check_random(
        || {
            let inbox = Arc::new(Inbox::new("s", 3, 35));
            let tracker = {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || track(&inbox))
            };
            let writer = |writer| {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || (0..ITEMS).filter(|_| inbox.command(writer).is_err()).count())
            };
            let writers: Vec<_> = (0..WRITERS).map(writer).collect();
            let left = inbox.close().len();
            let back: usize = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
            let (_, taken) = tracker.join().unwrap();
            assert_eq!(left + back + taken, WRITERS * ITEMS);
        },
        SCHEDULES,
    );
}
