//! Servers that are killed and restarted, sessions that are restored, connections that are closed.

use sdk_tests::{eventually, is_alive, within};

use super::{
    Row,
    peer::{Knobs, Peer, Via},
    server::{Kind, Layout, Server, Setup},
    watch::Seen,
};

/// Makes a connection again after its server was restarted.
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
    // A shared endpoint that counts anew is told from the old one by what it sends.
    let nudge = async {
        if server.layout() == Layout::Shared {
            let another = Peer::connect(&server, row.via).await;
            another.prompt(&another.session().await, "say somebody else").await.ended("end_turn");
        }
    };
    let (reply, ()) = tokio::join!(turn, nudge);
    assert_eq!(reply.texts, ["begun"], "{reply:?}");
    let failure = reply.failure();
    assert!(failure.maybe_executed(), "{failure:?}");
    // Whoever lost its connection has to make another one; a shared endpoint is there again by itself.
    let gone = server.layout() != Layout::Shared;
    assert_eq!((failure.is_server_gone(), failure.is_restart()), (gone, !gone), "{failure:?}");
    let sign = if gone { Seen::Terminated } else { Seen::Restarted };
    watch.find("a word about it", |seen| (seen == sign).then_some(())).await;
    assert!(!watch.rest().contains(&sign), "it is told once");
    let fresh = connect_again(&server, &peer, row.via).await;
    let peer = fresh.as_ref().unwrap_or(&peer);
    let session = peer.session().await;
    let reply = peer.prompt(&session, "say back").await;
    server.said(&reply, &["back"]);
}

/// The server, too, is another one where it is ours: killed, and started again.
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
    let unknown = within("session/load", peer.load("nobody's")).await;
    if row.kind != Kind::Given {
        assert!(unknown.expect_err("it is not known").rpc_code().is_some(), "a refusal of the agent");
    }
    let history = match within("session/load", peer.load(&session)).await {
        // A given server may have forgotten it with its client.
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
    // What was loaded is history, and told once; resuming brings none.
    let spoken = |seen: &Seen| matches!(seen, Seen::Text(_) | Seen::History(_));
    let told: Vec<Seen> = watch.rest().into_iter().filter(spoken).collect();
    let new = ["one", "two", "recall: remembered, one, two"].map(|text| Seen::Text(text.to_owned()));
    assert_eq!(told, [history, new.into()].concat());
}

/// The DELETE of a released server hangs as long as its agent lives, and the agent is told only when it is given up.
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
    // The server is none the worse for it.
    let knobs = Knobs { server_id: Some("next"), ..Knobs::default() };
    Peer::try_connect(&server, row.via, knobs).await.expect("the next client connects").session().await;
}

/// The stub agent names its sessions after its process: `stub-PID-N`.
fn pid_of(session: &str) -> u32 {
    session.split('-').nth(1).and_then(|pid| pid.parse().ok()).expect("a session of the stub agent")
}
