//! What an agent asks before it acts.

use sandbox_agent_sdk::PermissionPolicy;

use crate::{
    bench::{Answering, Bench, ask},
    cell::{Cell, Seen},
};

pub(super) async fn a_handler_allows_a_command(cell: Cell) -> Seen {
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

pub(super) async fn a_handler_refuses_a_command(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let answering = Answering::start(&connected.client, |request| {
        request.refuse().expect("it can be refused");
    });
    let session = connected.session(bench.new_session()).await;
    let log = ask(&session, "tool touch refused.txt").await;
    assert_eq!(answering.requests().len(), 1, "{:?}", answering.requests());
    assert!(!bench.in_project("refused.txt").exists());
    let outcome = log.outcome.as_ref().unwrap_or_else(|error| panic!("{error:?}"));
    let next = ask(&session, "still there").await;
    assert_eq!(next.ended().text(), "echo: still there");
    match outcome.stop_reason.as_str() {
        "end_turn" => Seen::note("the model hears of it, the turn continues"),
        "cancelled" => Seen::note("the turn ends as `cancelled`"),
        other => panic!("{other}"),
    }
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
    let session = connected.session(bench.new_session()).await;
    ask(&session, "tool touch denied.txt").await.outcome.expect("the turn ends");
    assert!(!bench.in_project("denied.txt").exists() && answering.requests().is_empty());
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
