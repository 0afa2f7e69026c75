//! Turns: their updates, their permissions, their ends.

use std::time::Duration;

use super::{
    Row,
    peer::{Peer, Reply},
    server::{Kind, Server, Setup},
    watch::Seen,
};

/// How long the servers of these tests let a request wait for its agent.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// Fails the test unless the turn said these numbers in their order, and what it left out is what it told to be
/// missing: `count` numbers, each an event.
pub(super) fn complete(reply: &Reply, count: u64) {
    reply.ended("end_turn");
    let numbers: Vec<u64> = reply.texts.iter().map(|text| text.parse().expect("a number")).collect();
    assert!(numbers.is_sorted_by(|left, right| left < right), "out of order, or twice");
    let missing: u64 = reply.missed.iter().map(|(from, to)| to - from + 1).sum();
    assert_eq!(numbers.len() as u64 + missing, count, "{} came, missed {:?}", numbers.len(), reply.missed);
}

/// Directives that say the numbers below `count`.
pub(super) fn numbers(count: u64) -> String {
    (0..count).map(|number| format!("say {number};")).collect()
}

pub(super) async fn five_thousand_updates_come_in_order_before_the_answer(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let reply = peer.prompt(&session, &numbers(5000)).await;
    complete(&reply, 5000);
    // The tail is in every ring: nothing after it can push it out.
    assert_eq!(reply.texts.last().map(String::as_str), Some("4999"));
    if matches!(row.kind, Kind::OfficialHttp1 | Kind::OfficialHttp2 | Kind::MockOfficial) {
        assert_eq!(reply.texts.len(), 5000, "mailboxes lose nothing");
    }
}

pub(super) async fn a_permission_is_asked_and_answered_during_a_prompt(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let reply = peer.prompt(&session, "say before; permission; say after").await;
    reply.ended("end_turn");
    assert_eq!(reply.texts, ["before", "permission: allow", "after"]);
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
    peer.prompt(&session, "say again").await.ended("end_turn");
}

pub(super) async fn lines_that_are_no_messages_are_told_of_and_the_turn_goes_on(row: Row) {
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
    reply.ended("end_turn");
    assert_eq!(reply.texts, ["before", "after"]);
    if row.kind == Kind::MockOfficial {
        return;
    }
    let mut lines = Vec::new();
    while lines.len() < 2 {
        lines.push(
            watch
                .find("a line that is no message", |seen| match seen {
                    Seen::Unparsed(line) => Some(line),
                    _ => None,
                })
                .await,
        );
    }
    assert_eq!(lines, ["this is not json", "{\"half\":"]);
}

/// The released POST of such a turn is never answered: its result is on the stream alone.
pub(super) async fn a_turn_longer_than_the_servers_limit_has_its_result_in_order(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::request_limit(REQUEST_LIMIT)).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let reply = peer.prompt(&session, "say early; delay 2600; say late").await;
    reply.ended("end_turn");
    assert_eq!(reply.texts, ["early", "late"]);
    // And the session can be used as if nothing had happened.
    let next = peer.prompt(&session, "say next").await;
    next.ended("end_turn");
    assert_eq!(next.texts, ["next"]);
}
