//! Keeping the books.

use serde_json::json;

use super::Hub;
use super::book::BACKLOG_EVENTS;
use super::books::{BOOKS, STRANGERS};
use crate::client::turn::TurnItem;
use crate::event::Origin;
use crate::termination::TerminationReport;
use crate::turns::TurnState;
use crate::{Event, Update};

fn update(id: &str, text: &str) -> Event {
    let content = json!({"type": "text", "text": text});
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
    Event::Update(Update::read(json!({"sessionId": id, "update": update}), Origin::Live, text.len()))
}

#[test]
fn what_nobody_listens_to_is_kept_within_bounds_and_the_loss_is_told() {
    let hub = Hub::new(1 << 30);
    for number in 0..BACKLOG_EVENTS + 5 {
        hub.publish(&update("s", &number.to_string()));
    }
    let mut events = hub.subscribe_session("s");
    assert!(matches!(events.try_next(), Some(Event::Lagged(5))));
    assert_eq!(std::iter::from_fn(|| events.try_next()).count(), BACKLOG_EVENTS);
    hub.publish(&update("s", &"x".repeat(2 << 20)));
    assert!(events.try_next().is_some());
    drop(events);
    hub.publish(&update("s", &"x".repeat(2 << 20)));
    let mut late = hub.subscribe_session("s");
    assert!(matches!(late.try_next(), Some(Event::Lagged(1))) && late.try_next().is_none());
}

#[test]
fn sessions_of_strangers_and_idle_ones_do_not_pile_up() {
    let hub = Hub::new(1 << 20);
    for number in 0..2 * STRANGERS {
        hub.publish(&update(&format!("stranger {number}"), "hi"));
    }
    assert_eq!(hub.lock().sessions.len(), STRANGERS);
    // Whoever is named now finds what came for it just before, however many there were.
    let mut late = hub.subscribe_session(&format!("stranger {}", 2 * STRANGERS - 1));
    assert!(matches!(late.try_next(), Some(Event::Update(_))));
    hub.publish(&update("one more", "hi"));
    assert_eq!(hub.lock().sessions.len(), STRANGERS + 1, "one of them is a stranger no more");
    drop(late);
    let kept = hub.subscribe_session("kept");
    let held = hub.adopt("held");
    for number in 0..3 * BOOKS {
        hub.adopt(&number.to_string());
    }
    assert!(hub.lock().sessions.len() <= BOOKS && hub.lock().sessions.contains_key("kept"));
    assert!(hub.lock().sessions.contains_key("held"), "what a handle shows must not be forgotten");
    drop((kept, held));
}

#[test]
fn the_first_end_counts_until_the_session_is_taken_up_again() {
    let hub = Hub::new(1 << 20);
    let mut events = hub.subscribe();
    hub.adopt("s");
    let exit = |code: i64| TerminationReport::from_agent_exited(&json!({"success": false, "code": code}));
    assert_eq!(hub.end_session("s", exit(1)).exit_code, Some(1));
    assert_eq!(hub.end_session("s", exit(2)).exit_code, Some(1));
    hub.revive("s");
    assert_eq!(hub.ended("s"), None);
    hub.request_stop("s");
    assert!(!hub.end_session("s", exit(137)).is_crash());
    assert_eq!(std::iter::from_fn(|| events.try_next()).count(), 2);
}

#[test]
fn a_turn_takes_what_comes_while_it_runs() {
    let hub = Hub::new(1 << 20);
    hub.publish(&update("s", "before"));
    let queue = hub.turn_queue();
    assert_eq!(hub.begin_turn("s", &queue), TurnState::Idle);
    assert_eq!(hub.begin_turn("s", &hub.turn_queue()), TurnState::Running);
    hub.publish(&update("s", "before the prompt"));
    hub.prompt_sent("s");
    hub.publish(&update("s", "during"));
    hub.end_turn("s");
    hub.publish(&update("s", "after"));
    let Some(TurnItem::Update(update)) = queue.pop() else { panic!("no update") };
    assert_eq!(update.to_string(), "during");
    assert!(queue.pop().is_none());
    let mut events = hub.subscribe_session("s");
    let kept: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
    let kept: Vec<_> = kept.iter().map(|event| matches!(event, Event::Update(_)).then_some(event)).collect();
    assert_eq!(kept.len(), 3, "what came before the prompt was sent is not of the turn");
}
