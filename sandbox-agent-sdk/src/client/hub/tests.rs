//! The state of sessions.

use serde_json::json;

use super::Hub;
use super::session_state::UNREAD_EVENTS;
use crate::client::event::Weight;
use crate::client::limits::Limits;
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

/// How many sessions that this client has not named are stored in these tests, and how many bytes of them.
const UNNAMED: usize = 64;
const UNNAMED_BYTES: usize = 4 << 20;

fn limits() -> Limits {
    Limits::default().unnamed_sessions(UNNAMED).unnamed_session_bytes(UNNAMED_BYTES)
}

#[test]
fn the_number_of_unnamed_sessions_is_bounded() {
    for (sessions, oldest_is_stored) in [(UNNAMED - 1, true), (UNNAMED, true), (UNNAMED + 1, false)] {
        let hub = Hub::with_limits(1 << 20, &limits());
        for number in 0..sessions {
            hub.publish(&update(&format!("unnamed {number}"), "hi"));
        }
        assert_eq!(hub.lock().sessions.len(), sessions.min(UNNAMED));
        assert_eq!(hub.lock().sessions.contains_key("unnamed 0"), oldest_is_stored);
        // A session that is named now has the events from just before, however many sessions there were.
        let mut late = hub.subscribe_session(&format!("unnamed {}", sessions - 1));
        assert!(matches!(late.try_next(), Some(Event::Update(_))));
        for number in 0..UNNAMED {
            hub.publish(&update(&format!("later {number}"), "hi"));
        }
        assert_eq!(hub.lock().sessions.len(), UNNAMED + 1, "one of them is named now");
    }
}

/// Reports a mode with an id of this size.
fn mode(id: &str, size: usize) -> Event {
    let update = json!({"sessionUpdate": "current_mode_update", "currentModeId": "x".repeat(size)});
    Event::Update(Update::read(json!({"sessionId": id, "update": update}), Origin::Live, size))
}

/// Names sessions one after the other, and drops each handle when the agent has reported a large state.
fn use_and_drop(hub: &std::sync::Arc<Hub>, sessions: std::ops::Range<usize>) {
    for number in sessions {
        let id = format!("{number:03}");
        let _handle = hub.name(&id);
        let _subscription = hub.subscribe_session(&id);
        hub.publish(&mode(&id, 64 << 10));
    }
}

#[test]
fn sessions_that_nothing_uses_are_stored_up_to_the_limit_and_not_above() {
    let measured = {
        let hub = std::sync::Arc::new(Hub::new(1 << 20));
        use_and_drop(&hub, 0..1);
        let mut state = hub.lock();
        state.sessions.values_mut().next().unwrap().bytes() + 3
    };
    assert!(measured > 64 << 10);
    for (limit, stored) in [(8 * measured - 1, 7), (8 * measured, 8), (8 * measured + 1, 8)] {
        let hub = Hub::with_limits(1 << 20, &Limits::default().unused_session_bytes(limit));
        let hub = std::sync::Arc::new(hub);
        use_and_drop(&hub, 0..8);
        assert_eq!(hub.lock().sessions.len(), stored, "{limit} bytes");
        use_and_drop(&hub, 8..100);
        assert_eq!(hub.lock().sessions.len(), stored, "{limit} bytes");
        assert!(hub.snapshot("099").current_mode.is_some(), "the last one is stored");
    }
}

#[test]
fn sessions_in_use_are_not_forgotten_and_ended_ones_are_forgotten_first() {
    const LIMIT: usize = 1 << 20;
    let hub = Hub::with_limits(1 << 20, &Limits::default().unused_session_bytes(LIMIT));
    let hub = std::sync::Arc::new(hub);
    let (kept, held) = (hub.subscribe_session("kept"), hub.name("held"));
    let call = hub.pending_call("called");
    for id in ["kept", "held", "called"] {
        hub.publish(&mode(id, LIMIT));
    }
    use_and_drop(&hub, 0..2);
    hub.end_session("001", TerminationReport::from_agent_exited(&json!({"success": true, "code": 0})));
    let is_stored = |id: &str| hub.lock().sessions.contains_key(id);
    let mut next = 2;
    while is_stored("001") {
        assert!(is_stored("000"), "it is older, and has not ended");
        use_and_drop(&hub, next..next + 1);
        next += 1;
    }
    assert!(is_stored("000"));
    assert!(["kept", "held", "called"].into_iter().all(is_stored));
    // A subscription has no handle: its end is noticed when the next session is named.
    drop((kept, held, call));
    use_and_drop(&hub, next..next + 1);
    assert!(!["kept", "held", "called"].into_iter().any(is_stored));
    assert!(is_stored(&format!("{next:03}")));
    assert!(hub.lock().sessions.values().map(|session| session.bytes()).sum::<usize>() <= LIMIT);
}

#[test]
fn updates_that_nothing_reads_count_among_the_unused_sessions() {
    let hub = Hub::with_limits(1 << 20, &Limits::default().unused_session_bytes(2 << 20));
    let hub = std::sync::Arc::new(hub);
    (0..32).for_each(|number| drop(hub.name(&number.to_string())));
    for _ in 0..4 {
        for number in 0..32 {
            hub.publish(&update(&number.to_string(), &"x".repeat(128 << 10)));
            // Those that were forgotten count as sessions that this client has not named.
            let state = hub.lock();
            let named = state.sessions.values().filter(|session| session.is_named);
            let bytes: usize = named.map(|session| session.bytes()).sum();
            assert!(bytes <= 2 << 20, "{bytes}");
        }
    }
}

#[test]
fn the_bytes_of_unnamed_sessions_are_bounded() {
    let hub = Hub::with_limits(1 << 20, &limits());
    let named = hub.subscribe_session("named");
    let text = "x".repeat(60 << 10);
    for round in 0..3 {
        for number in 0..UNNAMED {
            let id = format!("unnamed {number}");
            let event = if round == 0 { update(&id, "hi") } else { update(&id, &text) };
            hub.publish(&event);
            hub.publish(&mode(&id, text.len()));
        }
        let state = hub.lock();
        let stored: usize =
            state.sessions.values().map(super::session_state::SessionState::stored_bytes).sum();
        // An update of the state is stored twice: as an event, and in the snapshot.
        assert!(stored <= UNNAMED_BYTES / 2 * 3, "{stored}");
        let last = format!("unnamed {}", UNNAMED - 1);
        assert!(state.sessions.contains_key(&*last) && state.sessions.contains_key("named"));
    }
    drop(named);
}

#[test]
fn unnamed_sessions_are_stored_up_to_the_bytes_of_the_limit_and_not_above() {
    for (bytes, is_stored) in [(-1, false), (0, true), (1, true)] {
        let size = update("unnamed 0", &"x".repeat(1 << 10)).weight();
        let bytes = (8 * size).checked_add_signed(bytes).unwrap();
        let hub = Hub::with_limits(1 << 20, &limits().unnamed_session_bytes(bytes));
        for number in 0..8 {
            hub.publish(&update(&format!("unnamed {number}"), &"x".repeat(1 << 10)));
        }
        assert_eq!(hub.lock().sessions.contains_key("unnamed 0"), is_stored);
    }
}

#[test]
fn the_bytes_of_ends_of_unnamed_sessions_are_bounded() {
    let hub = Hub::with_limits(1 << 20, &limits());
    // Too large to be stored as an event.
    let text = "x".repeat(2 << 20);
    for number in 0..10 {
        let data = json!({"reason": "error", "message": text});
        let params = json!({"sessionId": format!("unnamed {number}"), "data": data});
        let report = TerminationReport::from_session_ended(&params).unwrap();
        hub.end_session(&format!("unnamed {number}"), report);
    }
    let state = hub.lock();
    let ends = state.sessions.values().filter_map(|session| session.ended.borrow().clone());
    let stored: usize = ends.filter_map(|end| end.message).map(|message| message.len()).sum();
    assert!(stored <= UNNAMED_BYTES / 4 * 5, "{stored}");
    assert!(state.sessions.contains_key("unnamed 9"));
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
    let hub = std::sync::Arc::new(Hub::new(1 << 20));
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
    let hub = std::sync::Arc::new(Hub::with_limits(1 << 20, &Limits::default().unused_session_bytes(0)));
    hub.set_shared(true);
    let _opening = hub.open();
    hub.publish(&update("new", "early"));
    for number in 0..10 {
        hub.confirm(&number.to_string());
        drop(hub.name(&number.to_string()));
    }
    assert_eq!(hub.lock().sessions.len(), 1);
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
