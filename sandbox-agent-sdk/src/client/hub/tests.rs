//! The state of sessions.

use serde_json::json;

use super::Hub;
use super::session_state::UNREAD_EVENTS;
use super::state::{SESSIONS, UNNAMED, UNNAMED_BYTES};
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
fn events_without_a_subscriber_are_stored_within_limits_and_their_loss_is_reported() {
    let hub = Hub::new(1 << 30);
    for number in 0..UNREAD_EVENTS + 5 {
        hub.publish(&update("s", &number.to_string()));
    }
    let mut events = hub.subscribe_session("s");
    assert!(matches!(events.try_next(), Some(Event::Lagged(5))));
    assert_eq!(std::iter::from_fn(|| events.try_next()).count(), UNREAD_EVENTS);
    hub.publish(&update("s", &"x".repeat(2 << 20)));
    assert!(events.try_next().is_some());
    drop(events);
    hub.publish(&update("s", &"x".repeat(2 << 20)));
    let mut late = hub.subscribe_session("s");
    assert!(matches!(late.try_next(), Some(Event::Lagged(1))) && late.try_next().is_none());
}

#[test]
fn the_number_of_unnamed_and_idle_sessions_is_bounded() {
    let hub = Hub::new(1 << 20);
    for number in 0..2 * UNNAMED {
        hub.publish(&update(&format!("unnamed {number}"), "hi"));
    }
    assert_eq!(hub.lock().sessions.len(), UNNAMED);
    // A session that is named now has the events from just before, however many sessions there were.
    let mut late = hub.subscribe_session(&format!("unnamed {}", 2 * UNNAMED - 1));
    assert!(matches!(late.try_next(), Some(Event::Update(_))));
    hub.publish(&update("one more", "hi"));
    assert_eq!(hub.lock().sessions.len(), UNNAMED + 1, "one of them is named now");
    drop(late);
    let kept = hub.subscribe_session("kept");
    let held = hub.name("held");
    for number in 0..3 * SESSIONS {
        hub.name(&number.to_string());
    }
    assert!(hub.lock().sessions.len() <= SESSIONS && hub.lock().sessions.contains_key("kept"));
    assert!(hub.lock().sessions.contains_key("held"), "what a handle shows must not be forgotten");
    drop((kept, held));
}

#[test]
fn the_bytes_of_unnamed_sessions_are_bounded() {
    let hub = Hub::new(1 << 20);
    let named = hub.subscribe_session("named");
    let modes = |id: &str, text: &str| {
        let update = json!({"sessionUpdate": "current_mode_update", "currentModeId": text});
        Event::Update(Update::read(json!({"sessionId": id, "update": update}), Origin::Live, text.len()))
    };
    let text = "x".repeat(600 << 10);
    for round in 0..3 {
        for number in 0..400 {
            let id = format!("unnamed {number}");
            let event = if round == 0 { update(&id, "hi") } else { update(&id, &text) };
            hub.publish(&event);
            hub.publish(&modes(&id, &text));
        }
        let state = hub.lock();
        let stored: usize =
            state.sessions.values().map(super::session_state::SessionState::stored_bytes).sum();
        assert!(stored <= UNNAMED_BYTES / 4 * 5, "{stored}");
        assert!(state.sessions.contains_key("unnamed 399") && state.sessions.contains_key("named"));
    }
    drop(named);
}

#[test]
fn the_bytes_of_ends_of_unnamed_sessions_are_bounded() {
    let hub = Hub::new(1 << 20);
    // Too large to be stored as an event.
    let text = "x".repeat(2 << 20);
    for number in 0..100 {
        let data = json!({"reason": "error", "message": text});
        let params = json!({"sessionId": format!("unnamed {number}"), "data": data});
        let report = TerminationReport::from_session_ended(&params).unwrap();
        hub.end_session(&format!("unnamed {number}"), report);
    }
    let state = hub.lock();
    let ends = state.sessions.values().filter_map(|session| session.ended.borrow().clone());
    let stored: usize = ends.filter_map(|end| end.message).map(|message| message.len()).sum();
    assert!(stored <= UNNAMED_BYTES / 4 * 5, "{stored}");
    assert!(state.sessions.contains_key("unnamed 99"));
}

#[test]
fn ids_of_messages_are_stored_in_the_same_size_whatever_their_length() {
    let hub = Hub::new(1 << 20);
    let message = |id: &str| {
        let content = json!({"type": "text", "text": "hi"});
        let update = json!({"sessionUpdate": "agent_message_chunk", "content": content, "messageId": id});
        Event::Update(Update::read(json!({"sessionId": "s", "update": update}), Origin::Live, 10))
    };
    let id = "x".repeat(1 << 20);
    hub.publish(&message(&id));
    let queue = hub.turn_queue();
    hub.begin_turn("s", &queue);
    hub.prompt_sent("s");
    hub.publish(&message(&id));
    assert!(queue.pop().is_none(), "the message began before the prompt");
    hub.publish(&message("y"));
    assert!(queue.pop().is_some());
    let known = format!("{:?}", hub.lock().sessions["s"].messages);
    assert!(known.len() < 1000, "{} bytes are stored", known.len());
}

#[test]
fn sessions_of_other_clients_are_remembered_only_while_a_session_is_being_made() {
    let hub = std::sync::Arc::new(Hub::new(1 << 20));
    hub.set_shared(true);
    hub.publish(&update("other", "hi"));
    hub.end_session("other", TerminationReport::from_agent_exited(&json!({"success": true, "code": 0})));
    assert!(hub.lock().sessions.is_empty());
    let opening = hub.open();
    hub.publish(&update("ours", "early"));
    hub.publish(&update("other", "hi"));
    let mut events = hub.subscribe_session("ours");
    drop(opening);
    assert!(matches!(events.try_next(), Some(Event::Update(_))));
    assert_eq!(hub.lock().sessions.len(), 1, "only the session that was named is left");
}

#[test]
fn the_first_end_counts_until_the_session_is_opened_again() {
    let hub = Hub::new(1 << 20);
    let mut events = hub.subscribe();
    hub.name("s");
    let exit = |code: i64| TerminationReport::from_agent_exited(&json!({"success": false, "code": code}));
    assert_eq!(hub.end_session("s", exit(1)).exit_code, Some(1));
    assert_eq!(hub.end_session("s", exit(2)).exit_code, Some(1));
    assert!(matches!(events.try_next(), Some(Event::SessionEnded(_))));
    assert!(events.try_next().is_none(), "the second report adds nothing");
    let report = TerminationReport::from_session_ended(&json!({"sessionId": "s", "data": {
        "exitCode": 7, "requested": true, "stderr": {"tail": "boom"}}}));
    hub.end_session("s", report.unwrap());
    let details = events.try_next();
    let Some(Event::TerminationDetails(details)) = details else { panic!("{details:?}") };
    assert_eq!(details.termination.last_stderr_lines(5), ["boom"]);
    assert_eq!((details.termination.exit_code, details.termination.requested), (Some(1), false));
    assert_eq!(hub.ended("s"), Some(details.termination));
    hub.revive("s");
    assert_eq!(hub.ended("s"), None);
    hub.request_stop("s");
    assert!(!hub.end_session("s", exit(137)).is_crash());
    assert_eq!(std::iter::from_fn(|| events.try_next()).count(), 1);
}

#[test]
fn the_updates_of_a_session_that_is_being_created_outlive_unused_sessions() {
    let hub = std::sync::Arc::new(Hub::new(1 << 20));
    hub.set_shared(true);
    let _opening = hub.open();
    hub.publish(&update("new", "early"));
    for number in 0..2 * SESSIONS {
        hub.confirm(&number.to_string());
    }
    let mut events = hub.subscribe_session("new");
    assert!(matches!(events.try_next(), Some(Event::Update(_))));
}

#[test]
fn a_turn_has_the_updates_behind_its_prompt() {
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

#[test]
fn no_report_of_the_state_of_a_session_is_stored_outside_its_turns() {
    let hub = Hub::new(1 << 20);
    let text = "x".repeat(1 << 10);
    let report = |id: &str, state: &str| {
        let update = json!({"sessionUpdate": "state_update", "state": state, "text": text});
        Event::Update(Update::read(json!({"sessionId": id, "update": update}), Origin::Live, text.len()))
    };
    let run = |id: &str| {
        hub.publish(&report(id, "running"));
        hub.publish(&report(id, "idle"));
    };
    let stored = |id: &str| hub.lock().sessions[id].progress.borrow().ended_by.is_some();
    for number in 0..UNNAMED {
        run(&format!("unnamed {number}"));
    }
    assert!((0..UNNAMED).all(|number| !stored(&format!("unnamed {number}"))));
    let queue = hub.turn_queue();
    assert_eq!(hub.begin_turn("s", &queue), TurnState::Idle);
    run("s");
    assert!(stored("s"), "the turn ends with it");
    hub.end_turn("s");
    assert!(!stored("s"));
}

#[test]
fn a_turn_that_cannot_move_stays_in_its_session() {
    let hub = Hub::new(1 << 20);
    let (mine, other) = (hub.turn_queue(), hub.turn_queue());
    hub.begin_turn("old", &mine);
    hub.begin_turn("new", &other);
    assert!(!hub.move_turn("old", "new", &mine), "another turn is running there");
    assert_eq!(*hub.watch_turn("old").borrow(), TurnState::Running);
    hub.end_turn("new");
    assert!(hub.move_turn("old", "new", &mine));
    assert!(hub.is_idle("old") && !hub.is_idle("new"));
}
