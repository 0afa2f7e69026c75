//! Clients of a shared endpoint never act for each other.

use std::time::Duration;

use mock_server::{MockServer, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::error::RpcError;
use sandbox_agent_sdk::limits::Limits;
use sandbox_agent_sdk::requests::ReplyError;
use sandbox_agent_sdk::requests::{AgentRequest, ClaimedRequest, UnclaimedRequest};
use sandbox_agent_sdk::session::ListSessions;
use sandbox_agent_sdk::tools::{ConfinedFiles, Roots};
use sandbox_agent_sdk::update::ToolKind;
use sandbox_agent_sdk::{
    ClientOptions, ConnectionState, Event, Events, NewSession, PermissionPolicy, SandboxAgentClient,
    ServerKind,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::permissions::permission;
use super::support::{LIMIT, client, event, options, session, within};

/// Options of a client that serves and approves everything addressed to it.
fn generous(server: &MockServer, directory: &TempDir) -> ClientOptions {
    options(server, ServerKind::Shared)
        .permissions(PermissionPolicy::BypassPermissions)
        .files(ConfinedFiles::open(Roots::at(directory.path())).unwrap())
}

fn permission_params(session: Option<&str>) -> Value {
    let mut params = json!({
        "toolCall": {"toolCallId": "t", "kind": "execute"},
        "options": [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}],
    });
    if let Some(session) = session {
        params["sessionId"] = session.into();
    }
    params
}

fn ask(server: &MockServer, session: Option<&str>) -> String {
    server.emit_request(json!({"method": "session/request_permission", "params": permission_params(session)}))
}

/// Returns the posted responses to one agent request.
fn responses(server: &MockServer, id: &str) -> Vec<Value> {
    let posts = server.requests().into_iter().filter_map(|request| request.json());
    posts.filter(|message| message["method"].is_null() && message["id"] == id).collect()
}

/// Returns the posted responses to all agent requests.
fn outcomes(server: &MockServer) -> Vec<Value> {
    let posts = server.requests().into_iter().filter_map(|request| request.json());
    posts.filter(|message| message["method"].is_null()).collect()
}

/// Waits until a client has received all events so far and has sent all its responses.
async fn settled(server: &MockServer, client: &SandboxAgentClient) {
    let mut events = client.events();
    server.emit(json!({"jsonrpc": "2.0", "method": "_x/behind"}));
    event(&mut events, |event| {
        matches!(event, Event::Other { method, .. } if method == "_x/behind").then_some(())
    })
    .await;
    for _ in 0..3 {
        within(client.list_models(None)).await.unwrap();
    }
}

async fn connected(client: &SandboxAgentClient) {
    within(client.list_models(None)).await.unwrap();
}

#[tokio::test]
async fn a_request_without_a_readable_session_id_is_not_served() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("secret"), "secret").unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let server = MockServer::start().await;
    let client = generous(&server, &directory).build().unwrap();
    let ours = session(&client).await;
    for id in [json!(null), json!(5), json!(["x"]), json!({"id": ours.id()})] {
        let mut read = json!({"path": path("secret"), "sessionId": id});
        let mut write = json!({"path": path("written"), "content": "x", "sessionId": id});
        let mut permit = permission_params(None);
        permit["sessionId"] = id.clone();
        if id.is_null() {
            for params in [&mut read, &mut write, &mut permit] {
                params.as_object_mut().unwrap().remove("sessionId");
            }
        }
        let asked = [
            server.emit_request(json!({"method": "fs/read_text_file", "params": read})),
            server.emit_request(json!({"method": "fs/write_text_file", "params": write})),
            server.emit_request(json!({"method": "session/request_permission", "params": permit})),
        ];
        settled(&server, &client).await;
        for request in asked {
            assert_eq!(responses(&server, &request), [] as [Value; 0], "{id}");
        }
        assert!(!directory.path().join("written").exists(), "{id}");
    }
}

#[tokio::test]
async fn a_request_that_names_two_sessions_is_not_served() {
    let directory = tempfile::tempdir().unwrap();
    let script = Script::steps(vec![Step::WaitForCancel]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = generous(&server, &directory).build().unwrap();
    let ours = session(&client).await;
    let _turn = ours.prompt("wait");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    let params = permission_params(None).to_string();
    let both =
        format!(r#"{{"sessionId":"theirs",{},"sessionId":"{}"}}"#, &params[1..params.len() - 1], ours.id());
    server.emit_raw(format!(
        r#"{{"jsonrpc":"2.0","id":"both","method":"session/request_permission","params":{both}}}"#
    ));
    settled(&server, &client).await;
    assert_eq!(responses(&server, "both"), [] as [Value; 0]);
}

#[tokio::test]
async fn a_request_that_is_nested_too_deep_gets_no_response() {
    let directory = tempfile::tempdir().unwrap();
    let server = MockServer::start().await;
    let neighbour = client(&server, ServerKind::Shared);
    let theirs = session(&neighbour).await;
    let client = generous(&server, &directory).build().unwrap();
    session(&client).await;
    let deep = format!("{}{}", "[".repeat(130), "]".repeat(130));
    for method in ["session/request_permission", "fs/read_text_file", "elicitation/create", "_x/unknown"] {
        server.emit_raw(format!(
            r#"{{"jsonrpc":"2.0","id":"{method}","method":"{method}","params":{{"sessionId":"{}","deep":{deep}}}}}"#,
            theirs.id()
        ));
        settled(&server, &client).await;
        assert_eq!(responses(&server, method), [] as [Value; 0], "{method}");
    }
}

#[tokio::test]
async fn a_deep_request_on_a_connection_of_our_own_is_an_error_and_approves_nothing() {
    let server = MockServer::start().await;
    let client = options(&server, ServerKind::PerAgent)
        .permissions(PermissionPolicy::BypassPermissions)
        .build()
        .unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    let mut params = permission_params(Some(session.id()));
    params["deep"] = (0..130).fold(json!(null), |inner, _| json!([inner]));
    let paths = server.requests().into_iter().map(|request| request.path);
    let endpoint = paths.filter_map(|path| Some(path.strip_prefix("/v1/acp/")?.to_owned())).next().unwrap();
    let request =
        json!({"jsonrpc": "2.0", "id": "deep", "method": "session/request_permission", "params": params});
    assert!(server.emit_to(&endpoint, request));
    let method = event(&mut events, |event| match event {
        Event::RequestRejected { method, .. } => Some(method),
        _ => None,
    })
    .await;
    assert_eq!(method, "session/request_permission");
    assert!(server.wait_for(|_| !responses(&server, "deep").is_empty(), LIMIT).await);
    assert_eq!(responses(&server, "deep")[0]["error"]["code"], -32602);
}

#[tokio::test]
async fn a_dashboard_that_names_and_lists_sessions_responds_to_none_of_their_requests() {
    let directory = tempfile::tempdir().unwrap();
    let script = Script::steps(vec![Step::AskPermission(Permission::new(ToolCall::new("t", "Run")))]);
    for policy in [PermissionPolicy::Ask, PermissionPolicy::Deny, PermissionPolicy::BypassPermissions] {
        let server = MockServer::builder().agent("mock", script.clone()).start().await;
        let neighbour = client(&server, ServerKind::Shared);
        let theirs = session(&neighbour).await;
        let dashboard = generous(&server, &directory).permissions(policy).build().unwrap();
        let named = dashboard.session(theirs.id());
        let listed = within(dashboard.list_sessions(ListSessions::all()).all()).await.unwrap();
        assert!(listed.iter().any(|info| info.session_id == theirs.id()));
        within(named.info()).await.unwrap();
        let mut shown = named.events();
        let mut events = neighbour.events().deciding();
        let turn = theirs.prompt("go");
        let request = permission(&mut events).await;
        settled(&server, &dashboard).await;
        assert_eq!(outcomes(&server), [] as [Value; 0], "the dashboard answered");
        assert!(request.is_open());
        // It disconnects, and must not cancel requests of others.
        within(dashboard.disconnect()).await.unwrap();
        settled(&server, &neighbour).await;
        assert_eq!(outcomes(&server), [] as [Value; 0], "the dashboard cancelled");
        drop((turn, request));
        let seen: Vec<_> = std::iter::from_fn(|| shown.try_next()).collect();
        assert!(!seen.iter().any(|event| matches!(event, Event::Permission(_))), "{seen:?}");
    }
}

#[tokio::test]
async fn a_dropped_dashboard_responds_to_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let server = MockServer::start().await;
    let neighbour = client(&server, ServerKind::Shared);
    let theirs = session(&neighbour).await;
    let dashboard = generous(&server, &directory).build().unwrap();
    connected(&dashboard).await;
    let events = dashboard.session(theirs.id()).events();
    let id = ask(&server, Some(theirs.id()));
    settled(&server, &dashboard).await;
    drop(events);
    drop(dashboard);
    settled(&server, &neighbour).await;
    assert_eq!(responses(&server, &id), [] as [Value; 0]);
}

#[tokio::test]
async fn while_a_session_is_being_created_requests_of_other_sessions_are_not_served() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("secret"), "secret").unwrap();
    let script =
        Script::default().on_request(|method, _| (method == "session/new").then(|| vec![Step::Hang]));
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = generous(&server, &directory).build().unwrap();
    connected(&client).await;
    let making = tokio::spawn(client.new_session(NewSession::in_dir("/")));
    assert!(server.wait_for(|_| !server.messages("session/new").is_empty(), LIMIT).await);
    let path = directory.path().join("secret").display().to_string();
    let read = json!({"path": path, "sessionId": "foreign"});
    let asked = [
        ask(&server, Some("foreign")),
        server.emit_request(json!({"method": "fs/read_text_file", "params": read})),
    ];
    settled(&server, &client).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(10)).await;
    tokio::time::resume();
    settled(&server, &client).await;
    for request in asked {
        assert_eq!(responses(&server, &request), [] as [Value; 0]);
    }
    making.abort();
}

#[tokio::test]
async fn an_agents_exit_notification_ends_only_its_own_sessions() {
    let server = MockServer::builder().agent("mock", Script::steps(vec![Step::WaitForCancel])).start().await;
    let client = client(&server, ServerKind::Shared);
    let ours = session(&client).await;
    let mut turn = ours.prompt("wait");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    let mut events = client.events();
    // Any agent on the endpoint can print this.
    server.emit(
        json!({"jsonrpc": "2.0", "method": "_adapter/agent_exited", "params": {"success": false, "code": 3}}),
    );
    settled(&server, &client).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(5)).await;
    tokio::time::resume();
    settled(&server, &client).await;
    assert_eq!((client.state(), ours.termination()), (ConnectionState::Connected, None));
    let seen: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
    let is_notice =
        |event: &Event| matches!(event, Event::Other { method, .. } if method == "_adapter/agent_exited");
    assert!(seen.iter().any(is_notice), "the notice is visible: {seen:?}");
    within(ours.cancel()).await.unwrap();
    assert_eq!(within(turn.outcome()).await.unwrap().stop_reason.as_str(), "cancelled");
}

async fn unclaimed(events: &mut Events) -> UnclaimedRequest {
    event(events, |event| match event {
        Event::UnclaimedRequest(request) => Some(request),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn an_unclaimed_request_gets_a_response_only_after_a_claim() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    connected(&client).await;
    let theirs = client.session("theirs");
    let (mut events, mut of_session) = (client.events(), theirs.events());
    let call = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Run", "kind": "execute"});
    let params = json!({"sessionId": "theirs", "update": call});
    server.emit(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    let id = ask(&server, Some("theirs"));
    let (request, same) = (unclaimed(&mut events).await, unclaimed(&mut of_session).await);
    assert!(request.is_open() && same.is_open());
    assert_eq!(request.raw().unwrap()["sessionId"], "theirs");
    let ClaimedRequest::Permission(permission) = request.claim().unwrap() else { panic!("not a permission") };
    assert_eq!(same.claim().unwrap_err(), ReplyError::Stale);
    assert_eq!(permission.session_id(), Some("theirs"));
    let call = permission.tool_call().expect("a tool call");
    assert_eq!(
        (call.title.as_deref(), &call.kind),
        (Some("Run"), &Some(ToolKind::Execute)),
        "as reported before"
    );
    permission.allow_once().unwrap();
    assert!(server.wait_for(|_| !responses(&server, &id).is_empty(), LIMIT).await);
    assert_eq!(responses(&server, &id)[0]["result"]["outcome"]["optionId"], "yes");

    let schema = json!({"properties": {"a": {"type": "boolean"}}});
    let id =
        server.emit_request(json!({"method": "elicitation/create", "params": {"requestedSchema": schema}}));
    let ClaimedRequest::Question(question) = unclaimed(&mut events).await.claim().unwrap() else {
        panic!("not a question")
    };
    question.decline().unwrap();
    assert!(server.wait_for(|_| !responses(&server, &id).is_empty(), LIMIT).await);
    assert_eq!(responses(&server, &id)[0]["result"]["action"], "decline");

    for (result, error) in [(Some(json!({"x": 1})), None), (None, Some(-32000)), (None, None)] {
        let id = server.emit_request(json!({"method": "_x/any", "params": {"sessionId": "theirs"}}));
        let ClaimedRequest::Other(other) = unclaimed(&mut events).await.claim().unwrap() else {
            panic!("not another request")
        };
        assert_eq!((other.method(), other.session_id()), ("_x/any", Some("theirs")));
        match (&result, error) {
            (Some(result), _) => other.respond(result).unwrap(),
            (None, Some(code)) => other.fail(RpcError::new(code, "no")).unwrap(),
            (None, None) => drop(other),
        }
        assert!(server.wait_for(|_| !responses(&server, &id).is_empty(), LIMIT).await);
        let response = responses(&server, &id).remove(0);
        assert_eq!(response.get("result"), result.as_ref());
        assert_eq!(response.get("error").is_some(), result.is_none());
    }
}

#[tokio::test]
async fn disconnecting_cancels_claimed_requests_and_leaves_the_rest() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    connected(&client).await;
    let mut events = client.events();
    let (claimed, left, of_the_same) =
        (ask(&server, Some("a")), ask(&server, Some("b")), ask(&server, Some("a")));
    let requests = [unclaimed(&mut events).await, unclaimed(&mut events).await, unclaimed(&mut events).await];
    let permission = requests[0].claim().unwrap();
    within(client.disconnect()).await.unwrap();
    assert_eq!(responses(&server, &claimed)[0]["result"]["outcome"]["outcome"], "cancelled");
    assert_eq!(responses(&server, &left), [] as [Value; 0]);
    assert_eq!(responses(&server, &of_the_same), [] as [Value; 0], "another request of that session");
    assert_eq!(requests[1].claim().unwrap_err(), ReplyError::Stale);
    drop(permission);
}

#[tokio::test]
async fn a_request_after_the_turn_is_unclaimed() {
    let server = MockServer::start().await;
    let client = options(&server, ServerKind::Shared)
        .permissions(PermissionPolicy::BypassPermissions)
        .build()
        .unwrap();
    let ours = session(&client).await;
    within(ours.prompt("hello").text()).await.unwrap();
    let mut events = client.events();
    let id = ask(&server, Some(ours.id()));
    assert_eq!(unclaimed(&mut events).await.session_id(), Some(ours.id()));
    settled(&server, &client).await;
    assert_eq!(responses(&server, &id), [] as [Value; 0]);
}

#[tokio::test]
async fn cancelling_another_clients_turn_does_not_respond_for_it() {
    let server = MockServer::start().await;
    let theirs = session(&client(&server, ServerKind::Shared)).await;
    let client = client(&server, ServerKind::Shared);
    connected(&client).await;
    let mut events = client.events();
    let id = ask(&server, Some(theirs.id()));
    let request = unclaimed(&mut events).await;
    within(client.cancel(theirs.id())).await.unwrap();
    settled(&server, &client).await;
    assert_eq!(responses(&server, &id), [] as [Value; 0]);
    assert!(!request.is_open());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cancelling_another_clients_turn_does_not_respond_to_a_request_that_is_not_routed_yet() {
    let ask_us = Step::Request { method: "_x/block".into(), params: json!({}) };
    let server = MockServer::builder().agent("mock", Script::steps(vec![ask_us])).start().await;
    let theirs = session(&client(&server, ServerKind::Shared)).await;
    let client = client(&server, ServerKind::Shared);
    let ours = session(&client).await;
    let (entered, mut waiting) = tokio::sync::mpsc::channel(1);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    // A filter that blocks the task that routes requests.
    let filter = move |_: &AgentRequest| {
        entered.try_send(()).unwrap();
        let _ = released.lock().unwrap().recv();
        true
    };
    client.requests().register(filter, |_: AgentRequest| async { Ok(json!({})) }).detach();
    let turn = ours.prompt("go");
    within(waiting.recv()).await.unwrap();
    let id = ask(&server, Some(theirs.id()));
    // The response to this call follows the request on the stream.
    connected(&client).await;
    within(client.cancel(theirs.id())).await.unwrap();
    drop(release);
    within(turn.text()).await.unwrap();
    settled(&server, &client).await;
    assert_eq!(responses(&server, &id), [] as [Value; 0]);
}

#[tokio::test]
async fn a_client_at_its_limit_refuses_its_own_requests_and_no_others() {
    const LIMIT: usize = 2;
    let ask = Step::AskPermission(Permission::new(ToolCall::new("t", "Run")));
    let server = MockServer::builder().agent("mock", Script::steps(vec![ask])).start().await;
    let limits = Limits::default().open_requests(LIMIT);
    let full = options(&server, ServerKind::Shared).limits(limits).build().unwrap();
    let mut events = full.events().deciding();
    let (mut turns, mut open) = (Vec::new(), Vec::new());
    for _ in 0..LIMIT {
        turns.push(session(&full).await.prompt("go"));
        open.push(permission(&mut events).await);
    }
    let neighbour = client(&server, ServerKind::Shared);
    let theirs = session(&neighbour).await;
    let mut decisions = neighbour.events().deciding();
    for _ in 0..3 {
        let turn = theirs.prompt("go");
        let request = permission(&mut decisions).await;
        settled(&server, &full).await;
        request.allow_once().unwrap();
        assert_eq!(within(turn.text()).await.unwrap(), "permission: allow_once");
    }
    assert_eq!(outcomes(&server).len(), 3, "the neighbour's responses alone");
    let above = session(&full).await;
    assert_eq!(within(above.prompt("go").text()).await.unwrap(), "permission: error");
    for (request, turn) in open.into_iter().zip(turns) {
        request.allow_once().unwrap();
        assert_eq!(within(turn.text()).await.unwrap(), "permission: allow_once");
    }
}

#[tokio::test]
async fn requests_of_others_do_not_use_up_the_limit_of_a_client() {
    let ask_twice = Script::steps(vec![Step::AskPermission(Permission::new(ToolCall::new("t", "Run")))]);
    let server = MockServer::builder().agent("mock", ask_twice).start().await;
    let limits = Limits::default().open_requests(1);
    let client = options(&server, ServerKind::Shared)
        .permissions(PermissionPolicy::BypassPermissions)
        .limits(limits)
        .build()
        .unwrap();
    let ours = session(&client).await;
    let mut events = client.events();
    let mut held = Vec::new();
    for _ in 0..3 {
        ask(&server, Some("theirs"));
        held.push(unclaimed(&mut events).await);
    }
    assert_eq!(within(ours.prompt("go").text()).await.unwrap(), "permission: allow_once");
    assert!(held.iter().all(UnclaimedRequest::is_open));
}

#[tokio::test]
async fn unclaimed_requests_are_limited_and_the_oldest_are_dropped() {
    const BOUND: usize = 4;
    let server = MockServer::start().await;
    let limits = Limits::default().unclaimed_requests(BOUND);
    let client = options(&server, ServerKind::Shared).limits(limits).build().unwrap();
    connected(&client).await;
    let mut events = client.events();
    let mut requests = Vec::new();
    for count in 1..=BOUND + 1 {
        ask(&server, Some("theirs"));
        requests.push(unclaimed(&mut events).await);
        let open = requests.iter().filter(|request| request.is_open()).count();
        assert_eq!(open, count.min(BOUND), "below, at and above the limit");
    }
    assert_eq!(requests[0].claim().unwrap_err(), ReplyError::Stale);
    settled(&server, &client).await;
    assert_eq!(outcomes(&server), [] as [Value; 0]);
    requests[1].claim().unwrap();
}
