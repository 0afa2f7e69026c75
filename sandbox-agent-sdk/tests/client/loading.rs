//! Sessions that are loaded while they have a turn.

use std::sync::Arc;

use mock_server::{Fault, MockServer, Script, Step};
use sandbox_agent_sdk::requests::AgentRequest;
use sandbox_agent_sdk::{Error, Event, SandboxAgentClient, ServerKind, Session, Turn};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::support::{LIMIT, client, event, options, session, within};

fn said(kind: &str, text: &str) -> Value {
    json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}})
}

/// An agent that sends nothing by itself, and replays this conversation when its session is loaded.
fn agent(history: Vec<Step>) -> Script {
    Script::steps(vec![Step::Hang])
        .on_request(move |method, _| (method == "session/load").then(|| history.clone()))
}

fn history() -> Vec<Step> {
    vec![
        Step::Update(said("user_message_chunk", "earlier")),
        Step::Update(said("agent_message_chunk", "old")),
        Step::Finish(json!({})),
    ]
}

/// Starts a turn. Returns it with the id of its prompt.
async fn begin(server: &MockServer, session: &Session, prompt: &str) -> (Turn, Value) {
    let count = server.messages("session/prompt").len();
    let turn = session.prompt(prompt);
    assert!(server.wait_for(|_| server.messages("session/prompt").len() > count, LIMIT).await);
    (turn, server.messages("session/prompt")[count]["id"].clone())
}

fn say(server: &MockServer, session: &Session, chunk: &Value) {
    let params = json!({"sessionId": session.id(), "update": chunk});
    server.emit(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
}

fn respond(server: &MockServer, id: &Value) {
    server.emit(json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "end_turn"}}));
}

#[tokio::test]
async fn a_session_is_not_loaded_into_its_own_running_turn() {
    let server = MockServer::builder().agent("mock", agent(history())).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let (turn, id) = begin(&server, &session, "go").await;
    let error = within(session.reload()).await.unwrap_err();
    assert!(matches!(error, Error::TurnInProgress { .. }), "{error:?}");
    say(&server, &session, &said("agent_message_chunk", "new"));
    respond(&server, &id);
    assert_eq!(within(turn.text()).await.unwrap(), "new");
    assert!(server.messages("session/load").is_empty());
    assert_eq!(within(session.reload()).await.unwrap().history().len(), 2);
}

/// Lets agent requests of this method wait until they are released.
fn hold(client: &SandboxAgentClient) -> (Arc<Notify>, Arc<Notify>) {
    let (entered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let notices = (Arc::clone(&entered), Arc::clone(&release));
    let handler = move |_: AgentRequest| {
        let (entered, release) = notices.clone();
        async move {
            entered.notify_one();
            release.notified().await;
            Ok(json!({}))
        }
    };
    client.requests().register(|request| request.method() == "_x/hold", handler).detach();
    (entered, release)
}

#[tokio::test]
async fn a_prompt_waits_until_its_session_is_loaded() {
    let mut steps = history();
    steps.insert(1, Step::Request { method: "_x/hold".into(), params: json!({}) });
    let server = MockServer::builder().agent("mock", agent(steps)).start().await;
    let client = client(&server, ServerKind::Shared);
    let (entered, release) = hold(&client);
    let session = session(&client).await;
    let loading = tokio::spawn(session.reload());
    within(entered.notified()).await;
    let turn = session.prompt("go");
    for _ in 0..5 {
        within(client.list_models(None)).await.unwrap();
    }
    assert!(server.messages("session/prompt").is_empty());
    release.notify_one();
    assert_eq!(within(loading).await.unwrap().unwrap().history().len(), 2);
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    say(&server, &session, &said("agent_message_chunk", "new"));
    respond(&server, &server.messages("session/prompt")[0]["id"]);
    assert_eq!(within(turn.text()).await.unwrap(), "new");
}

#[tokio::test]
async fn an_incomplete_turn_is_not_loaded_again_into_the_next_one() {
    let server = MockServer::builder().agent("mock", agent(history())).start().await;
    let client = options(&server, ServerKind::Shared).reload_incomplete_turns(true).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    let (first, id) = begin(&server, &session, "one").await;
    server.inject(Fault::Hole { id: server.last_event_id() + 1 });
    say(&server, &session, &said("agent_message_chunk", "lost"));
    say(&server, &session, &said("agent_message_chunk", "first"));
    respond(&server, &id);
    event(&mut events, |event| matches!(event, Event::TurnEnded(_)).then_some(())).await;
    let (second, id) = begin(&server, &session, "two").await;
    let error = within(first.text()).await.unwrap_err();
    assert!(matches!(&error, Error::IncompleteTurn(turn) if turn.collected.text == "first"), "{error:?}");
    say(&server, &session, &said("agent_message_chunk", "second"));
    respond(&server, &id);
    assert_eq!(within(second.text()).await.unwrap(), "second");
}
