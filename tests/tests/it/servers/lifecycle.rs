//! Servers that are killed and restarted, sessions that are restored, connections that are closed.

use std::time::{Duration, Instant};

use sdk_tests::{eventually, is_alive, within};

use super::{
    Row,
    peer::{CLOSE, Knobs, Peer, Via},
    server::{Kind, Layout, Server, Setup},
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
        None if server.kind().layout() == Layout::Shared => None,
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
        if server.kind().layout() == Layout::Shared {
            let another = Peer::connect(&server, row.via).await;
            another.prompt(&another.session().await, "say somebody else").await.ended("end_turn");
        }
    };
    let (reply, ()) = tokio::join!(turn, nudge);
    assert_eq!(reply.texts, ["begun"], "{reply:?}");
    let failure = reply.failure();
    assert!(failure.maybe_executed(), "{failure:?}");
    let told = failure.is_server_gone() || failure.is_restart();
    assert!(told, "{failure:?}");
    let fresh = connect_again(&server, &peer, row.via).await;
    let peer = fresh.as_ref().unwrap_or(&peer);
    let session = peer.session().await;
    let reply = peer.prompt(&session, "say back").await;
    reply.ended("end_turn");
    assert_eq!(reply.texts, ["back"]);
}

pub(super) async fn a_session_is_restored_on_a_restarted_server(row: Row) {
    let Some(mut server) = Server::start(row.kind, Setup::default()).await else { return };
    let old = Peer::connect(&server, row.via).await;
    let session = old.session().await;
    old.prompt(&session, "say remembered").await.ended("end_turn");
    old.close().await;
    server.kill_and_restart().await;
    let peer = Peer::connect(&server, row.via).await;
    within("session/load", peer.load(&session)).await.expect("the session is loaded");
    let reply = peer.prompt(&session, "say one").await;
    reply.ended("end_turn");
    assert_eq!(reply.texts, ["one"]);
    within("session/resume", peer.resume(&session)).await.expect("the session is resumed");
    let reply = peer.prompt(&session, "say two").await;
    reply.ended("end_turn");
    assert_eq!(reply.texts, ["two"]);
}

/// The DELETE of a released server hangs as long as its agent lives, and the agent is told only when it is given up.
pub(super) async fn closing_is_bounded_and_ends_the_agent_where_it_is_ours(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let begun = Instant::now();
    let confirmed = within("closing", peer.close()).await;
    if let Some(confirmed) = confirmed {
        let hangs = matches!(row.kind, Kind::MockReleased | Kind::Released(_));
        assert_eq!(confirmed, !hangs);
        if hangs {
            assert!(begun.elapsed() >= CLOSE - Duration::from_millis(50), "it was waited for");
        }
    }
    let again = within("closing again", peer.close()).await;
    assert_eq!(again, confirmed, "a second close changes nothing");
    if matches!(row.kind, Kind::MockReleased | Kind::Released(_)) {
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
