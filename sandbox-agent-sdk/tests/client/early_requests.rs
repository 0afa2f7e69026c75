//! Agent requests while a session is being created, loaded or resumed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::requests::ReplyError;
use sandbox_agent_sdk::requests::{ClaimedRequest, UnclaimedRequest};
use sandbox_agent_sdk::{
    Error, Event, Events, NewSession, OpenSession, PermissionDecision, PermissionPolicy, PermissionRequest,
    SandboxAgentClient, ServerKind, Session,
};
use serde_json::{Value, json};

use super::open_requests::closes;
use super::permissions::permission;
use super::support::{KINDS, LIMIT, client, event, options, session, session_ended, timeouts, within};

fn params(session: Option<&str>) -> Value {
    let mut params = json!({
        "toolCall": {"toolCallId": "t", "kind": "execute"},
        "options": [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}],
    });
    if let Some(session) = session {
        params["sessionId"] = session.into();
    }
    params
}

fn ask(session: Option<&str>) -> Step {
    Step::Request { method: "session/request_permission".into(), params: params(session) }
}

/// Sends a permission request without waiting for the response.
fn ask_on_the_way(session: &str) -> Step {
    let (id, params) = (format!("of-{session}"), params(Some(session)));
    Step::Raw(json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}))
}

/// An agent that dies on request, and sends a permission request while it reopens a session.
fn asks_in_between() -> Script {
    Script::new(|_| vec![Step::crash(3, ["boom"])]).on_request(|method, _| {
        matches!(method, "session/load" | "session/resume").then(|| vec![ask(None), Step::Finish(json!({}))])
    })
}

/// An agent that never responds to the creation of a session with this title.
fn slow_to_make() -> Script {
    Script::steps(vec![Step::WaitForCancel]).on_request(|method, params| {
        let wants = params.pointer("/_meta/sandboxagent.dev/title").and_then(Value::as_str);
        (method == "session/new" && wants == Some("slow")).then(|| vec![Step::Hang])
    })
}

async fn unclaimed(events: &mut Events) -> UnclaimedRequest {
    event(events, |event| match event {
        Event::UnclaimedRequest(request) => Some(request),
        _ => None,
    })
    .await
}

/// Reopens a session in one of two ways.
async fn reopen(client: &SandboxAgentClient, id: &str, resume: bool) -> Result<Session, Error> {
    let open = OpenSession::in_dir("/");
    match resume {
        true => client.resume_session(id, open).await,
        false => client.load_session(id, open).await,
    }
}

/// Returns the responses in the order in which the server received them.
fn answered(server: &MockServer) -> Vec<String> {
    let posts = server.requests().into_iter().filter_map(|request| request.json());
    let outcomes = posts.filter_map(|message| {
        let outcome = message.pointer("/result/outcome")?.clone();
        Some(outcome["optionId"].as_str().or(outcome["outcome"].as_str())?.to_owned())
    });
    outcomes.collect()
}

#[tokio::test]
async fn a_request_during_a_load_that_nothing_decides_is_rejected_and_the_load_continues() {
    for kind in KINDS {
        for resume in [false, true] {
            for (policy, outcome) in
                [(PermissionPolicy::Ask, "no"), (PermissionPolicy::BypassPermissions, "yes")]
            {
                let server = MockServer::builder().agent("mock", asks_in_between()).start().await;
                let client = options(&server, kind).permissions(policy).build().unwrap();
                within(reopen(&client, "old", resume)).await.unwrap();
                assert_eq!(answered(&server), [outcome], "{kind} {resume}");
            }
        }
    }
}

#[tokio::test]
async fn a_subscriber_decides_a_request_during_a_load() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", asks_in_between()).start().await;
        let client = client(&server, kind);
        let mut events = client.session("old").events().deciding();
        let load = tokio::spawn(client.load_session("old", OpenSession::in_dir("/")));
        permission(&mut events).await.allow_once().unwrap();
        within(load).await.unwrap().unwrap();
        assert_eq!(answered(&server), ["yes"]);
    }
}

/// Returns a client whose agent has died, and the session that ended with it.
async fn ended(server: &MockServer, kind: ServerKind) -> (SandboxAgentClient, Session) {
    let client = client(server, kind);
    let session = session(&client).await;
    let mut events = client.events().deciding();
    within(session.prompt("die").outcome()).await.unwrap_err();
    session_ended(&mut events).await;
    if kind == ServerKind::PerAgent {
        within(client.restart_agent()).await.unwrap();
    }
    (client, session)
}

#[tokio::test]
async fn a_request_while_an_ended_session_is_reopened_can_be_decided() {
    for kind in KINDS {
        for resume in [false, true] {
            let server = MockServer::builder().agent("mock", asks_in_between()).start().await;
            let (client, session) = ended(&server, kind).await;
            let mut events = client.events().deciding();
            let taker = client.clone();
            let id = session.id().to_owned();
            let taking = tokio::spawn(async move { reopen(&taker, &id, resume).await });
            let request = permission(&mut events).await;
            // After this round trip, anything that would have closed it has happened.
            let _ = within(client.list_models(None)).await;
            request.allow_once().unwrap();
            within(taking).await.unwrap().unwrap();
            assert_eq!(answered(&server), ["yes"], "{kind} {resume}");
            assert_eq!(session.termination(), None);
        }
    }
}

#[tokio::test]
async fn an_abandoned_load_leaves_the_session_ended_and_its_requests_cancelled() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", asks_in_between()).start().await;
        let (client, session) = ended(&server, kind).await;
        let mut events = client.events().deciding();
        let load = tokio::spawn(client.load_session(session.id(), OpenSession::in_dir("/")));
        let request = permission(&mut events).await;
        load.abort();
        closes(&request).await;
        assert_eq!(request.allow_once(), Err(ReplyError::Stale));
        assert!(session.termination().is_some());
    }
}

#[tokio::test]
async fn a_second_death_of_the_agent_during_a_load_is_reported_again() {
    let script = Script::new(|_| vec![Step::crash(3, ["boom"])])
        .on_request(|method, _| (method == "session/load").then(|| vec![Step::crash(5, ["again"])]));
    let server = MockServer::builder().agent("mock", script).start().await;
    let (client, session) = ended(&server, ServerKind::Shared).await;
    let mut events = client.events().deciding();
    let error = within(client.load_session(session.id(), OpenSession::in_dir("/"))).await.unwrap_err();
    assert_eq!(error.termination().unwrap().exit_code, Some(5));
    assert_eq!(session_ended(&mut events).await.termination.exit_code, Some(5));
    assert!(super::support::ends_so_far(&mut events).is_empty(), "once");
    assert_eq!(session.termination().unwrap().exit_code, Some(5));
}

/// An agent that sends a permission request while it creates a session.
fn asks_before_it_answers() -> Script {
    Script::default().on_request(|method, _| {
        let made = json!({"sessionId": "made"});
        (method == "session/new").then(|| vec![ask(Some("made")), Step::Finish(made)])
    })
}

#[tokio::test]
async fn on_a_connection_of_our_own_a_request_before_the_session_id_is_known_is_served() {
    for subscribed in [false, true] {
        let server = MockServer::builder().agent("mock", asks_before_it_answers()).start().await;
        let client = client(&server, ServerKind::PerAgent);
        let mut events = subscribed.then(|| client.events().deciding());
        let made = tokio::spawn(client.new_session(NewSession::in_dir("/")));
        if let Some(events) = &mut events {
            permission(events).await.allow_once().unwrap();
        }
        assert_eq!(within(made).await.unwrap().unwrap().id(), "made");
        assert_eq!(answered(&server), [if subscribed { "yes" } else { "no" }]);
    }
}

#[tokio::test]
async fn on_a_shared_endpoint_a_request_before_the_session_id_is_known_must_be_claimed() {
    let server = MockServer::builder().agent("mock", asks_before_it_answers()).start().await;
    // Approves everything that is addressed to it.
    let hasty = options(&server, ServerKind::Shared).permissions(PermissionPolicy::BypassPermissions);
    let hasty = hasty.build().unwrap();
    let mut events = hasty.events().deciding();
    let made = tokio::spawn(hasty.new_session(NewSession::in_dir("/")));
    let request = unclaimed(&mut events).await;
    assert_eq!((request.session_id(), request.method()), (Some("made"), "session/request_permission"));
    within(hasty.list_models(None)).await.unwrap();
    assert!(answered(&server).is_empty() && !made.is_finished());
    let ClaimedRequest::Permission(permission) = request.claim().unwrap() else {
        panic!("not a permission request")
    };
    permission.reject_once().unwrap();
    assert_eq!(within(made).await.unwrap().unwrap().id(), "made");
    assert_eq!(answered(&server), ["no"]);
}

#[tokio::test]
async fn a_session_that_is_not_created_in_time_names_the_requests_that_were_not_claimed() {
    let server = MockServer::builder().agent("mock", asks_before_it_answers()).start().await;
    let times = timeouts().session(Duration::from_millis(500));
    let client = options(&server, ServerKind::Shared).timeouts(times).build().unwrap();
    let error = within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
    let Error::Timeout(timeout) = &error else { panic!("{error:?}") };
    let [request] = &timeout.unclaimed_requests[..] else { panic!("{timeout:?}") };
    assert_eq!(
        (&*request.method, request.session_id.as_deref()),
        ("session/request_permission", Some("made"))
    );
    let text = error.to_string();
    assert!(text.contains("session/request_permission") && text.contains("made"), "{text}");
    assert!(answered(&server).is_empty());
}

#[tokio::test]
async fn requests_of_other_clients_do_not_hide_that_of_a_session_that_is_not_created_in_time() {
    let server = MockServer::builder().agent("mock", asks_before_it_answers()).start().await;
    let times = timeouts().session(Duration::from_secs(1));
    let client = options(&server, ServerKind::Shared).timeouts(times).build().unwrap();
    within(client.list_models(None)).await.unwrap();
    let mut events = client.events();
    let ask = |session: &str| {
        let params = params(Some(session));
        server.emit_request(json!({"method": "session/request_permission", "params": params}));
    };
    ask("theirs");
    assert_eq!(unclaimed(&mut events).await.session_id(), Some("theirs"));
    let made = tokio::spawn(client.new_session(NewSession::in_dir("/")));
    assert_eq!(unclaimed(&mut events).await.session_id(), Some("made"));
    for _ in 0..20 {
        ask("theirs");
        assert_eq!(unclaimed(&mut events).await.session_id(), Some("theirs"));
    }
    let error = within(made).await.unwrap().unwrap_err();
    let Error::Timeout(timeout) = &error else { panic!("{error:?}") };
    let [request] = &timeout.unclaimed_requests[..] else { panic!("{timeout:?}") };
    assert_eq!(request.session_id.as_deref(), Some("made"));
}

#[tokio::test]
async fn no_client_responds_to_a_request_that_may_belong_to_another_client() {
    let made = AtomicUsize::new(0);
    let script = Script::default().on_request(move |method, _| {
        if method != "session/new" {
            return None;
        }
        let pause = |millis| Step::Wait(Duration::from_millis(millis));
        Some(match made.fetch_add(1, Ordering::SeqCst) {
            0 => vec![ask_on_the_way("a"), pause(150), Step::Finish(json!({"sessionId": "a"}))],
            _ => vec![pause(300), Step::Finish(json!({"sessionId": "b"}))],
        })
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let hasty = options(&server, ServerKind::Shared).permissions(PermissionPolicy::BypassPermissions);
    let hasty = hasty.build().unwrap();
    within(hasty.list_models(None)).await.unwrap();
    let careful = client(&server, ServerKind::Shared);
    within(careful.list_models(None)).await.unwrap();
    let (mut events, mut seen) = (careful.events(), hasty.events());
    let a = tokio::spawn(careful.new_session(NewSession::in_dir("/")));
    assert!(server.wait_for(|_| !server.messages("session/new").is_empty(), LIMIT).await);
    let b = tokio::spawn(hasty.new_session(NewSession::in_dir("/")));
    let (request, same) = (unclaimed(&mut events).await, unclaimed(&mut seen).await);
    assert_eq!((request.session_id(), same.session_id()), (Some("a"), Some("a")));
    assert_eq!((within(a).await.unwrap().unwrap().id(), within(b).await.unwrap().unwrap().id()), ("a", "b"));
    // After this round trip, any response of the other client has been sent.
    within(hasty.list_models(None)).await.unwrap();
    assert!(answered(&server).is_empty(), "another client's request");
    let ClaimedRequest::Permission(permission) = request.claim().unwrap() else {
        panic!("not a permission request")
    };
    permission.reject_once().unwrap();
    assert!(server.wait_for(|_| !answered(&server).is_empty(), LIMIT).await);
    assert_eq!(answered(&server), ["no"]);
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_respond_for_another_one() {
    let server = MockServer::builder().agent("mock", slow_to_make()).start().await;
    let (stays, leaves) = (client(&server, ServerKind::Shared), client(&server, ServerKind::Shared));
    let session = session(&stays).await;
    let mut events = stays.events().deciding();
    let _turn = session.prompt("wait");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    // It is creating a session, so the request could be its own.
    let slow = tokio::spawn(leaves.new_session(NewSession::in_dir("/").title("slow")));
    assert!(server.wait_for(|_| server.messages("session/new").len() == 2, LIMIT).await);
    let id = server
        .emit_request(json!({"method": "session/request_permission", "params": params(Some(session.id()))}));
    let request = permission(&mut events).await;
    within(leaves.disconnect()).await.unwrap();
    within(slow).await.unwrap().unwrap_err();
    assert!(answered(&server).is_empty(), "{id} is another client's");
    request.allow_once().unwrap();
    assert!(server.wait_for(|_| !answered(&server).is_empty(), LIMIT).await);
    assert_eq!(answered(&server), ["yes"]);
}

#[tokio::test]
async fn an_existing_session_is_not_mistaken_for_the_one_being_created() {
    let server = MockServer::builder().agent("mock", slow_to_make()).start().await;
    let other = client(&server, ServerKind::Shared);
    let theirs = session(&other).await;
    let mut asked = other.events().deciding();
    let _turn = theirs.prompt("wait");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    let hasty = options(&server, ServerKind::Shared).permissions(PermissionPolicy::BypassPermissions);
    let hasty = hasty.build().unwrap();
    let mut events = hasty.events().deciding();
    let _slow = tokio::spawn(hasty.new_session(NewSession::in_dir("/").title("slow")));
    assert!(server.wait_for(|_| server.messages("session/new").len() == 2, LIMIT).await);
    server.emit_request(json!({"method": "session/request_permission", "params": params(Some(theirs.id()))}));
    server.emit(json!({"jsonrpc": "2.0", "method": "_x/behind"}));
    event(&mut events, |event| matches!(event, Event::Other { .. }).then_some(())).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(10)).await;
    tokio::time::resume();
    let request = permission(&mut asked).await;
    within(hasty.list_models(None)).await.unwrap();
    assert!(answered(&server).is_empty(), "another client's request");
    request.reject_once().unwrap();
    assert!(server.wait_for(|_| !answered(&server).is_empty(), LIMIT).await);
    assert_eq!(answered(&server), ["no"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_request_directly_before_the_response_to_a_call_is_of_the_call() {
    let asks = |session: &str| {
        let ask = |id: &str| {
            let params = params(Some(session));
            Step::Raw(
                json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": params}),
            )
        };
        vec![ask("first"), ask("second"), Step::Finish(json!({"stopReason": "end_turn"}))]
    };
    type Called = futures::future::BoxFuture<'static, Result<(), Error>>;
    let calls: [fn(&Session) -> Called; 3] = [
        |session| {
            let mut turn = session.prompt("go");
            Box::pin(async move { turn.outcome().await.map(drop) })
        },
        |session| {
            let load = session.client().load_session(session.id(), OpenSession::in_dir("/"));
            Box::pin(async move { load.await.map(drop) })
        },
        |session| {
            let resume = session.client().resume_session(session.id(), OpenSession::in_dir("/"));
            Box::pin(async move { resume.await.map(drop) })
        },
    ];
    for call in calls {
        let script =
            Script::new(move |turn| asks(&turn.session_id)).on_request(move |method, params| match method {
                "session/load" | "session/resume" => Some(asks(params["sessionId"].as_str().unwrap())),
                "_x/any" => Some(vec![Step::Finish(json!({}))]),
                _ => None,
            });
        let server = MockServer::builder().agent("mock", script).start().await;
        let (entered, mut waiting) = tokio::sync::mpsc::channel(2);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = std::sync::Mutex::new(released);
        // A policy that blocks the thread that reads the connection, until the response has arrived.
        let policy = move |_: &PermissionRequest| {
            entered.try_send(()).unwrap();
            let _ = released.lock().unwrap().recv();
            PermissionDecision::Refuse
        };
        let client = options(&server, ServerKind::Shared).permission_policy(policy).build().unwrap();
        let session = session(&client).await;
        let mut events = client.events();
        let called = tokio::spawn(call(&session));
        within(waiting.recv()).await.unwrap();
        // Its response follows that of the call.
        within(client.raw_request("_x/any", json!({}))).await.unwrap();
        drop(release);
        within(called).await.unwrap().unwrap();
        assert!(server.wait_for(|_| answered(&server).len() == 2, LIMIT).await, "{:?}", answered(&server));
        let seen: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
        let is_unclaimed = |event: &Event| matches!(event, Event::UnclaimedRequest(_));
        assert!(!seen.iter().any(is_unclaimed), "{seen:?}");
    }
}
