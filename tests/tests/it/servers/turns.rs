//! Turns: their updates, their permissions, their ends.

use std::time::Duration;

use sdk_tests::eventually;
use serde_json::json;

use super::{
    Row,
    peer::{Peer, Reply},
    server::{Kind, Layout, Server, Setup},
    watch::Seen,
};

/// The request timeout of the servers in these tests.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// Checks that the turn has the numbers below `count` in order, one per event, and reports every missing one in order.
fn complete(server: &Server, reply: &Reply, count: u64) {
    reply.ended("end_turn");
    let mut expected = 0;
    let mut missed = reply.missed.iter().peekable();
    for (at, text) in reply.texts.iter().enumerate() {
        let mut reported = 0;
        while let Some(missing) = missed.next_if(|missing| missing.at == at) {
            reported += missing.count();
        }
        let number: u64 = text.parse().expect("a number");
        assert!(number >= expected, "{number} arrived out of order or twice");
        match server.has_other_clients() {
            // Losses of other clients' events are reported too.
            true => assert!(number - expected <= reported, "{} before {number} vanished", number - expected),
            false => assert_eq!(number - expected, reported, "before {number}: {:?}", reply.missed),
        }
        expected = number + 1;
    }
    // The last events are in every replay buffer, because nothing follows that could push them out.
    assert_eq!(expected, count);
    assert_eq!(missed.next(), None, "nothing is missing at the end");
}

/// Returns directives that say the numbers below `count`.
fn numbers(count: u64) -> String {
    (0..count).map(|number| format!("say {number};")).collect()
}

pub(super) async fn five_thousand_updates_arrive_in_order_before_the_response(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let reply = peer.prompt(&session, &numbers(5000)).await;
    complete(&server, &reply, 5000);
    if server.layout() == Layout::Official {
        assert_eq!(reply.texts.len(), 5000, "mailboxes lose nothing");
    }
}

pub(super) async fn a_permission_request_gets_one_response_during_a_prompt(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let (peer, proxy) = Peer::recorded(&server, row.via).await;
    let session = peer.session().await;
    let reply = peer.prompt(&session, "say before; permission; say after").await;
    reply.ended("end_turn");
    assert_eq!(reply.texts, ["before", "permission: allow", "after"]);
    if let Some(proxy) = proxy {
        let outcome = json!({ "outcome": "selected", "optionId": "allow" });
        assert_eq!(proxy.answers(), [json!({ "outcome": outcome })]);
    }
}

pub(super) async fn a_cancelled_turn_stops_as_cancelled(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let mut watch = peer.watch();
    let turn = peer.prompt(&session, "say begun; hang; say stopped");
    watch.text("begun").await;
    peer.cancel(&session).await.expect("the cancellation is delivered");
    let reply = turn.await;
    reply.ended("cancelled");
    assert_eq!(reply.texts, ["begun", "stopped"]);
    let next = peer.prompt(&session, "say again").await;
    server.said(&next, &["again"]);
}

pub(super) async fn lines_that_are_not_messages_are_reported_and_the_turn_continues(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let mut watch = peer.watch();
    let reply = peer.prompt(&session, "say before; garbage; say after").await;
    if row.kind.agent_is_no_process() {
        // An in-process agent has no standard output, so it cannot print other lines.
        assert_eq!(reply.failure().rpc_code(), Some(-32602));
        return;
    }
    server.said(&reply, &["before", "after"]);
    // Two lines that are not JSON, and three that are JSON but not messages. They may arrive on another stream than the
    // turn.
    let (mut lines, mut malformed) = (Vec::new(), 0);
    while lines.len() < 2 || malformed < 3 {
        let line = watch.find("a line that is not a message", |seen| match seen {
            Seen::Unparsed(line) => Some(Some(line)),
            Seen::Malformed => Some(None),
            _ => None,
        });
        match line.await {
            Some(line) => lines.push(line),
            None => malformed += 1,
        }
    }
    assert_eq!((lines, malformed), (vec!["this is not json".to_owned(), "{\"half\":".to_owned()], 3));
    // They have no other effect, and the session continues.
    let next = peer.prompt(&session, "say next").await;
    server.said(&next, &["next"]);
    let invented = |seen: &Seen| !matches!(seen, Seen::Text(_) | Seen::Other);
    let rest: Vec<Seen> = watch.rest().into_iter().filter(invented).collect();
    assert!(rest.is_empty() || server.has_other_clients(), "{rest:?}");
}

/// On the released server the POST of such a turn gets no response: the result is only on the stream.
pub(super) async fn a_turn_longer_than_the_servers_limit_has_its_result_in_order(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::request_limit(REQUEST_LIMIT)).await else { return };
    let (peer, proxy) = Peer::recorded(&server, row.via).await;
    let session = peer.session().await;
    let reply = peer.prompt(&session, "say early; delay 2600; say late").await;
    server.said(&reply, &["early", "late"]);
    let status = match row.kind {
        Kind::MockRpc => Some(504),
        Kind::MockReleased | Kind::Released(_) | Kind::Adapter => None,
        Kind::MockOfficial | Kind::OfficialHttp1 | Kind::OfficialHttp2 => Some(202),
        // Its limit is unknown and usually longer than this turn.
        Kind::Given => Some(200),
    };
    if let Some(proxy) = &proxy {
        // The result may be read from the stream before the status of the POST.
        eventually("the status of the POST", || proxy.statuses("session/prompt") == [status]).await;
    }
    // The session remains usable.
    let next = peer.prompt(&session, "say next").await;
    server.said(&next, &["next"]);
}
