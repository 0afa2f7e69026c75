//! Supported features of server and agent, as a user interface queries them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mock_server::{MockServer, Script, State, Step};
use sandbox_agent_sdk::connection::{Feature, ReconnectPolicy, Support};
use sandbox_agent_sdk::extensions::Extension;
use sandbox_agent_sdk::{Error, Event, NewSession, ServerKind};
use serde_json::json;

use super::support::{KINDS, client, event, options, session, within};

fn not_found() -> Vec<Step> {
    vec![Step::Fail { code: -32601, message: "Method not found".into(), data: None }]
}

#[tokio::test]
async fn support_is_known_from_capabilities_and_from_attempts() {
    for kind in KINDS {
        let said = json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true,
            "promptCapabilities": {"image": true}, "sessionCapabilities": {"fork": {}}}});
        let script = Script::default()
            .initialize(said)
            .on_request(|method, _| matches!(method, "session/fork" | "session/set_mode").then(not_found));
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = options(&server, kind).auto_connect(false).build().unwrap();
        assert_eq!(client.supports(Feature::LoadSession), Support::Unknown, "nothing is known yet");
        within(client.connect()).await.unwrap();
        let at_first = [
            (Feature::LoadSession, Support::Yes),
            (Feature::ResumeSession, Support::Yes),
            (Feature::ForkSession, Support::Yes),
            (Feature::SetMode, Support::Unknown),
            (Feature::SetModel, Support::Unknown),
            (Feature::Images, Support::Yes),
            (Feature::Audio, Support::No),
        ];
        for (feature, support) in at_first {
            assert_eq!(client.supports(feature), support, "{kind} {feature:?}");
        }
        let by_server = if kind == ServerKind::Shared { Support::Yes } else { Support::Unknown };
        for feature in [Feature::DetachSession, Feature::ListSessions, Extension::SessionSetMetadata.into()] {
            assert_eq!(client.supports(feature), by_server, "{kind} {feature:?}");
        }

        let session = session(&client).await;
        within(session.fork(NewSession::in_dir("/"))).await.unwrap_err();
        within(client.set_session_mode(session.id(), "plan")).await.unwrap_err();
        within(session.set_model("mock-fast")).await.unwrap();
        assert_eq!(client.supports(Feature::ForkSession), Support::No, "it was advertised, but it failed");
        assert_eq!(client.supports(Feature::SetMode), Support::Unknown, "there may be an option for it");
        assert_eq!(client.supports(Feature::SetModel), Support::Yes);
        if kind == ServerKind::PerAgent {
            within(session.detach()).await.unwrap_err();
            assert!(!client.supports(Feature::DetachSession).is_possible());
        }
        assert_eq!(server.messages("session/fork").len(), 1, "a query sends nothing");
        within(client.disconnect()).await.unwrap();
        assert_eq!(client.supports(Feature::ForkSession), Support::Unknown);
    }
}

#[tokio::test]
async fn support_is_tracked_per_agent() {
    let bare = Script::default().on_request(|method, _| (method == "session/set_mode").then(not_found));
    let server = MockServer::builder().agent("mock", bare).agent("other", Script::default()).start().await;
    let client = client(&server, ServerKind::Shared);
    let (one, two) = (NewSession::in_dir("/"), NewSession::in_dir("/").agent("other"));
    let one = within(client.new_session(one)).await.unwrap();
    let two = within(client.new_session(two)).await.unwrap();
    let error = within(client.set_session_mode(one.id(), "plan")).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    within(client.set_session_mode(two.id(), "plan")).await.unwrap();
}

#[tokio::test]
async fn support_is_checked_again_after_an_agent_restart() {
    for kind in KINDS {
        let launches = Arc::new(AtomicUsize::new(0));
        let script = Script::default().on_request(move |method, _| match method {
            "initialize" => {
                launches.fetch_add(1, Ordering::SeqCst);
                None
            }
            "session/set_mode" if launches.load(Ordering::SeqCst) == 1 => Some(not_found()),
            _ => None,
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let old = session(&client).await;
        within(client.set_session_mode(old.id(), "plan")).await.unwrap_err();
        within(client.restart_agent()).await.unwrap();
        let fresh = session(&client).await;
        within(client.set_session_mode(fresh.id(), "plan")).await.unwrap();
    }
}

#[tokio::test]
async fn support_is_checked_again_after_a_server_restart() {
    let lacks = Arc::new(AtomicBool::new(true));
    let script = Script::default().on_request({
        let lacks = Arc::clone(&lacks);
        move |method, _| (method == "session/set_mode" && lacks.load(Ordering::SeqCst)).then(not_found)
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let reconnect = ReconnectPolicy::default().base(Duration::from_millis(5));
    let client = options(&server, ServerKind::Shared).reconnect(reconnect).build().unwrap();
    let old = session(&client).await;
    for _ in 0..2 {
        within(client.set_session_mode(old.id(), "plan")).await.unwrap_err();
    }
    assert_eq!(server.messages("session/set_mode").len(), 1, "the result is remembered");
    let mut events = client.events();
    lacks.store(false, Ordering::SeqCst);
    server.restart(State::Lost).await;
    // The client recognises the new server by its events, so the test causes some.
    let fresh = session(&client).await;
    event(&mut events, |event| matches!(event, Event::ServerRestarted).then_some(())).await;
    within(client.set_session_mode(fresh.id(), "plan")).await.unwrap();
}

#[tokio::test]
async fn a_session_is_closed_by_the_agent_if_the_server_cannot_end_it() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::PerAgent);
    let session = session(&client).await;
    assert_eq!(client.supports(Feature::TerminateSession), Support::Yes);
    let mut events = client.events();
    let result = within(session.terminate()).await.unwrap();
    assert!(result.terminated && !result.already_ended);
    assert_eq!(server.messages("session/close")[0]["params"]["sessionId"], session.id());
    assert!(server.messages("_sandboxagent/session/terminate").is_empty());
    let ended = super::support::session_ended(&mut events).await;
    assert!(ended.termination.requested && !ended.termination.is_crash());
    assert!(within(session.prompt("more").outcome()).await.unwrap_err().termination().is_some());
    let again = within(session.terminate()).await.unwrap();
    assert!(again.already_ended && !again.terminated);
    assert_eq!(server.messages("session/close").len(), 1);
    // The agent itself keeps running.
    let other = super::support::session(&client).await;
    assert_eq!(within(other.prompt("hello").text()).await.unwrap(), "mock: hello");
}

#[tokio::test]
async fn a_session_that_cannot_be_configured_is_removed() {
    let script = Script::default().on_request(|method, _| (method == "session/set_mode").then(not_found));
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = client(&server, ServerKind::PerAgent);
    let mut events = client.events();
    let error = within(client.new_session(NewSession::in_dir("/").mode("plan"))).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    assert_eq!(server.messages("session/close").len(), 1);
    within(client.disconnect()).await.unwrap();
    assert!(super::support::ends_so_far(&mut events).is_empty(), "the session was never published");
}
