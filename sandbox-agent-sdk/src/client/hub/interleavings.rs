//! The hub under random schedules: publishing while others subscribe, leave, end a turn or close it.
//!
//! A schedule in which a reader waits forever fails, and so does one that loses, repeats or reorders an event.

use std::future::poll_fn;
use std::sync::Arc;

use serde_json::json;
use shuttle::future::block_on;
use shuttle::thread::{self, JoinHandle};
use tokio::sync::oneshot;

use super::Hub;
use crate::client::event::Queue;
use crate::client::log::{Item, LogQueue};
use crate::client::stream::LogRecord;
use crate::client::sync::explore;
use crate::client::turn::TurnItem;
use crate::event::Origin;
use crate::requests::{Admission, Params, Responder};
use crate::termination::TerminationReport;
use crate::turns::TurnState;
use crate::{ConnectionState, DropPolicy, Event, Events, PermissionRequest, Update};

/// How many schedules each test tries.
const SCHEDULES: usize = 1_000;
const WRITERS: usize = 2;
const EVENTS: usize = 3;
/// Room for everything.
const LARGE: usize = 1 << 20;

fn update(writer: usize, number: usize) -> Event {
    let content = json!({"type": "text", "text": format!("{writer}.{number}")});
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
    Event::Update(Update::read(json!({"sessionId": "s", "update": update}), Origin::Live, 100))
}

fn write(hub: &Arc<Hub>) -> Vec<JoinHandle<()>> {
    let writer = |writer| {
        let hub = Arc::clone(hub);
        thread::spawn(move || {
            for number in 0..EVENTS {
                hub.publish(&update(writer, number));
            }
        })
    };
    (0..WRITERS).map(writer).collect()
}

fn join<T>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Reads to the end: the texts of updates, and how many were counted as dropped.
fn read(mut events: Events) -> (Vec<String>, usize) {
    let (mut texts, mut lagged) = (Vec::new(), 0);
    while let Some(event) = block_on(events.next()) {
        match event {
            Event::Update(update) => texts.push(update.to_string()),
            Event::Lagged(count) => lagged += usize::try_from(count).unwrap(),
            other => panic!("nothing published {other:?}"),
        }
    }
    (texts, lagged)
}

fn read_log(log: &LogQueue) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(item) = block_on(poll_fn(|context| log.poll(context))) {
        let Item::Entry(entry) = item else { panic!("there is room for everything") };
        let LogRecord::Event(Event::Update(update)) = entry.record else { panic!("{entry:?}") };
        texts.push(update.to_string());
    }
    texts
}

fn read_turn(queue: &Queue<TurnItem>) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(item) = block_on(poll_fn(|context| queue.poll(context))) {
        let TurnItem::Update(update) = item else { panic!("{item:?}") };
        texts.push(update.to_string());
    }
    texts
}

/// Checks that every event occurs once, and that the events of each writer are in order.
#[track_caller]
fn assert_complete(texts: &[String]) {
    assert_eq!(texts.len(), WRITERS * EVENTS, "{texts:?}");
    for writer in 0..WRITERS {
        let own: Vec<_> = texts.iter().filter(|text| text.starts_with(&format!("{writer}."))).collect();
        let sent: Vec<_> = (0..EVENTS).map(|number| format!("{writer}.{number}")).collect();
        assert!(own.into_iter().eq(&sent), "{texts:?}");
    }
}

#[test]
fn all_readers_see_every_event_once_in_one_order_and_the_end() {
    explore(SCHEDULES, || {
        let hub = Arc::new(Hub::new(LARGE));
        let (all, log, of_session) = (hub.subscribe(), hub.open_log(None), hub.subscribe_session("s"));
        let all = thread::spawn(move || read(all));
        let log = thread::spawn(move || read_log(&log));
        let of_session = thread::spawn(move || read(of_session));
        join(write(&hub));
        hub.close();
        let (all, lagged) = all.join().unwrap();
        assert_complete(&all);
        assert_eq!(lagged, 0);
        assert_eq!(log.join().unwrap(), all);
        assert_eq!(of_session.join().unwrap(), (all, 0));
    });
}

#[test]
fn what_finds_no_room_is_counted_to_the_event() {
    explore(SCHEDULES, || {
        let hub = Arc::new(Hub::new(1));
        let slow = hub.subscribe();
        let reader = thread::spawn(move || read(slow));
        join(write(&hub));
        hub.close();
        let (texts, lagged) = reader.join().unwrap();
        assert_eq!(texts.len() + lagged, WRITERS * EVENTS, "{texts:?}");
    });
}

#[test]
fn a_late_subscriber_sees_what_follows_and_the_first_of_a_session_sees_everything() {
    explore(SCHEDULES, || {
        let hub = Arc::new(Hub::new(LARGE));
        let (whole, left) = (hub.subscribe(), hub.subscribe());
        let writers = write(&hub);
        let leaving = thread::spawn(move || drop(left));
        let late = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || hub.subscribe())
        };
        let of_session = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || hub.subscribe_session("s"))
        };
        join(writers);
        leaving.join().unwrap();
        let (late, of_session) = (late.join().unwrap(), of_session.join().unwrap());
        // A client closes its hub when nothing can subscribe any more.
        hub.close();
        let (whole, _) = read(whole);
        assert_complete(&whole);
        assert_eq!(read(of_session), (whole.clone(), 0));
        let (late, lagged) = read(late);
        assert!(whole.ends_with(&late) && lagged == 0, "{late:?} of {whole:?}");
    });
}

#[test]
fn a_turn_gets_all_updates_before_its_end_and_none_of_the_next_one() {
    explore(SCHEDULES, || {
        let hub = Arc::new(Hub::new(LARGE));
        let (first, second) = (hub.turn_queue(), hub.turn_queue());
        assert_eq!(hub.begin_turn("s", &first), TurnState::Idle);
        hub.prompt_sent("s");
        let reader = {
            let (hub, first) = (Arc::clone(&hub), Arc::clone(&first));
            thread::spawn(move || {
                let texts = read_turn(&first);
                // The handle of the turn is dropped, maybe after the next one has begun.
                hub.drop_turn("s", &first, DropPolicy::Cancel);
                texts
            })
        };
        let next = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || {
                let mut state = hub.watch_turn("s");
                block_on(state.wait_for(|state| *state == TurnState::Idle)).unwrap();
                assert_eq!(hub.begin_turn("s", &second), TurnState::Idle);
                hub.prompt_sent("s");
                hub.publish(&update(9, 9));
                hub.end_turn("s");
                read_turn(&second)
            })
        };
        join(write(&hub));
        hub.end_turn("s");
        assert_complete(&reader.join().unwrap());
        assert_eq!(next.join().unwrap(), ["9.9"]);
        assert_eq!(hub.begin_turn("s", &hub.turn_queue()), TurnState::Idle);
    });
}

#[test]
fn of_turns_that_begin_at_once_one_runs_and_a_dropped_one_ends() {
    explore(SCHEDULES, || {
        let hub = Arc::new(Hub::new(LARGE));
        let begin = |policy: DropPolicy| {
            let hub = Arc::clone(&hub);
            thread::spawn(move || {
                let queue = hub.turn_queue();
                let began = hub.begin_turn("s", &queue) == TurnState::Idle;
                hub.drop_turn("s", &queue, policy);
                began
            })
        };
        let began = join(vec![begin(DropPolicy::Cancel), begin(DropPolicy::Cancel)]);
        assert_eq!(began.iter().filter(|began| **began).count(), 1);
        let mut state = hub.watch_turn("s");
        let ended = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || hub.end_turn("s"))
        };
        block_on(state.wait_for(|state| *state == TurnState::Idle)).unwrap();
        ended.join().unwrap();
    });
}

#[test]
fn a_request_that_races_with_the_reader_and_the_end_of_its_turn_is_answered() {
    explore(SCHEDULES, || {
        let hub = Arc::new(Hub::new(LARGE));
        let queue = hub.turn_queue();
        hub.begin_turn("s", &queue);
        let (sender, mut answer) = oneshot::channel();
        let asks = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || {
                let admitted = Arc::new(Admission::new(1_000)).admit(100).unwrap();
                let params = Params::new("1".to_owned(), json!({"sessionId": "s"}), admitted);
                let responder = Responder::Handler(sender);
                let request = PermissionRequest::new(Arc::new(params), responder, Box::new(()), None);
                // The router refuses what nothing decides.
                if hub.publish(&Event::Permission(request.clone())) == 0 {
                    request.refuse().unwrap();
                }
            })
        };
        let reads_reports = {
            let (hub, queue) = (Arc::clone(&hub), Arc::clone(&queue));
            thread::spawn(move || {
                for request in hub.stop_deciding("s", &queue) {
                    request.or_refuse(&hub);
                }
                queue
            })
        };
        let ends = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || hub.end_turn("s"))
        };
        asks.join().unwrap();
        ends.join().unwrap();
        let queue = reads_reports.join().unwrap();
        assert!(queue.pop().is_none(), "the request waits for a reader that does not decide");
        answer.try_recv().unwrap().unwrap();
    });
}

#[test]
fn a_turn_that_is_first_read_when_its_unread_requests_are_refused_still_decides_requests() {
    explore(SCHEDULES, || {
        let hub = Arc::new(Hub::new(LARGE));
        let queue = hub.turn_queue();
        hub.begin_turn("s", &queue);
        let refuses = {
            let (hub, queue) = (Arc::clone(&hub), Arc::clone(&queue));
            thread::spawn(move || hub.refuse_unread("s", &queue))
        };
        let reads = {
            let (hub, queue) = (Arc::clone(&hub), Arc::clone(&queue));
            thread::spawn(move || hub.start_deciding("s", &queue))
        };
        join(vec![refuses, reads]);
        assert!(queue.is_deciding() && queue.is_committed());
    });
}

#[test]
fn a_session_that_ends_for_several_reasons_at_once_ends_once() {
    explore(SCHEDULES, || {
        let hub = Arc::new(Hub::new(LARGE));
        hub.name("s");
        hub.confirm("s");
        let mut events = hub.subscribe();
        let mut end = hub.watch_end("s");
        let exit = |code: i64| TerminationReport::from_agent_exited(&json!({"success": false, "code": code}));
        let ends = [1, 2].map(|code| {
            let hub = Arc::clone(&hub);
            thread::spawn(move || hub.end_session("s", exit(code)))
        });
        let all = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || hub.end_all(&exit(3)))
        };
        let known = block_on(end.wait_for(Option::is_some)).unwrap().clone().unwrap();
        let reported = join(ends.into());
        all.join().unwrap();
        assert!(reported.iter().all(|info| *info == known));
        hub.close();
        let Some(Event::SessionEnded(ended)) = events.try_next() else { panic!("no end") };
        assert_eq!(ended.termination, known);
        assert!(events.try_next().is_none(), "a second end");
    });
}

#[test]
fn an_end_before_a_revival_is_published_before_it() {
    explore(SCHEDULES, || {
        let hub = Arc::new(Hub::new(LARGE));
        hub.name("s");
        hub.confirm("s");
        let mut events = hub.subscribe();
        let ends = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || drop(hub.end_session("s", TerminationReport::default())))
        };
        let revives = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || {
                hub.revive("s");
                hub.publish(&update(0, 0));
            })
        };
        join(vec![ends, revives]);
        let last = std::iter::from_fn(|| events.try_next()).last();
        if hub.ended("s").is_none() {
            assert!(
                matches!(last, Some(Event::Update(_))),
                "the session is active, and its last event is {last:?}"
            );
        }
    });
}

#[test]
fn details_of_an_end_do_not_end_a_session_that_is_open_again() {
    explore(SCHEDULES, || {
        let hub = Arc::new(Hub::new(LARGE));
        hub.name("s");
        hub.confirm("s");
        let ended = hub.end_all(&TerminationReport::default());
        let mut events = hub.subscribe();
        let completes = {
            let hub = Arc::clone(&hub);
            let report = TerminationReport::from_agent_exited(&json!({"success": false, "code": 7}));
            thread::spawn(move || hub.complete_ends(&ended, &report))
        };
        let revives = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || {
                hub.revive("s");
                hub.publish(&update(0, 0));
            })
        };
        join(vec![completes, revives]);
        let events: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
        let details = events.iter().filter(|event| matches!(event, Event::TerminationDetails(_))).count();
        assert_eq!((details, hub.ended("s")), (1, None), "the session is active: {events:?}");
    });
}

#[test]
fn the_last_published_state_of_the_connection_is_the_last_one() {
    explore(SCHEDULES, || {
        let hub = Arc::new(Hub::new(LARGE));
        let mut events = hub.subscribe();
        let states =
            [ConnectionState::Connected, ConnectionState::Reconnecting { attempt: 1 }].map(|state| {
                let hub = Arc::clone(&hub);
                thread::spawn(move || hub.connection(state))
            });
        join(states.into());
        let last = std::iter::from_fn(|| events.try_next()).last();
        let Some(Event::Connection(last)) = last else { panic!("{last:?}") };
        assert_eq!(hub.lock().connection, Some(last));
    });
}
