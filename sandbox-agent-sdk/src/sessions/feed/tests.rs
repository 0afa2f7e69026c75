use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Feed, Mailbox};
use crate::client::hub::{Hub, LogSink as _};
use crate::convert::termination::TerminationReport;
use crate::event::{Origin, TurnEnded};
use crate::sessions::Durability;
use crate::sessions::inbox::{Inbox, Item};
use crate::stream::{LogEntry, StreamPosition};
use crate::{ConnectionState, Event, TurnOutcome, Update};

/// A feed of a numbered stream, and the mailbox of a tracker that holds so many events.
fn feed(capacity: usize) -> (Arc<Feed>, Mailbox) {
    let hub = Hub::new(1 << 20);
    hub.set_numbered(true);
    (Feed::attached(&hub, Durability::Background, 3), Arc::new(Inbox::new("s", capacity, 1 << 20)))
}

fn push(feed: &Feed, session: &str, offset: u64) {
    let content = json!({"type": "text", "text": offset.to_string()});
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
    let update = Update::read(json!({"sessionId": session, "update": update}), Origin::Live, 1);
    feed.push(&LogEntry::of_event(&Event::Update(update), Some(StreamPosition::of(0, offset, b""))), true);
}

fn end_turn(feed: &Feed, session: &str) {
    let outcome = Ok(TurnOutcome::read(json!({"stopReason": "end_turn"}), Vec::new()));
    let ended = TurnEnded { session_id: session.to_owned(), request_id: None, outcome };
    feed.push(&LogEntry::of_event(&Event::TurnEnded(Box::new(ended)), None), true);
}

fn scanned_to(feed: &Feed) -> Option<u64> {
    feed.scanned_to().map(|(_, position)| position.offset)
}

#[test]
fn what_waits_for_a_tracker_that_ends_does_not_hold_up_the_progress() {
    let (feed, inbox) = feed(9);
    let (_, other) = self::feed(9);
    feed.route("a", &inbox, feed.now());
    feed.route("b", &other, feed.now());
    push(&feed, "x", 1);
    push(&feed, "a", 2);
    push(&feed, "x", 3);
    assert_eq!(scanned_to(&feed), Some(1), "the second one is not stored");
    feed.unroute(&inbox, None);
    feed.discard(inbox.close());
    assert_eq!(scanned_to(&feed), Some(3));
    // What comes for a tracker that has ended is not stored either.
    feed.route("a", &inbox, feed.now());
    push(&feed, "a", 4);
    assert_eq!(scanned_to(&feed), Some(4));
}

#[test]
fn events_that_do_not_fit_are_not_stored_before_their_mark_is() {
    let (feed, inbox) = feed(1);
    feed.route("a", &inbox, feed.now());
    (1..=4).for_each(|offset| push(&feed, "a", offset));
    assert_eq!(feed.take_lost()["s"], 3);
    let items = inbox.take(9);
    let [Item::Event(stored), Item::Lost(first, 3)] = &items[..] else { panic!("{items:?}") };
    assert_eq!(scanned_to(&feed), None);
    feed.settle(stored.held_at());
    assert_eq!(scanned_to(&feed), Some(1), "the mark of the others is not stored");
    feed.settle(first.held_at());
    assert_eq!(scanned_to(&feed), Some(4));
}

#[test]
fn what_comes_while_a_session_is_created_is_not_stored_before_its_tracker_stores_it() {
    let (feed, inbox) = feed(1);
    let (_, other) = self::feed(9);
    feed.route("b", &other, feed.now());
    let creating = feed.creating();
    push(&feed, "b", 1);
    feed.discard(other.take(9));
    (2..=4).for_each(|offset| push(&feed, "a", offset));
    push(&feed, "x", 5);
    assert_eq!(scanned_to(&feed), Some(1));
    feed.claim_early("a", &inbox);
    assert_eq!(scanned_to(&feed), Some(1), "the tracker has them");
    // One fits, and the two others are one mark.
    feed.discard(inbox.take(9));
    assert_eq!(scanned_to(&feed), Some(4), "what came for an unknown session may be of the next one");
    drop(creating);
    assert_eq!(scanned_to(&feed), Some(5));
}

#[test]
fn the_progress_is_due_after_some_events_without_an_append() {
    let (feed, inbox) = feed(9);
    feed.route("a", &inbox, feed.now());
    push(&feed, "x", 1);
    push(&feed, "x", 2);
    assert!(!feed.take_due());
    push(&feed, "x", 3);
    assert!(feed.take_due());
    assert_eq!(scanned_to(&feed), Some(3));
    push(&feed, "x", 4);
    assert!(!feed.take_due());
}

#[test]
fn updates_that_follow_the_end_of_their_agent_are_stored_until_the_next_connection() {
    let (feed, inbox) = feed(9);
    feed.route("a", &inbox, feed.now());
    let connection = |state| feed.push(&LogEntry::of_event(&Event::Connection(state), None), true);
    let events = || inbox.take_all_but(|_| false).into_iter().filter(|item| matches!(item, Item::Event(_)));
    connection(ConnectionState::AgentEnded(Box::new(TerminationReport::requested().into_info())));
    push(&feed, "a", 1);
    push(&feed, "a", 2);
    assert_eq!(events().count(), 2);
    connection(ConnectionState::Connecting);
    push(&feed, "a", 1);
    assert_eq!(events().count(), 0, "another session has this id now");
}

#[test]
fn a_request_is_of_the_turn_that_runs_before_the_tracker_shows_it() {
    let (feed, inbox) = feed(9);
    feed.route("a", &inbox, feed.now());
    let turn_of = || feed.answering("a", "1").and_then(|(_, turn)| turn);
    assert_eq!(turn_of(), None);
    feed.begin_turn("a", "turn-1", &inbox);
    assert_eq!(turn_of().as_deref(), Some("turn-1"));
    assert!(feed.is_running("turn-1") && !feed.is_running("turn-2"));
}

#[test]
fn what_does_not_fit_while_a_session_is_acquired_is_reported() {
    let (feed, inbox) = feed(1);
    feed.propose("a", &inbox);
    (1..=3).for_each(|offset| push(&feed, "a", offset));
    assert_eq!(feed.take_lost()["s"], 2);
}

#[test]
fn responses_that_never_arrive_on_the_stream_are_not_waited_for_without_end() {
    let (feed, inbox) = feed(9);
    feed.route("a", &inbox, feed.now());
    for n in 0..9 {
        let (turn, request) = (format!("turn-{n}"), format!("request-{n}"));
        feed.begin_turn("a", &turn, &inbox);
        feed.sending(&turn, &request);
        feed.unordered(&request);
        end_turn(&feed, "a");
        assert_eq!(feed.lock().awaited.len(), 1);
    }
}

#[test]
fn a_turn_ends_in_the_session_to_which_it_has_moved() {
    let (feed, inbox) = feed(9);
    feed.begin_turn("old", "turn", &inbox);
    feed.moved("old", "new");
    end_turn(&feed, "old");
    assert!(feed.is_running("turn"));
    end_turn(&feed, "new");
    assert!(!feed.is_running("turn") && inbox.take(9).len() == 1);
}

#[test]
fn many_sessions_cost_no_more_each_than_few() {
    let time_of = |count: usize| -> Duration {
        let (feed, _) = feed(9);
        let inboxes: Vec<Mailbox> =
            (0..count).map(|n| Arc::new(Inbox::new(&format!("s{n}"), 9, 1 << 20))).collect();
        let agent_sessions: Vec<String> = (0..count).map(|n| format!("a{n}")).collect();
        let started = Instant::now();
        for (id, inbox) in agent_sessions.iter().zip(&inboxes) {
            feed.propose(id, inbox);
            feed.decide(id, inbox, Some(feed.now()));
            feed.begin_turn(id, &format!("turn of {id}"), inbox);
            feed.sending(&format!("turn of {id}"), &format!("prompt of {id}"));
        }
        for id in &agent_sessions {
            feed.unordered(&format!("prompt of {id}"));
        }
        feed.push(&LogEntry::of_event(&Event::Connection(ConnectionState::Disconnected), None), true);
        feed.push(&LogEntry::of_event(&Event::Connection(ConnectionState::Connecting), None), true);
        inboxes.iter().for_each(|inbox| feed.unroute(inbox, None));
        started.elapsed()
    };
    time_of(100);
    let (few, many) = (time_of(500), time_of(8000));
    // Sixteen times as many take sixteen times as long, or 256 times if each looks at all others.
    assert!(many < 64 * few, "{few:?} for 500, {many:?} for 8000");
}
