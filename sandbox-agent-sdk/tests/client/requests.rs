//! Permissions and questions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mock_server::{MockServer, Permission, PermissionOption, Script, Step, ToolCall};
use sandbox_agent_sdk::requests::{PermissionKind, PermissionReply, QuestionRequest, ReplyError};
use sandbox_agent_sdk::{Event, Events, PermissionDecision, PermissionRequest, ServerKind};
use serde_json::json;

use super::support::{KINDS, client, event, options, session, within};

async fn permission(events: &mut Events) -> PermissionRequest {
    event(events, |event| match event {
        Event::Permission(request) => Some(request),
        _ => None,
    })
    .await
}

async fn question(events: &mut Events) -> QuestionRequest {
    event(events, |event| match event {
        Event::Question(request) => Some(request),
        _ => None,
    })
    .await
}

fn asks() -> Script {
    Script::steps(vec![Step::AskPermission(Permission::new(ToolCall::new("t", "Run")))])
}

#[tokio::test]
async fn a_permission_that_nothing_decides_is_rejected() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", asks()).start().await;
        let session = session(&client(&server, kind)).await;
        assert_eq!(within(session.prompt("go").text()).await.unwrap(), "permission: reject_once");
    }
}

#[tokio::test]
async fn a_permission_that_cannot_be_rejected_is_cancelled() {
    let option = PermissionOption { id: "yes".into(), name: "Yes".into(), kind: "allow_always".into() };
    let ask = Permission::new(ToolCall::new("t", "Run")).options(vec![option]);
    let script = Script::steps(vec![Step::AskPermission(ask)]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    assert_eq!(within(session.prompt("go").text()).await.unwrap(), "permission: cancelled");
}

#[tokio::test]
async fn subscribers_can_decide_and_the_first_decision_counts() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", asks()).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let (mut of_session, mut of_client) = (session.events().deciding(), client.events().deciding());
        let turn = session.prompt("go");
        let (one, two) = (permission(&mut of_session).await, permission(&mut of_client).await);
        assert_eq!(one.session_id(), Some(session.id()));
        assert_eq!(one.tool_call().unwrap().title.as_deref(), Some("Run"));
        assert_eq!(one.options()[0].kind, Some(PermissionKind::AllowOnce));
        assert_eq!(one.choose("nonsense"), Err(ReplyError::NotOffered));
        one.reply(PermissionReply::Always).unwrap();
        assert_eq!(two.reply(PermissionReply::Reject), Err(ReplyError::Stale));
        assert_eq!(within(turn.text()).await.unwrap(), "permission: allow_always");
    }
}

#[tokio::test]
async fn a_subscriber_that_drops_the_request_cancels_it() {
    let server = MockServer::builder().agent("mock", asks()).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let mut events = session.events().deciding();
    let turn = session.prompt("go");
    drop(permission(&mut events).await);
    assert_eq!(within(turn.text()).await.unwrap(), "permission: cancelled");
}

#[tokio::test]
async fn a_policy_decides_before_subscribers() {
    for kind in KINDS {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let server = MockServer::builder().agent("mock", asks()).start().await;
        let client = options(&server, kind).permission_policy(move |request| {
            count.fetch_add(1, Ordering::SeqCst);
            assert!(request.tool_call().is_some());
            PermissionDecision::Reply(PermissionReply::Once)
        });
        let client = client.build().unwrap();
        let session = session(&client).await;
        let mut events = client.events().deciding();
        assert_eq!(within(session.prompt("go").text()).await.unwrap(), "permission: allow_once");
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert!(!std::iter::from_fn(|| events.try_next()).any(|event| matches!(event, Event::Permission(_))));
    }
}

#[tokio::test]
async fn a_policy_that_chooses_an_option_that_is_not_offered_rejects() {
    let server = MockServer::builder().agent("mock", asks()).start().await;
    let client = options(&server, ServerKind::Shared)
        .permission_policy(|_| PermissionDecision::Option("no such".into()));
    let session = session(&client.build().unwrap()).await;
    assert_eq!(within(session.prompt("go").text()).await.unwrap(), "permission: reject_once");
}

#[tokio::test]
async fn many_permissions_can_be_decided_in_any_order() {
    for kind in KINDS {
        let server =
            MockServer::builder().agent("mock", Script::steps(vec![Step::FireRequests(50)])).start().await;
        let session = session(&client(&server, kind)).await;
        let mut events = session.events().deciding();
        let mut turn = session.prompt("go");
        let mut requests = Vec::new();
        while requests.len() < 50 {
            requests.push(permission(&mut events).await);
        }
        for request in requests.into_iter().rev() {
            request.reply(PermissionReply::Once).unwrap();
        }
        within(turn.outcome()).await.unwrap();
        let answers = server.answers();
        assert_eq!(answers.len(), 50);
        assert!(answers.iter().all(|answer| answer.answer["result"]["outcome"]["optionId"] == "allow_once"));
    }
}

#[tokio::test]
async fn questions_can_be_answered() {
    for kind in KINDS {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let ask = Step::AskQuestion { message: "Your name?".into(), schema: schema.clone() };
        let server = MockServer::builder().agent("mock", Script::steps(vec![ask])).start().await;
        let session = session(&client(&server, kind)).await;
        let mut events = session.events().deciding();
        let mut turn = session.prompt("go");
        let question = question(&mut events).await;
        assert_eq!((question.message(), question.schema()), (Some("Your name?"), Some(&schema)));
        question.answer(&json!({"name": "Ada"})).unwrap();
        within(turn.outcome()).await.unwrap();
        assert_eq!(
            server.answers()[0].answer["result"],
            json!({"action": "accept", "content": {"name": "Ada"}})
        );
        assert_eq!(question.decline(), Err(ReplyError::Stale));
    }
}

#[tokio::test]
async fn a_question_without_an_answer_is_cancelled() {
    let ask = Step::AskQuestion { message: "?".into(), schema: json!({}) };
    let passed_on = Step::Request {
        method: "_sandboxagent/session/request_question".into(),
        params: json!({"questionId": "q", "prompt": "?", "options": [["a", "A"]]}),
    };
    let unknown =
        Step::Request { method: "fs/read_text_file".into(), params: json!({"path": "/etc/passwd"}) };
    let script = Script::steps(vec![ask, passed_on, unknown]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    within(session.prompt("go").outcome()).await.unwrap();
    let answers: Vec<_> = server.answers().into_iter().map(|answer| answer.answer).collect();
    assert_eq!(answers[0]["result"], json!({"action": "cancel"}));
    assert_eq!(answers[1]["result"]["status"], "rejected");
    assert_eq!(answers[2]["error"]["code"], -32601, "files are not advertised");
}

#[tokio::test]
async fn requests_of_another_clients_session_are_left_to_that_client() {
    let server = MockServer::builder().agent("mock", asks()).start().await;
    let neighbour = client(&server, ServerKind::Shared);
    session(&neighbour).await;
    let mut heard = neighbour.events().deciding();
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = session.events().deciding();
    let turn = session.prompt("go");
    let request = permission(&mut events).await;
    // The other client has received the request too. A response of it would have arrived by now.
    within(neighbour.list_models(None)).await.unwrap();
    request.reply(PermissionReply::Once).unwrap();
    assert_eq!(within(turn.text()).await.unwrap(), "permission: allow_once");
    assert!(!std::iter::from_fn(|| heard.try_next()).any(|event| matches!(event, Event::Permission(_))));
    assert_eq!(server.answers().len(), 1);
}
