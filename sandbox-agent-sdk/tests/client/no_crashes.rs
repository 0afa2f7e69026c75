//! What is not a crash: requested stops, a lost transport, servers that lost their state.

use std::time::Duration;

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::connection::ReconnectPolicy;
use sandbox_agent_sdk::error::LostReason;
use sandbox_agent_sdk::session::ListSessions;
use sandbox_agent_sdk::termination::EndReason;
use sandbox_agent_sdk::{ConnectionState, Error, Event, NewSession, ServerKind};

use super::support::{KINDS, LIMIT, client, ends_so_far, event, options, session, session_ended, within};

#[tokio::test]
async fn a_requested_stop_is_never_a_crash() {
    let server = MockServer::builder().agent("mock", Script::steps(vec![Step::WaitForCancel])).start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = client.events();
    let mut turn = session.prompt("work");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    let result = within(session.terminate()).await.unwrap();
    assert!(result.terminated && !result.already_ended);
    let ended = session_ended(&mut events).await.termination;
    assert_eq!((&ended.reason, ended.requested, ended.is_crash()), (&EndReason::Terminated, true, false));
    if let Err(error) = within(turn.outcome()).await {
        assert!(error.termination().is_some_and(|info| info.requested), "{error:?}");
    }
    let again = within(session.terminate()).await.unwrap();
    assert!(!again.terminated && again.already_ended);
    assert!(ends_so_far(&mut events).is_empty());
    assert_eq!(within(session.info()).await.unwrap().termination_info, Some(ended.clone()));
    let listed = within(client.list_sessions(ListSessions::all()).all()).await.unwrap();
    assert_eq!(listed[0].termination_info, Some(ended));
}

#[tokio::test]
async fn disconnecting_from_a_server_with_an_agent_for_each_connection_ends_the_sessions_as_requested() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::PerAgent);
    let session = session(&client).await;
    let mut events = client.events();
    within(client.disconnect()).await.unwrap();
    let ended = session_ended(&mut events).await;
    assert_eq!(ended.session_id, session.id());
    assert!(ended.termination.requested && !ended.termination.is_crash());
    assert!(ends_so_far(&mut events).is_empty());
}

#[tokio::test]
async fn disconnecting_from_a_shared_server_ends_no_session() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = client.events();
    within(client.disconnect()).await.unwrap();
    assert!(ends_so_far(&mut events).is_empty());
    within(client.connect()).await.unwrap();
    assert_eq!(within(session.prompt("still there").text()).await.unwrap(), "mock: still there");
}

#[tokio::test]
async fn lost_transport_is_not_a_dead_agent() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", Script::steps(vec![Step::Hang])).start().await;
        let policy = ReconnectPolicy::default().base(Duration::from_millis(5)).max_attempts(3);
        let client = options(&server, kind).reconnect(policy).build().unwrap();
        let session = session(&client).await;
        let mut events = client.events();
        let mut turn = session.prompt("wait");
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        server.stop().await;
        let error = within(turn.outcome()).await.unwrap_err();
        assert!(error.termination().is_none() && error.maybe_executed(), "{kind}: {error:?}");
        let lost = event(&mut events, |event| match event {
            Event::Connection(ConnectionState::Lost(reason)) => Some(reason),
            _ => None,
        })
        .await;
        assert!(matches!(lost, LostReason::RetriesExhausted { .. }));
        assert!(ends_so_far(&mut events).is_empty());
        let later = within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
        assert!(matches!(&later, Error::ConnectionEnded { .. }) && !later.maybe_executed(), "{later:?}");
        assert_eq!(session.termination(), None);
        server.restart(mock_server::State::Preserved).await;
        within(client.connect()).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_no_longer_knows_the_agent_is_reported_and_no_new_agent_is_started() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::PerAgent);
    let session = session(&client).await;
    server.restart(mock_server::State::Lost).await;
    let error = within(async {
        loop {
            match session.prompt("hello").outcome().await {
                Err(error) if error.is_terminal() => break error,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await;
    assert!(matches!(&error, Error::ConnectionEnded { reason: LostReason::ServerGone, .. }), "{error:?}");
    assert!(error.termination().is_none());
    within(client.restart_agent()).await.unwrap();
    super::support::session(&client).await;
}
