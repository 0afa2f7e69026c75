//! More events than a server buffers for a client that does not read.

use sdk_tests::Proxy;

use super::{
    Row,
    peer::{Knobs, Missing, Peer, Via},
    server::{Kind, Layout, Server, Setup},
};

/// Together 18 MiB: more than the server's replay buffer and all socket buffers hold.
const UPDATES: u64 = 4500;
const FLOOD: &str = "updates 4500 bytes 4096; say over";

pub(super) async fn every_loss_in_a_flood_is_reported_with_its_bounds(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let proxy = Proxy::start(server.url()).await;
    // The proxy supports HTTP/1.1 only. A server that loses nothing does not need it.
    let url = (row.kind != Kind::OfficialHttp2).then(|| proxy.url());
    let peer = Peer::try_connect(&server, row.via, Knobs { url, ..Knobs::default() }).await;
    let peer = peer.expect("the handshake succeeds");
    let session = peer.session().await;
    let keeps_all = server.layout() == Layout::Official;
    if !keeps_all {
        proxy.shut();
    }
    let turn = peer.prompt(&session, FLOOD);
    if !keeps_all {
        // The agent has finished, and its client has received nothing.
        proxy.answered("session/prompt").await;
        proxy.open();
    }
    let reply = turn.await;
    reply.ended("end_turn");
    assert_eq!(reply.texts.last().map(String::as_str), Some("over"));
    let missing: u64 = reply.missed.iter().map(Missing::count).sum();
    let known = reply.texts.len() as u64 + missing;
    match server.has_other_clients() {
        true => assert!(known > UPDATES, "missed {:?}", reply.missed),
        false => assert_eq!(known, UPDATES + 1, "missed {:?}", reply.missed),
    }
    assert_eq!(missing == 0, keeps_all, "missed {:?}", reply.missed);
    if row.via == Via::Protocol && !keeps_all {
        // The received and the missing ids together form the sequence, without overlap.
        let came = reply.ids.iter().map(|id| (*id, *id));
        let mut parts: Vec<(u64, u64)> =
            came.chain(reply.missed.iter().map(|missing| (missing.from, missing.to))).collect();
        parts.sort_unstable();
        assert!(parts.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "a loss was not reported");
    }
    // The next turn is complete.
    let next = peer.prompt(&session, "say calm").await;
    server.said(&next, &["calm"]);
}
