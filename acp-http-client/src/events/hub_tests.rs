//! The events that subscribers receive and miss.

use bytes::Bytes;

use super::{Event, Hub, Meta, Notification, Stored};
use crate::{ConnectionState, EndReason, Error, EventId, EventSource, Json, Malformed, MessageId, Origin};

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
fn ids_and_methods_count_in_the_budget() {
    let long = "x".repeat(1000);
    let meta =
        Meta { event_id: Some(EventId::from(&*long)), origin: Origin::Live, stream: EventSource::Connection };
    let params = Json::new(Bytes::from_static(b"{}"));
    let notification =
        Notification { method: long.clone().into(), params: params.clone(), meta: meta.clone() };
    let id = MessageId::from_json(&format!("\"{long}\""));
    let event_id = meta.event_id.clone();
    let error = Error::Config(String::new());
    let other = |event: Event| Stored::Other(Box::new(event));
    let weights = [
        (Stored::Update { params: Bytes::from_static(b"{}"), meta: meta.clone() }, 1),
        (other(Event::Notification(notification.clone())), 2),
        (other(Event::AgentRequest { id: id.clone(), request: notification }), 3),
        (other(Event::UnmatchedResponse { id: id.clone(), raw: params, origin: Origin::Live, event_id }), 2),
        (other(Event::Malformed(Malformed::new(meta.event_id, b"", &*long, false))), 2),
        (other(Event::ResponseLost { id, method: long.clone(), error }), 2),
    ];
    for (event, texts) in weights {
        assert!(event.weight() >= texts * long.len(), "{event:?}");
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
