//! The items that a queue drops and returns.

use super::queue::RESERVE;
use super::{Class, Queue, Weight};

#[derive(Debug, PartialEq)]
enum Thing {
    Small(u8),
    Request(usize),
    News,
    Lagged(u64),
}

impl Weight for Thing {
    fn weight(&self) -> usize {
        match self {
            Self::Request(weight) => *weight,
            _ => 10,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Request(_) => Class::Request,
            Self::News => Class::News,
            _ => Class::Report,
        }
    }

    fn lagged(count: u64) -> Self {
        Self::Lagged(count)
    }
}

#[test]
fn what_does_not_fit_is_counted_in_its_place_and_news_pass() {
    let queue = Queue::new(20);
    for n in 1..=4 {
        queue.push(Thing::Small(n));
    }
    queue.push(Thing::News);
    let seen: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
    assert_eq!(seen, [Thing::Small(1), Thing::Small(2), Thing::Lagged(2), Thing::News]);
    queue.push(Thing::Small(5));
    assert_eq!(queue.pop(), Some(Thing::Small(5)));
}

#[test]
fn a_large_request_costs_neither_reports_nor_news_and_the_next_one_is_counted() {
    let (queue, large) = (Queue::new(20), 10 * RESERVE);
    for thing in [
        Thing::Small(1),
        Thing::Request(large),
        Thing::Small(2),
        Thing::Request(large),
        Thing::Request(1),
        Thing::News,
    ] {
        queue.push(thing);
    }
    let seen: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
    let expected = [Thing::Small(1), Thing::Request(large), Thing::Small(2), Thing::Lagged(2), Thing::News];
    assert_eq!(seen, expected);
    queue.push(Thing::Request(1));
    queue.push(Thing::Request(RESERVE - 1));
    assert_eq!((queue.pop(), queue.pop()), (Some(Thing::Request(1)), Some(Thing::Request(RESERVE - 1))));
}

#[tokio::test]
async fn the_end_follows_the_queued_items() {
    let queue = Queue::new(20);
    queue.push(Thing::Small(1));
    queue.end();
    queue.push(Thing::Small(2));
    let next = || std::future::poll_fn(|context| queue.poll(context));
    assert_eq!(next().await, Some(Thing::Small(1)));
    assert_eq!(next().await, None);
}
