//! Agents, servers and programs that are killed.

use std::process::Stdio;

use nix::sys::signal::Signal;
use sandbox_agent_sdk::{
    Error, PermissionPolicy, SandboxAgentClient,
    error::LostReason,
    sessions::{SqliteStore, StoredEvent, StoredEventKind, StoredSession, store::TurnEnd},
};
use sdk_tests::agents::RealAgent;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{
    bench::{Bench, ask, chain, first_text, in_time, read, send, until},
    cell::{Cell, Face, Seen},
    rows::lifecycle::{REMEMBERED, said},
};

pub(super) async fn a_killed_agent_is_reported_and_loads_its_session_again(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.connect(bench.options().permissions(PermissionPolicy::BypassPermissions)).await;
    let session = connected.session(bench.new_session()).await;
    ask(&session, "remember this").await.ended();
    bench.written(REMEMBERED).await;
    let mut turn = session.prompt("slow 400");
    first_text(&mut turn).await;
    bench.kill_agent();
    let log = read(turn).await;
    let error = log.outcome.expect_err("the turn fails");
    let end = error.termination().unwrap_or_else(|| panic!("{}", chain(&error)));
    assert!(end.is_crash() && error.maybe_executed(), "{end:?}");
    let shown = end.to_string();
    if bench.is_released() {
        // The server reports the end without its cause.
        assert_eq!((end.signal.as_deref(), end.exit_code), (None, None), "{end:?}");
    } else {
        assert_eq!(end.signal.as_deref(), Some("SIGKILL"), "{end:?}");
        assert!(shown.contains("killed by SIGKILL"), "{shown}");
    }
    assert!(!shown.contains("unix_wait_status"), "{shown}");
    in_time("a new agent", connected.client.restart_agent()).await.expect("the agent starts again");
    let loaded = in_time("loading", connected.client.load_session(session.id(), bench.open_session())).await;
    let loaded = loaded.unwrap_or_else(|error| panic!("session/load: {}", chain(&error)));
    let log = ask(&loaded, "repeat all").await;
    assert!(log.ended().text().contains("remember this"), "{}", log.text());
    match bench.is_released() {
        true => Seen::note("the end has no signal"),
        false => Seen::Works,
    }
}

/// Agents that write an answer to disk after they have responded, and load a session without it.
const LOSE_ANSWERS: [RealAgent; 2] = [RealAgent::Claude, RealAgent::Qwen];

pub(super) async fn a_turn_right_before_a_kill_is_there_or_reported_missing(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.connect(bench.options().permissions(PermissionPolicy::BypassPermissions)).await;
    let session = connected.session(bench.new_session()).await;
    ask(&session, "remember this").await.ended();
    bench.kill_agent();
    if !bench.is_released() {
        // The server reports the end at once; until then the old agent is the present one.
        until("the end is reported", || session.termination().is_some()).await;
    }
    in_time("a new agent", connected.client.restart_agent()).await.expect("the agent starts again");
    let loaded = connected.client.load_session(session.id(), bench.open_session());
    match in_time("loading", loaded).await {
        Ok(loaded) => {
            // A session that is loaded without the turn has lost it silently.
            let (user, agent) = said(loaded.history());
            assert!(user.contains("remember this"), "user: {user:?}, agent: {agent:?}");
            let is_lost = !agent.contains(REMEMBERED);
            assert!(!is_lost || LOSE_ANSWERS.contains(&cell.agent), "user: {user:?}, agent: {agent:?}");
            let log = ask(&loaded, "repeat all").await;
            assert!(log.ended().text().contains("remember this"), "{}", log.text());
        }
        // The agent has no such session: claude has not written it yet, gemini has lost its file.
        Err(error) => {
            let code = error.rpc_error().unwrap_or_else(|| panic!("{}", chain(&error))).code;
            let missing = [(RealAgent::Claude, -32002), (RealAgent::Gemini, -32603)];
            assert!(missing.contains(&(cell.agent, code)), "{}", chain(&error));
        }
    }
    match LOSE_ANSWERS.contains(&cell.agent) {
        true => Seen::cannot("its answer may be missing from the history, and it does not report that"),
        false => Seen::Works,
    }
}

/// Begins once `begun.txt` exists, and ends after `go.txt` was created, with `after.txt`.
const COMMAND: &str = "tool touch begun.txt; while [ ! -e go.txt ]; do sleep 0.1; done; touch after.txt";

pub(super) async fn a_killed_agent_runs_no_further_command(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    let turn = session.prompt(COMMAND);
    until("the command runs", || bench.in_project("begun.txt").exists()).await;
    bench.kill_agent();
    let error = read(turn).await.outcome.expect_err("the turn fails");
    assert!(error.termination().is_some_and(|end| end.is_crash()), "{}", chain(&error));
    let asked = bench.model.turns().len();
    std::fs::write(bench.in_project("go.txt"), "").expect("a file");
    let edited = || bench.in_project("after.txt").exists();
    until("the command has ended", || edited() || bench.processes().is_empty()).await;
    if !edited() {
        return Seen::Works;
    }
    let is_over = || bench.processes().is_empty() || bench.model.turns().len() > asked;
    until("the turn is over", is_over).await;
    match bench.model.turns().len() > asked {
        true => {
            assert!(bench.is_released(), "the server kills the process group");
            Seen::server_cannot("its command and its turn continue after the reported end")
        }
        false => Seen::cannot("its command continues after the reported end"),
    }
}

pub(super) async fn a_stored_session_reports_an_answer_that_the_agent_lost(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let (_client, session) = stored(&bench).await;
    read(session.prompt("remember this").await.expect("a turn")).await.ended();
    bench.kill_agent();
    let mut log = read(in_time("restoring", session.prompt("repeat all")).await.expect("a turn")).await;
    // A prompt that was sent before the end was known fails; the next one restores the session.
    if log.outcome.as_ref().is_err_and(|error| error.termination().is_some()) {
        log = read(in_time("restoring", session.prompt("repeat all")).await.expect("a turn")).await;
    }
    assert!(log.ended().text().contains("remember this"), "{:?}", log.text());
    let request = bench.model.turns().pop().expect("a request");
    let is_known = request.body.to_string().contains(REMEMBERED);
    let events = all_events(&session).await;
    let restored = events.iter().rfind(|event| event.kind == StoredEventKind::Restored);
    let is_reported = restored.is_some_and(|event| event.payload["unknownAnswers"].as_u64() > Some(0));
    assert!(is_known || is_reported, "{restored:?}, {}", request.body);
    Seen::Works
}

async fn stored(bench: &Bench) -> (SandboxAgentClient, StoredSession) {
    let store = SqliteStore::open(bench.home.folder().join("sessions.sqlite")).await.expect("a store");
    let options = bench.options().permissions(PermissionPolicy::BypassPermissions);
    let connected = bench.connect(options).await;
    let session = in_time(
        "a session",
        connected.client.with_store(store).resume_or_create("stored", bench.new_session()),
    )
    .await;
    (connected.client, session.unwrap_or_else(|error| panic!("{}", chain(&error))))
}

/// Prompts in a stored session; the agent must know what was said before.
async fn remembers(session: &StoredSession) {
    let turn = in_time("restoring", session.prompt("repeat all")).await;
    let log = read(turn.unwrap_or_else(|error| panic!("{}", chain(&error)))).await;
    assert!(log.ended().text().contains("remember this"), "{:?}", log.text());
}

pub(super) async fn a_stored_session_continues_after_the_agent_was_killed(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let (_client, session) = stored(&bench).await;
    read(session.prompt("remember this").await.expect("a turn")).await.ended();
    let mut turn = session.prompt("slow 400").await.expect("a turn");
    first_text(&mut turn).await;
    bench.kill_agent();
    let error = read(turn).await.outcome.expect_err("the turn fails");
    let end = error.termination().unwrap_or_else(|| panic!("{}", chain(&error)));
    assert!(end.is_crash() && error.maybe_executed(), "{}", chain(&error));
    remembers(&session).await;
    Seen::Works
}

pub(super) async fn a_stored_session_continues_after_the_server_was_killed(cell: Cell) -> Seen {
    let mut bench = Bench::start(cell).await;
    let (_client, session) = stored(&bench).await;
    read(session.prompt("remember this").await.expect("a turn")).await.ended();
    let mut turn = session.prompt("slow 400").await.expect("a turn");
    first_text(&mut turn).await;
    bench.restart_server().await;
    let error = read(turn).await.outcome.expect_err("the turn fails");
    let is_server_lost = match bench.cell.face {
        Face::Mock => matches!(error, Error::ServerRestarted { .. }),
        Face::Released => matches!(error, Error::ConnectionEnded { reason: LostReason::ServerGone, .. }),
    };
    assert!(is_server_lost && error.maybe_executed(), "{error:?}");
    remembers(&session).await;
    Seen::Works
}

async fn all_events(session: &StoredSession) -> Vec<StoredEvent> {
    let (mut events, mut after) = (Vec::new(), Some(0));
    while let Some(index) = after {
        let page = session.stored_events(index).await.expect("a page of events");
        events.extend(page.events);
        after = page.next;
    }
    events
}

/// How a turn ended: the stop reason, or the error.
fn how(end: &TurnEnd) -> String {
    match &end.stop_reason {
        Some(reason) => reason.as_str().to_owned(),
        None => end.error.as_ref().map(|error| error.message.clone()).unwrap_or_default(),
    }
}

pub(super) async fn a_stored_session_continues_after_its_program_was_killed(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let store = bench.home.folder().join("sessions.sqlite");
    let mut program = tokio::process::Command::new(std::env::current_exe().expect("this program"));
    program.args(["--program", &bench.url(), bench.agent_name(), &bench.project()]);
    program.arg(&store).args(["stored", "remember this", "slow 400"]);
    let mut program = program.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("a program");
    let mut lines = BufReader::new(program.stdout.take().expect("its output")).lines();
    in_time("the second turn", async {
        let mut first_is_over = false;
        while let Some(line) = lines.next_line().await.expect("a line") {
            if line == "text" && first_is_over {
                return;
            }
            first_is_over |= line == "done 0";
        }
        panic!("the program ended");
    })
    .await;
    send(program.id().expect("it runs"), Signal::SIGKILL);
    in_time("its end", program.wait()).await.expect("it ends");
    let (_client, session) = stored(&bench).await;
    remembers(&session).await;
    let events = in_time("the end of the last turn is stored", async {
        loop {
            let events = all_events(&session).await;
            if events.iter().filter_map(StoredEvent::turn_end).count() >= 3 {
                return events;
            }
        }
    });
    let events = events.await;
    // If the agent has lost the session, a later turn contains the transcript, and with it this text.
    let updates = events.iter().filter_map(StoredEvent::update);
    let texts = updates.filter(|update| update.message_text().is_some_and(|text| text.trim() == REMEMBERED));
    assert_eq!(texts.count(), 1, "the first turn is stored once");
    let prompts = events.iter().filter(|event| event.kind == StoredEventKind::Prompt);
    let ends = prompts.map(|prompt| {
        let of_turn = events.iter().filter(|event| event.turn_id == prompt.turn_id);
        of_turn.filter_map(StoredEvent::turn_end).map(|end| how(&end)).collect::<Vec<_>>()
    });
    // The new program's prompt cancels the turn of the killed one.
    assert_eq!(ends.collect::<Vec<_>>(), [["end_turn"], ["cancelled"], ["end_turn"]]);
    Seen::Works
}
