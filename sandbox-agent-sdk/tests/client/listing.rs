//! Listing and finding sessions.

use std::collections::HashSet;

use mock_server::{Fault, MockServer, Reply, Script, Step};
use sandbox_agent_sdk::connection::{Feature, Support};
use sandbox_agent_sdk::session::ListSessions;
use sandbox_agent_sdk::termination::EndReason;
use sandbox_agent_sdk::{Error, NewSession, SandboxAgentClient, ServerKind};
use serde_json::json;

use super::support::{client, session, timeouts, within};

#[tokio::test]
async fn pages_are_fetched_on_demand() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    for _ in 0..450 {
        session(&client).await;
    }
    let mut list = client.list_sessions(ListSessions::all());
    assert!(server.messages("session/list").is_empty(), "nothing is fetched before the first read");
    within(list.next()).await.unwrap().unwrap();
    assert_eq!(server.messages("session/list").len(), 1);
    let rest = within(list.all()).await.unwrap();
    assert_eq!((rest.len(), server.messages("session/list").len()), (449, 3));
}

#[tokio::test]
async fn sessions_can_be_listed_by_their_directory() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    for directory in ["/a", "/b", "/a"] {
        within(client.new_session(NewSession::in_dir(directory).title(directory))).await.unwrap();
    }
    let listed = within(client.list_sessions(ListSessions::in_dir("/a")).all()).await.unwrap();
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|session| session.directory.as_deref() == Some("/a")));
}

#[tokio::test]
async fn a_released_server_lists_what_its_agent_lists() {
    let script = Script::default().on_request(|method, params| {
        let entry = |id: &str| json!({"sessionId": id, "cwd": "/w", "title": "T"});
        let page = match params.get("cursor").and_then(|cursor| cursor.as_str()) {
            None => json!({"sessions": [entry("a"), {"no": "id"}], "nextCursor": "2"}),
            Some(_) => json!({"sessions": [entry("b")]}),
        };
        (method == "session/list").then(|| vec![Step::Finish(page)])
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = client(&server, ServerKind::PerAgent);
    let mut list = client.list_sessions(ListSessions::all());
    assert_eq!(within(list.next()).await.unwrap().unwrap().session_id, "a");
    let odd = within(list.next()).await.unwrap().unwrap_err();
    assert!(
        matches!(odd, Error::Decode { raw, .. } if raw.contains("no")),
        "an invalid entry affects no other"
    );
    assert_eq!(within(list.next()).await.unwrap().unwrap().session_id, "b");
    assert!(within(list.next()).await.is_none());
}

#[tokio::test]
async fn an_agent_that_cannot_list_is_asked_once_and_known_sessions_are_listed() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::PerAgent);
    let session = session(&client).await;
    for _ in 0..2 {
        let error = within(client.list_sessions(ListSessions::all()).all()).await.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    }
    let info = within(client.get_session(session.id())).await.unwrap();
    assert_eq!((info.session_id.as_str(), info.termination_info), (session.id(), None));
    assert!(matches!(within(client.get_session("unknown")).await, Err(Error::Unsupported { .. })));
    assert_eq!(server.messages("session/list").len(), 1);
}

#[tokio::test]
async fn a_list_that_fails_in_the_middle_reports_the_error_once() {
    let script = Script::default().on_request(|method, params| {
        let refused = Step::Fail { code: -32601, message: "Method not found".into(), data: None };
        let first = json!({"sessions": [{"sessionId": "a"}, {"sessionId": "b"}], "nextCursor": "2"});
        let step = if params.get("cursor").is_some() { refused } else { Step::Finish(first) };
        (method == "session/list").then(|| vec![step])
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = client(&server, ServerKind::PerAgent);
    for round in 0..2 {
        let mut list = client.list_sessions(ListSessions::all());
        if round == 0 {
            assert_eq!(within(list.next()).await.unwrap().unwrap().session_id, "a");
            assert_eq!(within(list.next()).await.unwrap().unwrap().session_id, "b");
        }
        let error = within(list.next()).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(within(list.next()).await.is_none(), "the error is reported once");
    }
    assert_eq!(client.supports(Feature::ListSessions), Support::No);
}

#[tokio::test]
async fn a_list_that_fails_in_the_middle_continues_with_another_method_without_duplicates() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    for _ in 0..250 {
        session(&client).await;
    }
    let refusal =
        json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32601, "message": "Method not found"}});
    let reply = Reply {
        body: refusal.to_string(),
        content_type: Some("application/json".into()),
        ..Reply::default()
    };
    let refused = Fault::PostStatus { status: 200, execute: false, reply: Some(reply) };
    server.inject(refused.on_method("session/list").skip(1));
    let listed = within(client.list_sessions(ListSessions::all()).all()).await.unwrap();
    assert_eq!((listed.len(), server.messages("session/list").len()), (250, 2));
    let ids: HashSet<_> = listed.iter().map(|session| session.session_id.as_str()).collect();
    assert_eq!(ids.len(), 250, "no duplicates");
}

#[tokio::test]
async fn an_unknown_session_is_not_found() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let error = within(client.get_session("unknown")).await.unwrap_err();
    assert!(error.is_not_found(), "{error:?}");
}

#[tokio::test]
async fn every_method_that_returns_a_session_includes_how_it_ended() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let dead = session(&client).await;
    within(dead.prompt("crash").outcome()).await.unwrap_err();
    let alive = session(&client).await;
    let fresh = SandboxAgentClient::builder(server.url()).agent("mock").timeouts(timeouts()).build().unwrap();
    for client in [&client, &fresh] {
        let info = within(client.get_session(dead.id())).await.unwrap();
        let ended = info.termination_info.unwrap();
        assert_eq!((ended.reason, ended.exit_code), (EndReason::Error, Some(1)));
        assert_eq!(ended.stderr.unwrap().head.as_deref(), Some("mock agent: fatal\nmock agent: giving up"));
        for listed in within(client.list_sessions(ListSessions::all()).all()).await.unwrap() {
            assert_eq!(listed.has_ended(), listed.session_id == dead.id());
            assert_eq!(
                listed.termination_info.map(|info| info.exit_code),
                listed.ended.unwrap().then_some(Some(1))
            );
        }
    }
    assert!(within(alive.info()).await.unwrap().termination_info.is_none());
}
