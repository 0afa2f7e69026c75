//! Agents that die during a turn and between turns.

use std::time::Duration;

use sdk_tests::within;

use super::{
    Row,
    peer::{Knobs, Peer, Via},
    server::{Kind, Layout, Server, Setup},
    watch::Seen,
};

/// The request timeout of the servers in these tests. The released servers report the stderr of a dead agent only
/// after this time.
const REQUEST_LIMIT: Duration = Duration::from_secs(1);

async fn start(row: Row) -> Option<(Server, Peer)> {
    let server = Server::start(row.kind, Setup::dying(REQUEST_LIMIT)).await?;
    let peer = Peer::try_connect(&server, row.via, Knobs::default()).await.expect("the handshake succeeds");
    Some((server, peer))
}

fn details(seen: Seen) -> Option<Vec<String>> {
    match seen {
        Seen::Details(lines) => Some(lines),
        _ => None,
    }
}

fn exit(seen: Seen) -> Option<(Option<i64>, Option<String>)> {
    match seen {
        Seen::Exited { code, signal } => Some((code, signal)),
        _ => None,
    }
}

pub(super) async fn a_crash_in_a_turn_is_reported_once_with_code_and_stderr(row: Row) {
    let Some((server, peer)) = start(row).await else { return };
    let session = peer.session().await;
    let mut watch = peer.watch();
    let words = match row.kind.agent_is_no_process() {
        // The official server drops what its agent sent just before its end, so the agent waits.
        true => "say partial; delay 300; exit 3",
        false => "say partial; stderr 20; exit 3",
    };
    let reply = peer.prompt(&session, words).await;
    assert_eq!(reply.texts, ["partial"], "{reply:?}");
    let failure = reply.failure();
    assert!(failure.maybe_executed(), "{failure:?}");
    if row.via == Via::Sdk {
        let info = failure.termination().expect("how the agent ended");
        assert_eq!((info.exit_code, info.is_crash()), (Some(3), true), "{info:?}");
        let first = match row.kind {
            Kind::MockRpc => 1,
            // They report the last 16 lines.
            Kind::MockReleased | Kind::Released(_) | Kind::Adapter => 5,
            // They arrive only after its request timeout, which is unknown.
            _ => 21,
        };
        let lines: Vec<String> = (first..=20).map(|line| format!("stderr line {line}")).collect();
        assert_eq!(watch.find("the end", exit).await, (Some(3), None));
        let mut seen: Vec<String> = info.last_stderr_lines(100).into_iter().map(str::to_owned).collect();
        if seen.is_empty() && first < 21 {
            // They arrive after the request timeout of the server.
            seen = watch.find("the details of the end", details).await;
        }
        assert_eq!(seen, lines, "{info:?}");
        // The agent does not die a second time, and a prompt that was not sent cannot have run.
        let late = peer.prompt(&session, "say too late").await;
        assert!(late.texts.is_empty() && !late.failure().maybe_executed(), "{late:?}");
        assert_eq!(watch.rest().into_iter().filter_map(exit).count(), 0, "the end is reported once");
        if matches!(row.kind, Kind::Released(_) | Kind::MockReleased) {
            // Details of an end also arrive after the agent was started again.
            let client = peer.sdk().expect("the SDK's client");
            within("a restart", client.restart_agent()).await.expect("the agent starts again");
            let other = peer.session().await;
            peer.prompt(&other, "stderr 20; exit 4").await.failure();
            within("another restart", client.restart_agent()).await.expect("the agent starts again");
            assert_eq!(watch.find("the details of the second end", details).await, lines);
        }
        return;
    }
    match row.kind {
        Kind::MockRpc => assert_eq!(failure.rpc_code(), Some(-32000)),
        Kind::MockReleased | Kind::Released(_) => assert_eq!(failure.http_status(), Some(500)),
        Kind::Adapter => assert_eq!(failure.http_status(), Some(502)),
        _ => assert!(failure.is_server_gone(), "{failure:?}"),
    }
    if server.layout() != Layout::Official {
        assert_eq!(watch.find("the end", exit).await, (Some(3), None));
        assert_eq!(watch.rest().into_iter().filter_map(exit).count(), 0, "the end is reported once");
    }
}

pub(super) async fn a_signal_in_a_turn_is_reported_without_an_exit_code(row: Row) {
    let Some((server, peer)) = start(row).await else { return };
    let session = peer.session().await;
    let mut watch = peer.watch();
    let reply = peer.prompt(&session, "say partial; signal KILL").await;
    assert_eq!(reply.texts, ["partial"], "{reply:?}");
    let failure = reply.failure();
    if row.kind.agent_is_no_process() {
        return assert_eq!(failure.rpc_code(), Some(-32602), "{failure:?}");
    }
    assert!(failure.maybe_executed(), "{failure:?}");
    // The released servers do not report the signal.
    let signal = (row.kind == Kind::MockRpc).then(|| "SIGKILL".to_owned());
    if server.layout() != Layout::Official {
        assert_eq!(watch.find("the end", exit).await, (None, signal.clone()));
    }
    if row.via == Via::Sdk {
        let info = failure.termination().expect("how the agent ended");
        assert_eq!((info.exit_code, &info.signal, info.is_crash()), (None, &signal, true), "{info:?}");
    }
}

pub(super) async fn an_idle_crash_is_reported_and_the_next_prompt_fails_at_once(row: Row) {
    let Some((server, peer)) = start(row).await else { return };
    let session = peer.session().await;
    let mut watch = peer.watch();
    let reply = peer.prompt(&session, "say done; answer; delay 100; exit 7").await;
    reply.ended("end_turn");
    assert_eq!(reply.texts, ["done"]);
    if server.layout() == Layout::Official {
        watch.find("the end", |seen| (seen == Seen::Terminated).then_some(())).await;
    } else {
        assert_eq!(watch.find("the end", exit).await, (Some(7), None));
    }
    let next = peer.prompt(&session, "say too late").await;
    assert!(next.texts.is_empty(), "{next:?}");
    let failure = next.failure();
    if row.via == Via::Sdk {
        let info = failure.termination().expect("how the agent ended");
        assert_eq!((info.exit_code, info.is_crash()), (Some(7), true), "{info:?}");
        assert!(!failure.maybe_executed(), "{failure:?}");
        return;
    }
    match row.kind {
        Kind::MockRpc => assert_eq!(failure.rpc_code(), Some(-32000)),
        Kind::MockReleased | Kind::Released(_) | Kind::Adapter => {
            assert_eq!(failure.http_status(), Some(502));
        }
        _ => assert!(failure.is_server_gone(), "{failure:?}"),
    }
}
