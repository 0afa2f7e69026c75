//! Turns that this client cancelled, however the agent ends them.

use std::time::Duration;

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::{ClientTimeouts, Event, ServerKind, Session, StopReason, Turn};
use serde_json::{Value, json};

use super::support::{LIMIT, event, options, session, text, timeouts, within};

/// Returns a server whose agent sends nothing by itself, and a session.
async fn silent() -> (MockServer, Session) {
    silent_as("mock").await
}

async fn silent_as(agent: &str) -> (MockServer, Session) {
    let server = MockServer::builder().agent(agent, Script::steps(vec![Step::Hang])).start().await;
    let client = options(&server, ServerKind::Shared).agent(agent).build().unwrap();
    let session = session(&client).await;
    (server, session)
}

/// Starts a turn. Returns it with the id of its prompt.
async fn begin(server: &MockServer, session: &Session) -> (Turn, Value) {
    let count = server.messages("session/prompt").len();
    let turn = session.prompt("go");
    assert!(server.wait_for(|_| server.messages("session/prompt").len() > count, LIMIT).await);
    (turn, server.messages("session/prompt")[count]["id"].clone())
}

fn respond(server: &MockServer, id: &Value, mut response: Value) {
    response["jsonrpc"] = "2.0".into();
    response["id"] = id.clone();
    server.emit(response);
}

fn say(server: &MockServer, session: &Session, message: &str, text: &str) {
    let content = json!({"type": "text", "text": text});
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": content, "messageId": message});
    let params = json!({"sessionId": session.id(), "update": update});
    server.emit(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
}

/// Cancels a turn, which the agent then ends with this response.
async fn cancel(server: &MockServer, session: &Session, id: &Value, response: Value) {
    let count = server.messages("session/cancel").len();
    let cancelling = tokio::spawn(session.cancel());
    assert!(server.wait_for(|_| server.messages("session/cancel").len() > count, LIMIT).await);
    respond(server, id, response);
    within(cancelling).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cancelled_turn_is_cancelled_whatever_the_response() {
    let error =
        json!({"code": -32603, "message": "Internal error", "data": {"details": "Request was aborted."}});
    let login = json!({"code": -32000, "message": "Authentication required"});
    let table = [
        (json!({"result": {"stopReason": "cancelled"}}), "/stopReason", json!("cancelled")),
        (json!({"result": {"stopReason": "end_turn", "usage": {}}}), "/stopReason", json!("end_turn")),
        (json!({ "error": error }), "/error", error),
        (json!({ "error": login }), "/error", login),
    ];
    for (response, member, raw) in table {
        let (server, session) = silent().await;
        let (mut turn, id) = begin(&server, &session).await;
        cancel(&server, &session, &id, response).await;
        let outcome = within(turn.outcome()).await.unwrap();
        assert_eq!(outcome.stop_reason, StopReason::Cancelled);
        assert_eq!(outcome.raw.pointer(member), Some(&raw), "the response is preserved");
    }
}

#[tokio::test]
async fn an_error_without_a_cancel_is_an_error() {
    let (server, session) = silent().await;
    let (mut turn, id) = begin(&server, &session).await;
    respond(&server, &id, json!({"error": {"code": -32603, "message": "Internal error"}}));
    assert_eq!(within(turn.outcome()).await.unwrap_err().rpc_error().unwrap().code, -32603);
}

#[tokio::test]
async fn late_text_of_a_cancelled_turn_is_not_in_the_next_turn() {
    let (server, session) = silent().await;
    let (mut first, id) = begin(&server, &session).await;
    say(&server, &session, "m1", "first");
    assert_eq!(within(first.next()).await.unwrap().to_string(), "first");
    cancel(&server, &session, &id, json!({"result": {"stopReason": "cancelled"}})).await;
    within(first.outcome()).await.unwrap();
    let mut events = session.events();
    say(&server, &session, "m1", "late before the prompt");
    event(&mut events, |event| matches!(event, Event::Update(_)).then_some(())).await;
    let (turn, id) = begin(&server, &session).await;
    say(&server, &session, "m1", "late after the prompt");
    say(&server, &session, "m2", "second");
    respond(&server, &id, json!({"result": {"stopReason": "end_turn"}}));
    assert_eq!(within(turn.text()).await.unwrap(), "second");
    let rest = std::iter::from_fn(|| events.try_next()).filter_map(|event| match event {
        Event::Update(update) => Some(update),
        _ => None,
    });
    assert_eq!(text(&rest.collect::<Vec<_>>()), "late after the promptsecond", "the session receives it");
}

#[tokio::test]
async fn a_message_that_began_between_two_turns_is_not_in_the_next_turn() {
    let (server, session) = silent().await;
    let (mut first, id) = begin(&server, &session).await;
    cancel(&server, &session, &id, json!({"result": {"stopReason": "cancelled"}})).await;
    within(first.outcome()).await.unwrap();
    let mut events = session.events();
    say(&server, &session, "m1", "late before the prompt");
    event(&mut events, |event| matches!(event, Event::Update(_)).then_some(())).await;
    let (turn, id) = begin(&server, &session).await;
    say(&server, &session, "m1", "late behind the prompt");
    say(&server, &session, "m2", "second");
    respond(&server, &id, json!({"result": {"stopReason": "end_turn"}}));
    assert_eq!(within(turn.text()).await.unwrap(), "second");
}

/// The message by which claude ends an interrupted run.
fn run_ended(server: &MockServer, session: &Session) {
    let message = json!({"type": "result", "subtype": "error_during_execution", "is_error": true});
    let params = json!({"sessionId": session.id(), "message": message});
    server.emit(json!({"jsonrpc": "2.0", "method": "_claude/sdkMessage", "params": params}));
}

#[tokio::test]
async fn what_claude_says_until_its_run_has_ended_belongs_to_the_cancelled_turn() {
    let aborted = json!({"error": {"code": -32603, "message": "Internal error"}});
    for response in [json!({"result": {"stopReason": "cancelled"}}), aborted] {
        let (server, session) = silent_as("claude").await;
        let mut events = session.client().events();
        let (first, id) = begin(&server, &session).await;
        let cancelling = tokio::spawn(session.cancel());
        assert!(server.wait_for(|_| !server.messages("session/cancel").is_empty(), LIMIT).await);
        respond(&server, &id, response.clone());
        // The next prompt is not sent before the run has ended, so this cannot be in its turn.
        let second = session.prompt("again");
        for _ in 0..5 {
            within(session.client().list_models(None)).await.unwrap();
        }
        assert_eq!(server.messages("session/prompt").len(), 1, "{response}");
        say(&server, &session, "m1", "late");
        run_ended(&server, &session);
        assert!(server.wait_for(|_| server.messages("session/prompt").len() == 2, LIMIT).await);
        let id = server.messages("session/prompt")[1]["id"].clone();
        say(&server, &session, "m2", "second");
        respond(&server, &id, json!({"result": {"stopReason": "end_turn"}}));
        assert_eq!(within(first.text()).await.unwrap(), "late", "{response}");
        assert_eq!(within(second.text()).await.unwrap(), "second", "{response}");
        within(cancelling).await.unwrap().unwrap();
        let other =
            std::iter::from_fn(|| events.try_next()).find(|event| matches!(event, Event::Other { .. }));
        assert!(other.is_none(), "the application has not requested the message: {other:?}");
    }
}

/// How long the client waits for the end of a run: longer than a test takes, shorter than a stream may be silent.
const RUN_END: Duration = Duration::from_secs(20);

/// A session of claude whose cancelled runs may take long to end.
async fn slow_claude() -> (MockServer, Session) {
    let server = MockServer::builder().agent("claude", Script::steps(vec![Step::Hang])).start().await;
    let timeouts = timeouts().cancel(Duration::from_secs(3600)).run_end(RUN_END);
    let client = options(&server, ServerKind::Shared).agent("claude").timeouts(timeouts).build().unwrap();
    let session = session(&client).await;
    (server, session)
}

/// Cancels a turn, which the agent then ends with this response, and prompts again. The prompt waits for the run to end.
async fn cancel_and_prompt(server: &MockServer, session: &Session, id: &Value, response: &Value) -> Turn {
    let count = server.messages("session/cancel").len();
    let cancelling = tokio::spawn(session.cancel());
    assert!(server.wait_for(|_| server.messages("session/cancel").len() > count, LIMIT).await);
    respond(server, id, response.clone());
    drop(cancelling);
    session.prompt("again")
}

/// Lets the time of the wait for the end of a run pass, and returns the id of the prompt that is then sent.
async fn after_the_wait(server: &MockServer, prompts: usize) -> Value {
    let is_sent = |_: &_| server.messages("session/prompt").len() >= prompts;
    // The wait begins when the client has read the response.
    for _ in 0..100 {
        tokio::time::pause();
        tokio::time::advance(RUN_END).await;
        tokio::time::resume();
        if server.wait_for(is_sent, Duration::from_millis(500)).await {
            return server.messages("session/prompt")[prompts - 1]["id"].clone();
        }
    }
    panic!("the next prompt is not sent");
}

#[tokio::test]
async fn the_report_of_a_run_that_comes_late_does_not_end_the_wait_for_a_later_run() {
    let aborted = json!({"error": {"code": -32603, "message": "Internal error"}});
    for response in [json!({"result": {"stopReason": "cancelled"}}), aborted] {
        let (server, session) = slow_claude().await;
        let mut events = session.client().events();
        let (_first, id) = begin(&server, &session).await;
        let second = cancel_and_prompt(&server, &session, &id, &response).await;
        let id = after_the_wait(&server, 2).await;
        run_ended(&server, &session);
        let mut updates = session.events();
        let third = cancel_and_prompt(&server, &session, &id, &response).await;
        say(&server, &session, "m2", "late");
        // The client has read the response, and does not send the next prompt.
        event(&mut updates, |event| matches!(event, Event::Update(_)).then_some(())).await;
        for _ in 0..5 {
            within(session.client().list_models(None)).await.unwrap();
        }
        assert_eq!(server.messages("session/prompt").len(), 2, "{response}");
        run_ended(&server, &session);
        assert!(server.wait_for(|_| server.messages("session/prompt").len() == 3, LIMIT).await);
        let id = server.messages("session/prompt")[2]["id"].clone();
        respond(&server, &id, json!({"result": {"stopReason": "end_turn"}}));
        assert_eq!(within(second.text()).await.unwrap(), "late", "{response}");
        assert_eq!(within(third.text()).await.unwrap(), "", "{response}");
        let other =
            std::iter::from_fn(|| events.try_next()).find(|event| matches!(event, Event::Other { .. }));
        assert!(other.is_none(), "the application has not requested the message: {other:?}");
    }
}

#[tokio::test]
async fn a_turn_that_ended_by_itself_shows_that_no_earlier_run_will_be_reported() {
    let (server, session) = slow_claude().await;
    let aborted = json!({"error": {"code": -32603, "message": "Internal error"}});
    let (_first, id) = begin(&server, &session).await;
    let second = cancel_and_prompt(&server, &session, &id, &aborted).await;
    let id = after_the_wait(&server, 2).await;
    respond(&server, &id, json!({"result": {"stopReason": "end_turn"}}));
    assert_eq!(within(second.text()).await.unwrap(), "");
    let (_third, id) = begin(&server, &session).await;
    let _fourth = cancel_and_prompt(&server, &session, &id, &aborted).await;
    run_ended(&server, &session);
    // The wait does not last its whole time.
    assert!(server.wait_for(|_| server.messages("session/prompt").len() == 4, RUN_END / 2).await);
}

#[tokio::test]
async fn a_cancel_ends_although_the_end_of_the_run_is_not_reported() {
    let server =
        MockServer::builder().agent("claude", Script::steps(vec![Step::WaitForCancel])).start().await;
    let timeouts = ClientTimeouts::default().cancel(Duration::from_millis(300));
    let client = options(&server, ServerKind::Shared).agent("claude").timeouts(timeouts).build().unwrap();
    let session = session(&client).await;
    for count in 1..=2 {
        let mut turn = session.prompt("go");
        assert!(server.wait_for(|_| server.messages("session/prompt").len() == count, LIMIT).await);
        within(turn.cancel()).await.unwrap();
        assert_eq!(within(turn.outcome()).await.unwrap().stop_reason, StopReason::Cancelled);
    }
}
