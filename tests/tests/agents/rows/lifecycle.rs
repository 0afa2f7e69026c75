//! Listing, loading, resuming, forking, closing and deleting sessions.

use std::time::Duration;

use nix::sys::signal::Signal;
use sandbox_agent_sdk::control::processes::RunProcess;
use sandbox_agent_sdk::session::ListSessions;
use sandbox_agent_sdk::{Error, NewSession, PermissionPolicy, Update, UpdateKind};
use sdk_tests::agents::RealAgent;

use crate::{
    bench::{Bench, Connected, ask, chain, in_time, send, until},
    cell::{Cell, Seen},
    rows::tools::tool_server,
};

/// What the model says to `remember this`.
pub(super) const REMEMBERED: &str = "echo: remember this";

pub(super) async fn sessions_are_listed(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let session = connected.session(bench.new_session()).await;
    ask(&session, "remember this").await.ended();
    // Agents list the sessions on disk, and write a session after they have responded.
    let listed = in_time("the session in a list", async {
        loop {
            let listed = connected.client.list_sessions(ListSessions::all()).all().await?;
            if let Some(found) = listed.into_iter().find(|info| info.session_id == session.id()) {
                return Ok(found);
            }
        }
    });
    match listed.await {
        Ok(found) => match &found.title {
            Some(_) => Seen::note("with a title"),
            None => Seen::note("without a title"),
        },
        // The mock server lists the sessions of any agent.
        Err(error) => {
            assert!(bench.is_released());
            unsupported(&connected, &error, connected.capabilities.list_sessions, &[RealAgent::Gemini])
        }
    }
}

/// The result for an agent that cannot do something. Only the agents in `unable` may be unable to: this fails if their
/// capabilities are not read as they are sent.
fn unsupported(connected: &Connected, error: &Error, advertised: bool, unable: &[RealAgent]) -> Seen {
    assert!(matches!(error, Error::Unsupported { .. }), "{}", chain(error));
    assert!(!advertised && unable.contains(&connected.agent), "{:?}", connected.capabilities.raw);
    Seen::cannot("`Unsupported`")
}

/// What the user and the agent said.
pub(super) fn said(history: &[Update]) -> (String, String) {
    let user = history.iter().filter_map(|update| match update.kind() {
        UpdateKind::UserMessage(chunk) => chunk.text(),
        _ => None,
    });
    let agent = history.iter().filter_map(Update::message_text);
    (user.collect(), agent.collect())
}

pub(super) async fn a_session_is_loaded_with_its_history(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let first = bench.client().await;
    let session = first.session(bench.new_session()).await;
    ask(&session, "remember this").await.ended();
    bench.written(REMEMBERED).await;
    let id = session.id().to_owned();
    let (second, same) = match bench.is_released() {
        true => (bench.client().await, false),
        false => (first, true),
    };
    assert!(second.capabilities.load_session, "{:?}", second.capabilities.raw);
    let loaded = in_time("loading", second.client.load_session(&id, bench.open_session())).await;
    let loaded = loaded.unwrap_or_else(|error| panic!("session/load: {}", chain(&error)));
    let (user, agent) = said(loaded.history());
    assert!(user.contains("remember this"), "user: {user:?}, agent: {agent:?}");
    assert!(agent.contains(REMEMBERED), "user: {user:?}, agent: {agent:?}");
    let log = ask(&loaded, "repeat all").await;
    assert!(log.ended().text().contains("remember this"), "{}", log.text());
    assert!(!log.text().contains(REMEMBERED), "history came as live text: {}", log.text());
    Seen::note(if same { "by the same process" } else { "by another process" })
}

/// The error code of a call that the agent refuses.
fn code(error: &Error) -> i64 {
    error.rpc_error().unwrap_or_else(|| panic!("{}", chain(error))).code
}

pub(super) async fn an_unknown_session_is_not_loaded(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    // A real id with another last character: its form is right.
    let mut id = connected.session(bench.new_session()).await.id().to_owned();
    let last = id.pop().expect("an id");
    id.push(if last == '0' { '1' } else { '0' });
    match in_time("loading", connected.client.load_session(&id, bench.open_session())).await {
        Err(error) => Seen::note(format!("fails with {}", code(&error))),
        Ok(loaded) => {
            assert_eq!(cell.agent, RealAgent::Qwen);
            assert!(loaded.history().is_empty(), "{:?}", loaded.history());
            assert_eq!(ask(&loaded, "hello").await.ended().text(), "echo: hello");
            Seen::cannot("opens an empty session")
        }
    }
}

pub(super) async fn a_session_without_a_prompt_is_loaded_by_another_process(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let session = connected.session(bench.new_session()).await;
    bench.kill_agent();
    if !bench.is_released() {
        // The server reports the end at once; until then the old agent is the present one.
        until("the end is reported", || session.termination().is_some()).await;
    }
    in_time("a new agent", connected.client.restart_agent()).await.expect("the agent starts again");
    let loaded = connected.client.load_session(session.id(), bench.open_session());
    match in_time("loading", loaded).await {
        Err(error) => Seen::cannot(format!("fails with {}", code(&error))),
        Ok(loaded) => {
            assert_eq!(said(loaded.history()), (String::new(), String::new()));
            assert_eq!(ask(&loaded, "hello").await.ended().text(), "echo: hello");
            Seen::Works
        }
    }
}

pub(super) async fn a_session_is_resumed(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let first = bench.client().await;
    let session = first.session(bench.new_session()).await;
    ask(&session, "remember this").await.ended();
    bench.written(REMEMBERED).await;
    let id = session.id().to_owned();
    let second = if bench.is_released() { bench.client().await } else { first };
    let resumed = in_time("resuming", second.client.resume_session(&id, bench.open_session())).await;
    let resumed = resumed.unwrap_or_else(|error| panic!("session/resume: {}", chain(&error)));
    let log = ask(&resumed, "repeat all").await;
    assert_eq!(log.ended().text().matches("remember this").count(), 1, "{}", log.text());
    // qwen advertises it, and answers that there is no such method.
    assert_eq!(second.capabilities.resume_session, cell.agent != RealAgent::Gemini);
    match cell.agent {
        RealAgent::Gemini | RealAgent::Qwen => Seen::note("by loading it"),
        _ => Seen::Works,
    }
}

pub(super) async fn a_session_is_forked(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let session = connected.session(bench.new_session()).await;
    ask(&session, "remember this").await.ended();
    bench.written(REMEMBERED).await;
    let forked = in_time("forking", session.fork(bench.new_session())).await;
    let forked = match forked {
        Ok(forked) => forked,
        Err(error) => {
            let unable = [RealAgent::Codex, RealAgent::Gemini, RealAgent::Qwen];
            return unsupported(&connected, &error, connected.capabilities.fork_session, &unable);
        }
    };
    assert_ne!(forked.id(), session.id());
    let log = ask(&forked, "repeat all").await;
    assert_eq!(log.ended().text(), "remember this", "the history is not part of the turn");
    let original = ask(&session, "repeat all").await;
    assert_eq!(original.ended().text(), "remember this");
    Seen::Works
}

pub(super) async fn a_session_is_closed(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let session = connected.session(bench.new_session()).await;
    ask(&session, "hello").await.ended();
    let ended = in_time("closing", session.terminate()).await;
    match ended {
        Ok(result) => {
            assert!(result.terminated, "{result:?}");
            let next = ask(&session, "still there").await;
            assert!(next.outcome.is_err(), "{:?}", next.outcome);
            Seen::Works
        }
        // The mock server closes the sessions of any agent.
        Err(error) => {
            assert!(bench.is_released());
            let unable = [RealAgent::Gemini, RealAgent::Qwen];
            unsupported(&connected, &error, connected.capabilities.close_session, &unable);
            Seen::cannot("`Unsupported`; disconnecting ends the agent")
        }
    }
}

pub(super) async fn a_session_is_deleted(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let session = connected.session(bench.new_session()).await;
    ask(&session, "remember this").await.ended();
    bench.written(REMEMBERED).await;
    let deleted = in_time("deleting", session.delete()).await;
    if let Err(error) = deleted {
        let unable = [RealAgent::OpenCode, RealAgent::Codex, RealAgent::Gemini, RealAgent::Qwen];
        return unsupported(&connected, &error, connected.capabilities.delete_session, &unable);
    }
    let loaded = in_time("loading", connected.client.load_session(session.id(), bench.open_session())).await;
    assert!(
        loaded.is_err(),
        "a session that was deleted was loaded: {:?}",
        loaded.map(|it| said(it.history()))
    );
    Seen::Works
}

pub(super) async fn a_disconnect_leaves_no_process(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    left_behind(&bench, bench.new_session(), &[RealAgent::Codex]).await
}

pub(super) async fn a_disconnect_with_a_tool_server_leaves_no_process(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let new = bench.new_session().mcp_server("fortunes", &tool_server(&bench));
    left_behind(&bench, new, &[RealAgent::Codex, RealAgent::Gemini]).await
}

/// How long an agent that does not end with its input is watched.
const GONE: Duration = Duration::from_secs(10);

/// Disconnects, and checks which processes of the agent remain. `remaining` are the agents that leave some.
async fn left_behind(bench: &Bench, new: NewSession, remaining: &[RealAgent]) -> Seen {
    let connected = bench.connect(bench.options().permissions(PermissionPolicy::BypassPermissions)).await;
    let session = connected.session(new).await;
    ask(&session, "tool echo hi").await.ended();
    let before = bench.processes();
    assert!(!before.is_empty());
    in_time("disconnecting", connected.client.disconnect()).await.expect("disconnecting");
    match bench.is_released() {
        true => ended(bench, remaining).await,
        false => stays(bench, before[0]).await,
    }
}

/// Checks that the agent of a shared endpoint serves the next client: it is the server's.
async fn stays(bench: &Bench, first: u32) -> Seen {
    let session = bench.session().await;
    assert_eq!(ask(&session, "still there").await.ended().text(), "echo: still there");
    assert_eq!(bench.processes().first(), Some(&first), "it is the same process");
    Seen::note("the agent stays, it is the server's")
}

/// Checks that the processes of the agent end with its input. `remaining` are the agents of which some remain.
async fn ended(bench: &Bench, remaining: &[RealAgent]) -> Seen {
    let agent = bench.cell.agent;
    if !remaining.contains(&agent) {
        until("the agent ends", || bench.processes().is_empty()).await;
        return Seen::Works;
    }
    let gone = async {
        while !bench.processes().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(GONE, gone).await.is_err(), "{agent} ends with its input now");
    Seen::cannot("its processes stay until they or the server's process group are killed")
}

pub(super) async fn a_remaining_agent_is_killed_from_inside_the_sandbox(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    // With a tool server gemini stays too.
    let session = connected.session(bench.new_session().mcp_server("fortunes", &tool_server(&bench))).await;
    ask(&session, "hello").await.ended();
    let first = bench.processes()[0];
    in_time("disconnecting", connected.client.disconnect()).await.expect("disconnecting");
    if !bench.is_released() {
        return stays(&bench, first).await;
    }
    // The command line of the agent, as users know it. It matches the agents of other connections too.
    let command = match cell.agent {
        RealAgent::Codex => "codex-acp",
        RealAgent::Gemini => "gemini --experimental-acp",
        RealAgent::OpenCode | RealAgent::Claude | RealAgent::Qwen => {
            until("the agent ends", || bench.processes().is_empty()).await;
            return Seen::note("exits by itself");
        }
    };
    let kill = RunProcess::new("pkill").args(["-KILL", "-f", command]);
    let processes = connected.client.control().processes();
    let killed =
        in_time("killing", processes.run(kill)).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(killed.exit_code, Some(0), "{killed:?}");
    until("no process of the agent is left", || bench.processes().is_empty()).await;
    Seen::Works
}

/// The server alone is killed, not its process group: nothing is left that could end its agents.
pub(super) async fn a_killed_server_leaves_no_process(cell: Cell) -> Seen {
    let mut bench = Bench::apart(cell).await;
    let session = bench.session().await;
    ask(&session, "tool echo hi").await.ended();
    assert!(!bench.processes().is_empty());
    bench.kill_server().await;
    let seen = ended(&bench, &[RealAgent::Codex]).await;
    bench.processes().into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
    seen
}
