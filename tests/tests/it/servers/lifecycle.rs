//! Servers that are killed and restarted, sessions that are restored, connections that are closed.

use sdk_tests::{eventually, is_alive, within};

use super::{
    Row,
    peer::{Knobs, Peer, Via},
    server::{Kind, Layout, Server, Setup},
    watch::Seen,
};

/// Connects again after the server was restarted.
async fn connect_again(server: &Server, peer: &Peer, via: Via) -> Option<Peer> {
    match peer.sdk() {
        Some(client) => {
            if !client.state().is_usable() {
                within("connecting again", client.connect()).await.expect("the client connects again");
            }
            None
        }
        None if server.layout() == Layout::Shared => None,
        None => Some(Peer::connect(server, via).await),
    }
}

pub(super) async fn a_server_that_is_killed_and_restarted_fails_the_turn_and_can_be_used_again(row: Row) {
    let Some(mut server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let mut watch = peer.watch();
    let turn = peer.prompt(&session, "say begun; hang");
    watch.text("begun").await;
    server.kill_and_restart().await;
    // Nobody else uses the server: on a shared endpoint a probe of the client shows the restart.
    let reply = turn.await;
    assert_eq!(reply.texts, ["begun"], "{reply:?}");
    let failure = reply.failure();
    assert!(failure.maybe_executed(), "{failure:?}");
    // A client whose connection is lost must connect again. On a shared endpoint it continues automatically.
    let gone = server.layout() != Layout::Shared;
    assert_eq!((failure.is_server_gone(), failure.is_restart()), (gone, !gone), "{failure:?}");
    let sign = if gone { Seen::Terminated } else { Seen::Restarted };
    watch.find("the report", |seen| (seen == sign).then_some(())).await;
    assert!(!watch.rest().contains(&sign), "it is reported once");
    let fresh = connect_again(&server, &peer, row.via).await;
    let peer = fresh.as_ref().unwrap_or(&peer);
    let session = peer.session().await;
    let reply = peer.prompt(&session, "say back").await;
    server.said(&reply, &["back"]);
}

/// No turn runs when the server is killed. A session without a store belongs to the agent that ended with the server, so
/// its next prompt fails, and has not run. The session can then be loaded.
pub(super) async fn the_prompt_after_an_idle_restart_fails_and_has_not_run(row: Row) {
    let Some(mut server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    peer.prompt(&session, "say one").await.ended("end_turn");
    server.kill_and_restart().await;
    let reply = peer.prompt(&session, "say lost").await;
    let failure = reply.failure();
    let is_typed = match server.layout() {
        Layout::Shared => {
            failure.is_restart() || failure.rpc_code().is_some() || failure.http_status().is_some()
        }
        Layout::PerAgent | Layout::Official => failure.is_server_gone(),
    };
    assert!(is_typed, "{failure:?}");
    connect_again(&server, &peer, row.via).await;
    within("session/load", peer.load(&session)).await.expect("the agent has stored the session");
    let reply = peer.prompt(&session, "say two; recall").await;
    server.said(&reply, &["two", "recall: one, two"]);
}

/// The test also kills and restarts the server, unless it is an external one.
pub(super) async fn a_session_is_loaded_and_resumed_by_another_client(row: Row) {
    let Some(mut server) = Server::start(row.kind, Setup::default()).await else { return };
    let old = Peer::connect(&server, row.via).await;
    let session = old.session().await;
    old.prompt(&session, "say remembered").await.ended("end_turn");
    old.close().await;
    if row.kind != Kind::Given {
        server.kill_and_restart().await;
    }
    let peer = Peer::connect(&server, row.via).await;
    let mut watch = peer.watch();
    let unknown = within("session/load", peer.load("unknown")).await;
    if row.kind != Kind::Given {
        assert!(unknown.expect_err("it is not known").rpc_code().is_some(), "an error of the agent");
    }
    let history = match within("session/load", peer.load(&session)).await {
        // An external server may have dropped the session with its client.
        _ if row.kind == Kind::Given => Vec::new(),
        loaded => {
            loaded.expect("the session is loaded");
            vec![Seen::History("remembered".to_owned())]
        }
    };
    let reply = peer.prompt(&session, "say one").await;
    server.said(&reply, &["one"]);
    within("session/resume", peer.resume(&session)).await.expect("the session is resumed");
    let reply = peer.prompt(&session, "say two; recall").await;
    if row.kind == Kind::Given {
        return;
    }
    server.said(&reply, &["two", "recall: remembered, one, two"]);
    // Loaded updates are history and delivered once. Resuming delivers none.
    let spoken = |seen: &Seen| matches!(seen, Seen::Text(_) | Seen::History(_));
    let texts: Vec<Seen> = watch.rest().into_iter().filter(spoken).collect();
    let new = ["one", "two", "recall: remembered, one, two"].map(|text| Seen::Text(text.to_owned()));
    assert_eq!(texts, [history, new.into()].concat());
}

/// The DELETE of a released server hangs while its agent runs. The server ends the agent when the client aborts it.
pub(super) async fn closing_is_bounded_and_ends_the_agent_where_it_is_ours(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::any_agent()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let confirmed = within("closing", peer.close()).await;
    if let Some(confirmed) = confirmed {
        assert_eq!(confirmed, !row.kind.is_released(), "the DELETE of a released server hangs");
    }
    let again = within("closing again", peer.close()).await;
    assert_eq!(again, confirmed, "a second close changes nothing");
    if row.kind.is_released() {
        let pid = pid_of(&session);
        eventually("the end of the agent", || !is_alive(pid)).await;
    }
    // The server still accepts other clients.
    let knobs = Knobs { server_id: Some("next"), ..Knobs::default() };
    Peer::try_connect(&server, row.via, knobs).await.expect("the next client connects").session().await;
}

/// Returns the process id in a session id of the stub agent: `stub-PID-N`.
fn pid_of(session: &str) -> u32 {
    session.split('-').nth(1).and_then(|pid| pid.parse().ok()).expect("a session of the stub agent")
}
