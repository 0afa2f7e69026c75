//! Stopping a turn.

use sandbox_agent_sdk::Session;

use crate::{
    bench::{Answering, Bench, ask, first_text, in_time, read, until},
    cell::{Cell, Seen},
};

/// A turn that would take half a minute and more.
const LONG: &str = "slow 400";

/// The session is usable, and the model is not asked for anything any more.
async fn usable(bench: &Bench, session: &Session) {
    in_time("the model is idle", bench.model.idle()).await;
    let next = ask(session, "still there").await;
    let raw: Vec<_> = next.updates.iter().map(|update| update.raw()).collect();
    assert_eq!(next.ended().text(), "echo: still there", "{raw:?}");
}

pub(super) async fn a_cancel_right_after_the_prompt(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    // A used session: some agents do other things in their first turn.
    ask(&session, "hello").await.ended();
    for _ in 0..3 {
        let turn = session.prompt(LONG);
        let cancelled = turn.cancel();
        in_time("cancelling", cancelled).await.expect("the turn can be cancelled");
        read(turn).await.cancelled();
        usable(&bench, &session).await;
    }
    Seen::Works
}

pub(super) async fn a_cancel_in_mid_stream(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    let mut turn = session.prompt(LONG);
    first_text(&mut turn).await;
    in_time("cancelling", turn.cancel()).await.expect("the turn can be cancelled");
    read(turn).await.cancelled();
    usable(&bench, &session).await;
    Seen::Works
}

pub(super) async fn a_cancel_with_an_open_permission(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let answering = Answering::start(&connected.client, |_| {});
    let session = connected.session(bench.new_session()).await;
    let turn = session.prompt("tool touch cancelled.txt");
    until("the agent asks", || !answering.requests().is_empty()).await;
    in_time("cancelling", turn.cancel()).await.expect("the turn can be cancelled");
    read(turn).await.cancelled();
    assert!(!answering.requests()[0].is_open());
    assert!(!bench.in_project("cancelled.txt").exists());
    usable(&bench, &session).await;
    Seen::Works
}

pub(super) async fn a_dropped_turn_stops(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    let mut turn = session.prompt(LONG);
    first_text(&mut turn).await;
    drop(turn);
    until("the session is idle", || session.turn_state() == sandbox_agent_sdk::turns::TurnState::Idle).await;
    usable(&bench, &session).await;
    Seen::Works
}
