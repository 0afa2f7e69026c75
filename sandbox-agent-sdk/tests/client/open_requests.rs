//! Open requests when a turn, session, agent or connection ends, and when events are repeated.

use std::time::Duration;

use mock_server::{Cut, Fault, MockServer, Permission, Script, State, Step, ToolCall};
use sandbox_agent_sdk::connection::ReconnectPolicy;
use sandbox_agent_sdk::requests::{QuestionRequest, ReplyError};
use sandbox_agent_sdk::{Event, Events, NewSession, PermissionRequest, SandboxAgentClient, ServerKind};
use serde_json::json;

use super::permissions::permission;
use super::support::{KINDS, LIMIT, client, event, options, session, within};

fn asks() -> Script {
    Script::steps(vec![Step::AskPermission(Permission::new(ToolCall::new("t", "Run")))])
}

fn quick(server: &MockServer, kind: ServerKind) -> SandboxAgentClient {
    let policy = ReconnectPolicy::default().base(Duration::from_millis(5));
    options(server, kind).reconnect(policy).build().unwrap()
}

async fn question(events: &mut Events) -> QuestionRequest {
    event(events, |event| match event {
        Event::Question(request) => Some(request),
        _ => None,
    })
    .await
}

pub(super) fn asked(events: &mut Events) -> Vec<PermissionRequest> {
    let received = std::iter::from_fn(|| events.try_next());
    received
        .filter_map(|event| match event {
            Event::Permission(request) => Some(request),
            _ => None,
        })
        .collect()
}

pub(super) async fn closes(request: &PermissionRequest) {
    within(async {
        while request.is_open() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn disconnecting_settles_every_open_request_as_cancelled() {
    let script = Script::new(|turn| match turn.text.as_str() {
        "permission" => vec![Step::FireRequests(3)],
        "form" => vec![Step::AskQuestion { message: "?".into(), schema: json!({}) }],
        _ => {
            vec![Step::Request { method: "_sandboxagent/session/request_question".into(), params: json!({}) }]
        }
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = client(&server, ServerKind::Shared);
    let mut events = client.events().deciding();
    let (one, two, three) = (session(&client).await, session(&client).await, session(&client).await);
    let _turns = (one.prompt("permission"), two.prompt("form"), three.prompt("question"));
    let mut permissions = Vec::new();
    let mut questions = Vec::new();
    while permissions.len() < 3 || questions.len() < 2 {
        match within(events.next()).await.unwrap() {
            Event::Permission(request) => permissions.push(request),
            Event::Question(request) => questions.push(request),
            _ => {}
        }
    }
    within(client.disconnect()).await.unwrap();
    assert!(
        server.wait_for(|_| server.answers().len() == 5, LIMIT).await,
        "the agent receives the responses"
    );
    for answer in server.answers() {
        let (result, error) = (&answer.answer["result"], &answer.answer["error"]);
        match answer.method.as_str() {
            "session/request_permission" => assert_eq!(result["outcome"], json!({"outcome": "cancelled"})),
            "elicitation/create" => assert_eq!(result, &json!({"action": "cancel"})),
            _ => assert_eq!(error["code"], -32800),
        }
    }
    assert!(permissions.iter().all(|request| request.allow_once() == Err(ReplyError::Stale)));
    assert!(
        questions.iter().all(|request| request.decline() == Err(ReplyError::Stale) && !request.is_open())
    );
}

#[tokio::test]
async fn cancelling_settles_the_requests_of_its_session_and_no_others() {
    let script = Script::new(|turn| match turn.text.as_str() {
        "wait" => vec![Step::FireRequests(2), Step::WaitForCancel],
        _ => vec![Step::AskPermission(Permission::new(ToolCall::new("t", "Run")))],
    });
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", script.clone()).start().await;
        let client = client(&server, kind);
        let (one, two) = (session(&client).await, session(&client).await);
        let (mut of_one, mut of_two) = (one.events().deciding(), two.events().deciding());
        let (_turn, other) = (one.prompt("wait"), two.prompt("ask"));
        let requests = [permission(&mut of_one).await, permission(&mut of_one).await];
        let kept = permission(&mut of_two).await;
        within(one.cancel()).await.unwrap();
        assert!(requests.iter().all(|request| request.allow_once() == Err(ReplyError::Stale)));
        assert!(kept.is_open());
        kept.allow_once().unwrap();
        assert_eq!(within(other.text()).await.unwrap(), "permission: allow_once");
        let cancelled = server
            .answers()
            .into_iter()
            .filter(|answer| answer.result()["outcome"]["outcome"] == "cancelled");
        assert_eq!(cancelled.count(), 2);
    }
}

#[tokio::test]
async fn the_death_of_the_agent_settles_every_open_request() {
    for kind in KINDS {
        let server =
            MockServer::builder().agent("mock", Script::steps(vec![Step::FireRequests(2)])).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut events = session.events().deciding();
        let mut turn = session.prompt("go");
        let requests = [permission(&mut events).await, permission(&mut events).await];
        let killed = match kind {
            ServerKind::Shared => server.kill_agent("mock"),
            _ => {
                let posts = server.requests();
                let path = posts.iter().find_map(|request| request.path.strip_prefix("/v1/acp/")).unwrap();
                server.kill_agent_of(path)
            }
        };
        assert!(killed);
        assert!(within(turn.outcome()).await.unwrap_err().termination().is_some());
        for request in &requests {
            closes(request).await;
            assert_eq!(request.allow_once(), Err(ReplyError::Stale));
        }
        assert!(server.answers().is_empty(), "there is no agent to respond to");
    }
}

#[tokio::test]
async fn a_request_without_a_reader_is_cancelled() {
    let server = MockServer::builder().agent("mock", asks()).start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let (mut seen, unread) = (client.events().deciding(), session.events().deciding());
    let mut turn = session.prompt("go");
    drop(permission(&mut seen).await);
    assert!(server.answers().is_empty(), "a reader may still decide it");
    drop(unread);
    within(turn.outcome()).await.unwrap();
    assert_eq!(server.answers()[0].result()["outcome"]["outcome"], "cancelled");
}

#[tokio::test]
async fn a_question_is_cancelled_with_its_turn() {
    let steps = vec![Step::AskQuestion { message: "?".into(), schema: json!({}) }, Step::WaitForCancel];
    let server = MockServer::builder().agent("mock", Script::steps(steps)).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let mut events = session.events().deciding();
    let _turn = session.prompt("go");
    let request = question(&mut events).await;
    within(session.cancel()).await.unwrap();
    assert_eq!(request.answer(&json!({})), Err(ReplyError::Stale));
    assert_eq!(server.answers()[0].result(), &json!({"action": "cancel"}));
}

#[tokio::test]
async fn a_request_is_delivered_once_wherever_the_stream_is_cut() {
    let mut struck = 0;
    for kind in KINDS {
        for (number, byte) in (0..3000).step_by(150).enumerate() {
            let cut = [Cut::Dropped, Cut::Clean, Cut::Reset][number % 3];
            let server = MockServer::builder()
                .agent("mock", asks())
                .fault(Fault::StreamCutAt { byte, cut }.times(1))
                .start()
                .await;
            let client = quick(&server, kind);
            let session = session(&client).await;
            let mut events = client.events().deciding();
            let turn = session.prompt("go");
            let request = permission(&mut events).await;
            request.allow_once().unwrap();
            assert_eq!(within(turn.text()).await.unwrap(), "permission: allow_once", "{kind} {byte}");
            assert_eq!(asked(&mut events).len(), 0, "{kind} {byte}: it was delivered again");
            assert_eq!(server.answers().len(), 1);
            struck += server.fired("StreamCutAt");
        }
    }
    assert!(struck > 20, "{struck}");
}

#[tokio::test]
async fn a_repeated_request_is_delivered_and_answered_once() {
    for kind in KINDS {
        let mut builder = MockServer::builder().agent("mock", asks());
        for id in 1..40 {
            builder = builder.fault(Fault::Repeat { id });
        }
        let server = builder.start().await;
        let client = quick(&server, kind);
        let session = session(&client).await;
        let mut events = client.events().deciding();
        for _ in 0..2 {
            let turn = session.prompt("go");
            permission(&mut events).await.allow_once().unwrap();
            assert_eq!(within(turn.text()).await.unwrap(), "permission: allow_once");
        }
        assert!(server.fired("Repeat") > 4);
        assert_eq!(asked(&mut events).len(), 0);
        assert_eq!(server.answers().len(), 2);
    }
}

#[tokio::test]
async fn after_a_reconnect_an_open_request_appears_at_most_once_more_and_a_decided_one_never() {
    let script = Script::new(|turn| match turn.text.as_str() {
        "answered" => vec![Step::AskPermission(Permission::new(ToolCall::new("t", "Run")))],
        _ => vec![Step::AskPermission(Permission::new(ToolCall::new("u", "Run")))],
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = quick(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = client.events().deciding();
    let turn = session.prompt("answered");
    permission(&mut events).await.allow_once().unwrap();
    within(turn.text()).await.unwrap();
    let turn = session.prompt("open");
    let request = permission(&mut events).await;
    server.restart(State::Preserved).await;
    event(&mut events, |event| matches!(event, Event::Reconnected { .. }).then_some(())).await;
    // After this round trip, the replay is complete.
    let _ = within(client.list_models(None)).await;
    let again = asked(&mut events);
    assert!(again.len() <= 1, "{again:?}");
    assert!(again.iter().all(|request| request.tool_call().unwrap().id == "u"), "{again:?}");
    again.last().unwrap_or(&request).allow_always().unwrap();
    assert_eq!(within(turn.text()).await.unwrap(), "permission: allow_always");
    assert_eq!(server.answers().len(), 2);
    assert_eq!(asked(&mut events).len(), 0);
}

#[tokio::test]
async fn a_restarted_server_gets_no_response_to_a_request_of_its_predecessor() {
    let server = MockServer::builder().agent("mock", asks()).start().await;
    let client = quick(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = client.events().deciding();
    let mut turn = session.prompt("go");
    let request = permission(&mut events).await;
    server.restart(State::Lost).await;
    // Events of the new server show that it is a new incarnation.
    within(client.new_session(NewSession::in_dir("/"))).await.unwrap();
    event(&mut events, |event| matches!(event, Event::ServerRestarted).then_some(())).await;
    within(turn.outcome()).await.unwrap_err();
    assert!(matches!(request.allow_once(), Err(ReplyError::Stale)));
    assert_eq!(server.answers().len(), 0);
}

#[tokio::test]
async fn requests_of_the_backlog_are_not_delivered() {
    let server = MockServer::builder()
        .agent("mock", asks())
        .fault(Fault::StaleReplayBuffer { count: 20 })
        .start()
        .await;
    let first = client(&server, ServerKind::Shared);
    let session = session(&first).await;
    let mut events = first.events().deciding();
    let turn = session.prompt("go");
    permission(&mut events).await.allow_once().unwrap();
    within(turn.text()).await.unwrap();
    let second = client(&server, ServerKind::Shared);
    let mut heard = second.events().deciding();
    let taken_up = second.session(session.id());
    within(taken_up.info()).await.unwrap();
    assert_eq!(asked(&mut heard).len(), 0, "neither the backlog nor the decided request");
    let turn = taken_up.prompt("go");
    permission(&mut heard).await.reject_once().unwrap();
    assert_eq!(within(turn.text()).await.unwrap(), "permission: reject_once");
}
