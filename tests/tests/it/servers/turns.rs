//! Turns: their updates, their permissions, their ends.

use std::time::Duration;

use serde_json::json;

use super::{
    Row,
    peer::{Peer, Reply},
    server::{Kind, Layout, Server, Setup},
    watch::Seen,
};

/// How long the servers of these tests let a request wait for its agent.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// Fails the test unless the turn said the numbers below `count` in their order, each an event, and told of every one
/// that is missing at the place where it is missing.
fn complete(server: &Server, reply: &Reply, count: u64) {
    reply.ended("end_turn");
    let mut expected = 0;
    let mut missed = reply.missed.iter().peekable();
    for (at, text) in reply.texts.iter().enumerate() {
        let mut told = 0;
        while let Some(missing) = missed.next_if(|missing| missing.at == at) {
            told += missing.count();
        }
        let number: u64 = text.parse().expect("a number");
        assert!(number >= expected, "{number} came out of order, or twice");
        match server.has_strangers() {
            // What others lost is told of, too.
            true => assert!(number - expected <= told, "{} before {number} vanished", number - expected),
            false => assert_eq!(number - expected, told, "before {number}: {:?}", reply.missed),
        }
        expected = number + 1;
    }
    // The tail is in every ring: nothing after it can push it out.
    assert_eq!(expected, count);
    assert_eq!(missed.next(), None, "nothing is missing at the end");
}

/// Directives that say the numbers below `count`.
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
        // Such an agent has no standard output on which it could print anything else than messages.
        assert_eq!(reply.failure().rpc_code(), Some(-32602));
        return;
    }
    server.said(&reply, &["before", "after"]);
    // Two lines that are no JSON, and three that are, and no messages all the same. The stream that brings them need not
    // be the one of the turn.
    let (mut lines, mut malformed) = (Vec::new(), 0);
    while lines.len() < 2 || malformed < 3 {
        let line = watch.find("what is no message", |seen| match seen {
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
    // Nothing else is made of them, and the session goes on.
    let next = peer.prompt(&session, "say next").await;
    server.said(&next, &["next"]);
    let invented = |seen: &Seen| !matches!(seen, Seen::Text(_) | Seen::Other);
    let rest: Vec<Seen> = watch.rest().into_iter().filter(invented).collect();
    assert!(rest.is_empty() || server.has_strangers(), "{rest:?}");
}

/// The released POST of such a turn is never answered: its result is on the stream alone.
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
        // Its limit is whatever it is; usually this turn is short of it.
        Kind::Given => Some(200),
    };
    if let Some(proxy) = &proxy {
        assert_eq!(proxy.statuses("session/prompt"), [status], "how the POST was answered");
    }
    // And the session can be used as if nothing had happened.
    let next = peer.prompt(&session, "say next").await;
    server.said(&next, &["next"]);
}
