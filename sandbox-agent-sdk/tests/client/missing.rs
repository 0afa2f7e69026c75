//! Which losses make a turn incomplete, and which do not.

use std::sync::Arc;

use futures::future::BoxFuture;
use mock_server::{Cut, Echo, Fault, MockServer, Script, Step};
use sandbox_agent_sdk::requests::AgentRequest;
use sandbox_agent_sdk::stream::{PromptLayer, Resend};
use sandbox_agent_sdk::update::Missed;
use sandbox_agent_sdk::{
    ConnectionState, DropPolicy, Error, Event, Events, SandboxAgentClient, ServerKind, Session, Turn,
    UpdateKind,
};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::support::{LIMIT, client, event, options, session, within};

fn update(session: &str, update: &Value) -> Value {
    let params = json!({"sessionId": session, "update": update});
    json!({"jsonrpc": "2.0", "method": "session/update", "params": params})
}

fn chunk(text: &str) -> Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
}

/// Loses an event on the stream, and waits until the client has noticed.
async fn lose_an_event(server: &MockServer, session: &str, events: &mut Events) {
    server.inject(Fault::Hole { id: server.last_event_id() + 1 });
    server.emit(update(session, &chunk("lost")));
    server.emit(update(session, &json!({"sessionUpdate": "usage_update", "used": 1, "size": 2})));
    event(events, |event| matches!(event, Event::Gap(_)).then_some(())).await;
}

/// Returns a session whose turns wait in an agent request until they are released.
async fn held(server: &MockServer, client: &SandboxAgentClient) -> (Session, Arc<Notify>, Arc<Notify>) {
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
    assert!(server.messages("session/prompt").is_empty());
    (session(client).await, entered, release)
}

fn holding() -> Script {
    let hold = Step::Request { method: "_x/hold".into(), params: json!({}) };
    Script::steps(vec![Step::Say("a".into()), hold, Step::Say("b".into())])
}

#[tokio::test]
async fn the_end_of_a_detached_turn_reports_what_was_lost_after_its_reader_was_dropped() {
    for is_gap in [true, false] {
        let server = MockServer::builder().agent("mock", holding()).start().await;
        let client = options(&server, ServerKind::Shared).on_turn_drop(DropPolicy::Detach).build().unwrap();
        let (session, entered, release) = held(&server, &client).await;
        let mut events = client.events();
        let turn = session.prompt("go");
        within(entered.notified()).await;
        drop(turn);
        if is_gap {
            lose_an_event(&server, session.id(), &mut events).await;
        } else {
            let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
            server.emit_raw(format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{}","update":{deep}}}}}"#,
                session.id()
            ));
            let unreadable = |event| match event {
                Event::Update(update) => matches!(update.kind(), UpdateKind::Unreadable { .. }).then_some(()),
                _ => None,
            };
            event(&mut events, unreadable).await;
        }
        release.notify_one();
        let ended = event(&mut events, |event| match event {
            Event::TurnEnded(ended) => Some(ended),
            _ => None,
        })
        .await;
        let missing = ended.outcome.unwrap().missing;
        match is_gap {
            true => assert!(matches!(missing[..], [Missed::Gap(_)]), "{missing:?}"),
            false => assert_eq!(missing, [Missed::Malformed]),
        }
    }
}

#[tokio::test]
async fn a_loss_before_the_prompt_is_sent_does_not_make_the_turn_incomplete() {
    let server = MockServer::start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = client.events();
    let (entered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let notices = (Arc::clone(&entered), Arc::clone(&release));
    let turn = session.prompt_after("go", |_| async move {
        notices.0.notify_one();
        notices.1.notified().await;
        Ok(())
    });
    within(entered.notified()).await;
    lose_an_event(&server, session.id(), &mut events).await;
    release.notify_one();
    assert_eq!(within(turn.text()).await.unwrap(), "mock: go");
}

/// A layer that loses an event before it sends a prompt again, in the same session.
struct LosesOne {
    server: Arc<MockServer>,
    session: Session,
}

impl PromptLayer for LosesOne {
    fn before_send(&mut self, _: String) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn not_executed(&mut self, _: &Error) -> BoxFuture<'static, Option<Resend>> {
        let (server, session) = (Arc::clone(&self.server), self.session.clone());
        Box::pin(async move {
            let mut events = session.client().events();
            lose_an_event(&server, session.id(), &mut events).await;
            Some(Resend { session_id: session.id().to_owned(), prompt: "again".into() })
        })
    }
}

#[tokio::test]
async fn a_loss_before_a_prompt_is_sent_again_does_not_make_the_turn_incomplete() {
    let server = Arc::new(MockServer::start().await);
    let session = session(&client(&server, ServerKind::Shared)).await;
    server.inject(Fault::post_status(413).on_method("session/prompt").times(1));
    let layer = LosesOne { server: Arc::clone(&server), session: session.clone() };
    assert_eq!(within(session.prompt_with("go", layer).text()).await.unwrap(), "mock: again");
}

#[tokio::test]
async fn a_notification_that_is_no_update_and_cannot_be_read_is_no_loss_of_a_turn() {
    let server = MockServer::builder().agent("mock", holding()).start().await;
    let client = client(&server, ServerKind::Shared);
    let (session, entered, release) = held(&server, &client).await;
    let mut events = client.events();
    let turn = session.prompt("go");
    within(entered.notified()).await;
    let deep = format!("{}{}", "[".repeat(130), "]".repeat(130));
    for method in ["_x/other", "_sandboxagent/session/ended"] {
        server.emit_raw(format!(
            r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"sessionId":"theirs","deep":{deep}}}}}"#
        ));
        let lost = |event| match event {
            Event::Malformed { lost, .. } => Some(lost),
            _ => None,
        };
        assert!(event(&mut events, lost).await, "it is still reported");
    }
    release.notify_one();
    assert_eq!(within(turn.text()).await.unwrap(), "ab");
}

#[tokio::test]
async fn a_turn_from_events_reports_the_losses_among_them() {
    let server = MockServer::builder().agent("mock", holding()).start().await;
    let client = client(&server, ServerKind::Shared);
    let (session, entered, release) = held(&server, &client).await;
    let mut events = client.events();
    let inner = session.prompt("go");
    within(entered.notified()).await;
    lose_an_event(&server, session.id(), &mut events).await;
    release.notify_one();
    // A layer whose end of the turn does not list what is missing.
    let passed = futures::stream::unfold(inner, |mut turn| async move {
        let mut event = turn.next_event().await?;
        if let sandbox_agent_sdk::turns::TurnEvent::Ended(Ok(outcome)) = &mut event {
            outcome.missing.clear();
        }
        Some((event, turn))
    });
    let error = within(Turn::from_events(session.clone(), passed).text()).await.unwrap_err();
    let Error::IncompleteTurn(turn) = &error else { panic!("{error:?}") };
    assert!(matches!(turn.missing[..], [Missed::Gap(_)]), "{:?}", turn.missing);
}

fn thought(text: &str) -> Value {
    json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": text}})
}

fn edit(content: &Value) -> Value {
    json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Edit", "kind": "edit", "content": content})
}

#[tokio::test]
async fn a_reloaded_turn_has_the_thoughts_and_changes_that_were_received() {
    let diff = json!([{"type": "diff", "path": "/a", "oldText": "x", "newText": "y"}]);
    let turn = [thought("hm "), edit(&diff), chunk("a"), chunk("b"), chunk("c")];
    // The history has all of the text. Whether it has the thoughts, and the change.
    for (has_thoughts, has_change) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut history = vec![
            json!({"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "go"}}),
            edit(&if has_change { diff.clone() } else { json!([]) }),
            chunk("abc"),
        ];
        if has_thoughts {
            history.insert(1, thought("hm"));
        }
        let mut steps: Vec<_> = history.into_iter().map(Step::Update).collect();
        steps.push(Step::Finish(json!({})));
        let script = Script::steps(turn.iter().cloned().map(Step::Update).collect())
            .on_request(move |method, _| (method == "session/load").then(|| steps.clone()));
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = options(&server, ServerKind::Shared).reload_incomplete_turns(true).build().unwrap();
        let session = session(&client).await;
        // The chunk "b" is lost.
        server.inject(Fault::Hole { id: server.last_event_id() + 4 });
        let turn = within(session.prompt("go").collect()).await.unwrap();
        let name = format!("{has_thoughts} {has_change}: {turn:?}");
        assert_eq!((turn.text.as_str(), turn.thoughts.trim()), ("abc", "hm"), "{name}");
        assert_eq!(turn.tool_calls.len(), 1, "{name}");
        let [change] = &turn.changes[..] else { panic!("{name}") };
        assert_eq!((change.path.as_str(), change.new_text.as_str()), ("/a", "y"), "{name}");
        assert!(!turn.tool_calls[0].content.is_empty(), "{name}");
        assert!(turn.outcome.is_some_and(|outcome| outcome.is_complete()), "{name}");
    }
}

#[tokio::test]
async fn a_turn_of_which_nothing_was_received_is_not_filled_from_an_earlier_turn_with_the_same_prompt() {
    // The agent has stored the earlier turn and not this one.
    let message = json!({"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "go"}});
    let steps = vec![
        Step::Update(message),
        Step::Update(thought("hm")),
        Step::Update(chunk("old")),
        Step::Finish(json!({})),
    ];
    for lost in [chunk("new"), thought("new")] {
        let steps = steps.clone();
        let script = Script::steps(vec![Step::Update(lost)])
            .on_request(move |method, _| (method == "session/load").then(|| steps.clone()));
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = options(&server, ServerKind::Shared).reload_incomplete_turns(true).build().unwrap();
        let session = session(&client).await;
        server.inject(Fault::Hole { id: server.last_event_id() + 1 });
        let error = within(session.prompt("go").text()).await.unwrap_err();
        assert!(matches!(&error, Error::IncompleteTurn(turn) if turn.collected.text.is_empty()), "{error:?}");
        assert_eq!(server.messages("session/load").len(), 1);
    }
}

#[tokio::test]
async fn a_turn_of_an_early_server_is_incomplete_if_its_stream_was_lost_before_the_response() {
    for is_lost in [true, false] {
        let builder = MockServer::builder().agent("mock", holding()).echo(Echo::BodyOnly);
        // It is cut in the middle of the next large event.
        let cut = Fault::StreamCutAt { byte: 60_000, cut: Cut::Dropped }.times(1);
        let server = builder.connection_ids(Some("x-acp-connection-id")).fault(cut).start().await;
        let client = client(&server, ServerKind::ConnectionId);
        let (session, entered, release) = held(&server, &client).await;
        let (mut events, mut states) = (session.events(), client.events());
        let turn = session.prompt("go");
        within(entered.notified()).await;
        let mut refused = None;
        if is_lost {
            refused = Some(server.inject(Fault::StreamRefused { status: 503 }));
            let params = json!({"text": "x".repeat(100_000)});
            server.emit(json!({"jsonrpc": "2.0", "method": "_x/large", "params": params}));
            let is_down = |event| matches!(event, Event::Connection(ConnectionState::Reconnecting { .. }));
            event(&mut states, |event| is_down(event).then_some(())).await;
        }
        release.notify_one();
        let outcome = within(turn.text()).await;
        let Some(refused) = refused else {
            assert_eq!(outcome.unwrap(), "ab");
            continue;
        };
        let error = outcome.unwrap_err();
        let Error::IncompleteTurn(turn) = &error else { panic!("{error:?}") };
        assert_eq!((&*turn.collected.text, &turn.missing[..]), ("a", &[Missed::Unverified][..]));
        // The stream comes back later, with the rest.
        server.lift(refused);
        let is_rest = |event| matches!(event, Event::Update(update) if update.to_string() == "b");
        event(&mut events, |event| is_rest(event).then_some(())).await;
    }
}

/// Two turns with the same prompt. A part of the second one is lost, and the agent then replays this history. Returns the
/// second turn. Its first chunk has this message id.
async fn second_of_two(history: Vec<Value>, id: Option<&str>) -> Result<String, Error> {
    let mut steps: Vec<_> = history.into_iter().map(Step::Update).collect();
    steps.push(Step::Finish(json!({})));
    let script = Script::steps(vec![Step::Hang])
        .on_request(move |method, _| (method == "session/load").then(|| steps.clone()));
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = options(&server, ServerKind::Shared).reload_incomplete_turns(true).build().unwrap();
    let session = session(&client).await;
    let (first, prompt) = begin(&server, &session).await;
    server.emit(update(session.id(), &chunk("Done. All tests pass.")));
    respond(&server, &prompt, "end_turn");
    within(first.text()).await.unwrap();
    let (second, prompt) = begin(&server, &session).await;
    server.inject(Fault::Hole { id: server.last_event_id() + 2 });
    let mut done = chunk("Done. ");
    id.into_iter().for_each(|id| done["messageId"] = id.into());
    server.emit(update(session.id(), &done));
    server.emit(update(session.id(), &chunk("lost")));
    respond(&server, &prompt, "end_turn");
    let text = within(second.text()).await;
    assert_eq!(server.messages("session/load").len(), 1);
    text
}

#[tokio::test]
async fn a_turn_is_not_completed_from_an_earlier_turn_with_the_same_prompt() {
    let message = json!({"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "go"}});
    let mut reported = chunk("Done. All 5 tests pass.");
    reported["messageId"] = "m2".into();
    let earlier = [message.clone(), chunk("Done. All tests pass.")];
    let later = [message.clone(), chunk("Done. All 5 tests pass.")];
    let whole = || [earlier.clone(), later.clone()].concat();
    for id in [None, Some("m2")] {
        // The agent has not stored the second turn.
        let error = second_of_two(earlier.to_vec(), id).await.unwrap_err();
        assert!(
            matches!(&error, Error::IncompleteTurn(turn) if turn.collected.text == "Done. "),
            "{error:?}"
        );
        assert_eq!(second_of_two(whole(), id).await.unwrap(), "Done. All 5 tests pass.");
    }
    // The agent has compacted its history, which has the message.
    let error = second_of_two(later.to_vec(), Some("m2")).await.unwrap_err();
    assert!(matches!(&error, Error::IncompleteTurn(_)), "{error:?}");
    let compacted = vec![message, reported];
    assert_eq!(second_of_two(compacted, Some("m2")).await.unwrap(), "Done. All 5 tests pass.");
}

/// Starts a turn of an agent that sends nothing by itself. Returns it with the id of its prompt.
async fn begin(server: &MockServer, session: &Session) -> (Turn, Value) {
    let count = server.messages("session/prompt").len();
    let turn = session.prompt("go");
    assert!(server.wait_for(|_| server.messages("session/prompt").len() > count, LIMIT).await);
    (turn, server.messages("session/prompt")[count]["id"].clone())
}

fn respond(server: &MockServer, id: &Value, reason: &str) {
    server.emit(json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": reason}}));
}

#[tokio::test]
async fn a_message_id_that_is_used_again_after_a_cancel_makes_the_next_turn_incomplete() {
    // What the next turn reports before and behind a chunk with the id of the cancelled turn.
    for (before, behind) in [(None, None), (Some("own"), None), (Some("own"), Some("own"))] {
        let script = Script::steps(vec![Step::Hang]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, ServerKind::Shared)).await;
        let say = |id: &str, text: &str| {
            let mut chunk = chunk(text);
            chunk["messageId"] = id.into();
            server.emit(update(session.id(), &chunk));
        };
        let (mut first, id) = begin(&server, &session).await;
        say("m", "first");
        within(first.next()).await.unwrap();
        let cancelling = tokio::spawn(session.cancel());
        assert!(server.wait_for(|_| !server.messages("session/cancel").is_empty(), LIMIT).await);
        respond(&server, &id, "cancelled");
        within(cancelling).await.unwrap().unwrap();
        let (second, id) = begin(&server, &session).await;
        before.iter().for_each(|id| say(id, "own"));
        say("m", "dropped");
        behind.iter().for_each(|id| say(id, "own"));
        respond(&server, &id, "end_turn");
        let error = within(second.text()).await.unwrap_err();
        let Error::IncompleteTurn(turn) = &error else { panic!("{error:?}") };
        assert_eq!(turn.missing, [Missed::Unverified], "{before:?} {behind:?}");
    }
}
