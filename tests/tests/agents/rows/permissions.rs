//! What an agent asks before it acts.

use std::sync::{Arc, Mutex};

use sandbox_agent_sdk::requests::{DecidedBy, PermissionReply};
use sandbox_agent_sdk::{Event, Events, PermissionDecision, PermissionPolicy, TurnOutcome, turns::TurnEvent};

use crate::{
    bench::{Answering, Bench, ask, chain, in_time},
    cell::{Cell, Seen},
};

pub(super) async fn a_subscriber_allows_a_command(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let answering = Answering::start(&connected.client, |request| {
        request.allow_once().expect("it can be allowed");
    });
    let session = connected.session(bench.new_session()).await;
    let log = ask(&session, "tool touch allowed.txt && echo it-ran").await;
    assert_eq!(answering.requests().len(), 1, "{:?}", answering.requests());
    assert!(log.ended().text().contains("it-ran"), "{}", log.text());
    assert!(bench.in_project("allowed.txt").exists());
    let request = &answering.requests()[0];
    assert_eq!(request.session_id(), Some(session.id()));
    assert!(request.raw().to_string().contains("touch allowed.txt"), "{}", request.raw());
    Seen::Works
}

pub(super) async fn a_subscriber_refuses_a_command(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let answering = Answering::start(&connected.client, |request| {
        request.refuse().expect("it can be refused");
    });
    let session = connected.session(bench.new_session()).await;
    let log = ask(&session, "tool touch refused.txt").await;
    assert_eq!(answering.requests().len(), 1, "{:?}", answering.requests());
    assert!(!bench.in_project("refused.txt").exists());
    let outcome = log.outcome.as_ref().unwrap_or_else(|error| panic!("{}", chain(error)));
    let next = ask(&session, "still there").await;
    assert_eq!(next.ended().text(), "echo: still there");
    Seen::note(after_a_refusal(outcome))
}

fn after_a_refusal(outcome: &TurnOutcome) -> &'static str {
    match outcome.stop_reason.as_str() {
        "end_turn" => "the agent reports the refusal to the model, and the turn continues",
        "cancelled" => "the turn ends as `cancelled`",
        other => panic!("{other}"),
    }
}

pub(super) async fn a_permission_handler_decides(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let list = Arc::clone(&seen);
    let options = bench.options().permission_handler(move |request| {
        let raw = request.raw().to_string();
        list.lock().unwrap().push(raw.clone());
        async move {
            // A handler may wait before it decides.
            tokio::task::yield_now().await;
            match raw.contains("touch allowed.txt") {
                true => PermissionDecision::Reply(PermissionReply::Once),
                false => PermissionDecision::Refuse,
            }
        }
    });
    let connected = bench.connect(options).await;
    let session = connected.session(bench.new_session()).await;
    let log = ask(&session, "tool touch allowed.txt && echo it-ran").await;
    assert!(log.ended().text().contains("it-ran"), "{}", log.text());
    assert!(bench.in_project("allowed.txt").exists());
    let log = ask(&session, "tool touch refused.txt").await;
    let outcome = log.outcome.as_ref().unwrap_or_else(|error| panic!("{}", chain(error)));
    assert!(!bench.in_project("refused.txt").exists());
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[1].contains("touch refused.txt"), "{seen:?}");
    Seen::note(after_a_refusal(outcome))
}

pub(super) async fn a_policy_function_decides(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let list = Arc::clone(&seen);
    let policy = PermissionPolicy::function(move |request| {
        let raw = request.raw().to_string();
        let reply = match raw.contains("touch allowed.txt") {
            true => PermissionReply::Once,
            false => PermissionReply::Reject,
        };
        list.lock().unwrap().push(raw);
        PermissionDecision::Reply(reply)
    });
    let connected = bench.connect(bench.options().permissions(policy)).await;
    let answering = Answering::start(&connected.client, |request| panic!("{request:?}"));
    let session = connected.session(bench.new_session()).await;
    let log = ask(&session, "tool touch allowed.txt && echo it-ran").await;
    assert!(log.ended().text().contains("it-ran"), "{}", log.text());
    assert!(bench.in_project("allowed.txt").exists());
    let log = ask(&session, "tool touch refused.txt").await;
    let outcome = log.outcome.as_ref().unwrap_or_else(|error| panic!("{}", chain(error)));
    assert!(!bench.in_project("refused.txt").exists() && answering.requests().is_empty());
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 2, "{seen:?}");
    Seen::note(after_a_refusal(outcome))
}

/// What decided the permission requests so far.
fn decided_by(events: &mut Events) -> Vec<DecidedBy> {
    let events = std::iter::from_fn(|| events.try_next());
    let decided = events.filter_map(|event| match event {
        Event::PermissionDecided(decided) => Some(decided.by),
        _ => None,
    });
    decided.collect()
}

pub(super) async fn a_command_is_rejected_if_nobody_decides(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.connect(bench.options().permissions(PermissionPolicy::Ask)).await;
    let mut events = connected.client.events();
    let session = connected.session(bench.new_session()).await;
    let log = ask(&session, "tool touch undecided.txt").await;
    let outcome = log.outcome.as_ref().unwrap_or_else(|error| panic!("{}", chain(error)));
    assert!(!bench.in_project("undecided.txt").exists());
    assert_eq!(decided_by(&mut events), [DecidedBy::Default]);
    assert_eq!(ask(&session, "still there").await.ended().text(), "echo: still there");
    Seen::note(after_a_refusal(outcome))
}

pub(super) async fn the_reader_of_a_turn_decides(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let session = connected.session(bench.new_session()).await;
    let mut turn = session.prompt("tool touch allowed.txt && echo it-ran");
    let (mut requests, mut text, mut ended) = (0, String::new(), None);
    in_time("the turn", async {
        while let Some(event) = turn.next_event().await {
            assert!(ended.is_none(), "an event after the end: {event:?}");
            match event {
                TurnEvent::Update(update) => text += update.message_text().unwrap_or_default(),
                TurnEvent::Permission(request) => {
                    assert!(!bench.in_project("allowed.txt").exists());
                    assert!(!text.contains("it-ran"), "{text}");
                    request.allow_once().expect("it can be allowed");
                    requests += 1;
                }
                TurnEvent::Ended(outcome) => ended = Some(outcome),
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    let outcome = ended.expect("an end").unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(outcome.stop_reason.as_str(), "end_turn", "{outcome:?}");
    assert_eq!(requests, 1);
    assert!(text.contains("it-ran"), "{text}");
    assert!(bench.in_project("allowed.txt").exists());
    Seen::Works
}

pub(super) async fn bypass_runs_a_command_unasked(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.connect(bench.options().permissions(PermissionPolicy::BypassPermissions)).await;
    let answering = Answering::start(&connected.client, |request| panic!("{request:?}"));
    let session = connected.session(bench.new_session()).await;
    let log = ask(&session, "tool touch bypassed.txt && echo it-ran").await;
    assert!(log.ended().text().contains("it-ran"), "{}", log.text());
    assert!(bench.in_project("bypassed.txt").exists() && answering.requests().is_empty());
    Seen::Works
}

pub(super) async fn deny_runs_no_command(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.connect(bench.options().permissions(PermissionPolicy::Deny)).await;
    let answering = Answering::start(&connected.client, |request| panic!("{request:?}"));
    let mut events = connected.client.events();
    let session = connected.session(bench.new_session()).await;
    ask(&session, "tool touch denied.txt").await.outcome.expect("the turn ends");
    assert!(!bench.in_project("denied.txt").exists() && answering.requests().is_empty());
    assert_eq!(decided_by(&mut events), [DecidedBy::Policy]);
    assert_eq!(ask(&session, "still there").await.ended().text(), "echo: still there");
    Seen::Works
}

pub(super) async fn accept_edits_allows_a_file_and_asks_for_a_command(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.connect(bench.options().permissions(PermissionPolicy::AcceptEdits)).await;
    let answering = Answering::start(&connected.client, |request| {
        request.allow_once().expect("it can be allowed");
    });
    let session = connected.session(bench.new_session()).await;
    let path = bench.in_project("edited.txt");
    ask(&session, &format!("write {}", path.display())).await.ended();
    assert!(path.exists());
    assert!(answering.requests().is_empty(), "{:?}", answering.requests());
    ask(&session, "tool touch asked.txt && echo it-ran").await.ended();
    assert!(bench.in_project("asked.txt").exists());
    assert_eq!(answering.requests().len(), 1, "{:?}", answering.requests());
    Seen::Works
}
