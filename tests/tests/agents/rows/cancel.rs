//! Stopping a turn.

use sandbox_agent_sdk::{PermissionPolicy, Session, Turn};

use crate::{
    bench::{Answering, Bench, TurnLog, ask, first_text, in_time, read, until},
    cell::{Cell, Seen},
    sender::Sent,
};

/// A turn that would take half a minute and more.
const LONG: &str = "slow 400";

/// How often a row cancels in one session. The first turn is that of a fresh session; some agents do other things in it.
const TURNS: usize = 3;

/// The session is usable, and no response of the model is being streamed.
async fn usable(bench: &Bench, session: &Session) {
    in_time("the model is idle", bench.model.idle()).await;
    let next = ask(session, "still there").await;
    let raw: Vec<_> = next.updates.iter().map(|update| update.raw()).collect();
    assert_eq!(next.ended().text(), "echo: still there", "{raw:?}");
}

/// A session of a client that allows everything, and the prompts that the client sends.
async fn watched(bench: &Bench) -> (Session, Sent) {
    let sent = Sent::prompts();
    let options = bench.options().permissions(PermissionPolicy::BypassPermissions).http_sender(sent.clone());
    (bench.connect(options).await.session(bench.new_session()).await, sent)
}

/// How often the model was asked for the long turn.
fn asked(bench: &Bench) -> usize {
    bench.model.turns().iter().filter(|request| request.prompt == LONG).count()
}

async fn stop(turn: Turn) -> TurnLog {
    in_time("cancelling", turn.cancel()).await.expect("the turn can be cancelled");
    let log = read(turn).await;
    log.cancelled();
    log
}

pub(super) async fn an_immediate_cancel_withdraws_the_prompt(cell: Cell) -> Seen {
    // With one thread, the client cannot send the prompt before it is cancelled.
    let row = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(withdrawn(cell))
    });
    row.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

async fn withdrawn(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let (session, sent) = watched(&bench).await;
    for _ in 0..TURNS {
        let before = sent.count();
        let log = stop(session.prompt(LONG)).await;
        assert_eq!(sent.count(), before, "the prompt was sent");
        let outcome = log.outcome.as_ref().expect("an outcome");
        assert!(outcome.raw.is_null() && log.text().is_empty(), "{outcome:?} {:?}", log.updates);
        assert_eq!(asked(&bench), 0, "the model was asked");
        usable(&bench, &session).await;
    }
    Seen::Works
}

pub(super) async fn a_cancel_right_after_the_prompt_was_sent(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let (session, sent) = watched(&bench).await;
    for _ in 0..TURNS {
        let next = sent.count() + 1;
        let turn = session.prompt(LONG);
        in_time("the prompt is sent", sent.reached(next)).await;
        stop(turn).await;
        usable(&bench, &session).await;
    }
    Seen::Works
}

pub(super) async fn a_cancel_after_the_model_was_asked(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    for _ in 0..TURNS {
        let before = asked(&bench);
        let turn = session.prompt(LONG);
        until("the model is asked", || asked(&bench) > before).await;
        stop(turn).await;
        usable(&bench, &session).await;
    }
    Seen::Works
}

pub(super) async fn a_cancel_of_the_prompt_after_a_cancelled_one(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    ask(&session, "hello").await.ended();
    for _ in 0..TURNS {
        // The next prompt waits for the end of the cancelled turn, and follows it at once.
        let before = asked(&bench);
        let turn = session.prompt(LONG);
        until("the model is asked", || asked(&bench) > before).await;
        stop(turn).await;
    }
    usable(&bench, &session).await;
    Seen::Works
}

pub(super) async fn a_cancel_in_mid_stream(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    let mut turn = session.prompt(LONG);
    first_text(&mut turn).await;
    stop(turn).await;
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
    stop(turn).await;
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
