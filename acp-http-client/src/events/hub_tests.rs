//! What subscribers get, and what they miss.

use super::{Event, Hub, Stored};
use crate::{ConnectionState, EndReason, EventSource};

fn gap(number: u64) -> Stored {
    Stored::Other(Box::new(Event::Gap { stream: EventSource::Connection, from: number, to: number }))
}

fn number(event: Option<Event>) -> Option<u64> {
    match event {
        Some(Event::Gap { from, .. }) => Some(from),
        _ => None,
    }
}

#[test]
fn a_reader_that_falls_behind_learns_where_and_how_much_it_missed() {
    let hub = Hub::default();
    let weight = gap(0).weight();
    let mut events = hub.subscribe(2 * weight);
    for n in 1..=5 {
        hub.publish(gap(n));
    }
    assert_eq!(number(events.try_recv()), Some(1));
    hub.publish(gap(6));
    assert_eq!(number(events.try_recv()), Some(2));
    assert!(matches!(events.try_recv(), Some(Event::Lagged(3))));
    assert_eq!(number(events.try_recv()), Some(6));
    assert!(events.try_recv().is_none());
}

#[test]
fn a_queue_holds_its_budget_and_no_event_more() {
    let weight = gap(0).weight();
    for (budget, held) in [(2 * weight - 1, 1), (2 * weight, 2), (2 * weight + 1, 2)] {
        let hub = Hub::default();
        let mut events = hub.subscribe(budget);
        (1..=3).for_each(|n| hub.publish(gap(n)));
        for n in 1..=held {
            assert_eq!(number(events.try_recv()), Some(n), "{budget}");
        }
        assert!(matches!(events.try_recv(), Some(Event::Lagged(missed)) if missed == 3 - held));
    }
}

#[test]
fn one_event_larger_than_the_budget_still_passes_an_empty_queue() {
    let hub = Hub::default();
    let mut events = hub.subscribe(1);
    hub.publish(gap(1));
    assert_eq!(number(events.try_recv()), Some(1));
}

#[tokio::test]
async fn the_end_reaches_subscribers_early_and_late() {
    let hub = Hub::default();
    let mut early = hub.subscribe(0);
    hub.publish(gap(1));
    hub.publish(gap(2));
    hub.end(Event::State(ConnectionState::Terminated(EndReason::Closed)));
    let mut late = hub.subscribe(0);
    assert_eq!(number(early.recv().await), Some(1));
    assert!(matches!(early.recv().await, Some(Event::Lagged(1))));
    for events in [&mut early, &mut late] {
        assert!(matches!(events.recv().await, Some(Event::State(state)) if state.is_terminated()));
        assert!(events.recv().await.is_none());
    }
}

#[test]
fn a_dropped_subscription_is_forgotten() {
    let hub = Hub::default();
    drop(hub.subscribe(100));
    assert_eq!(hub.subscriber_count(), 0);
    hub.publish(gap(1));
    assert_eq!(hub.subscriber_count(), 0);
}
