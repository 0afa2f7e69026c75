//! Text that arrives late is not stored with the turn that runs then.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::sessions::{SessionStore as _, StoredEvent, StoredEventKind};
use sandbox_agent_sdk::{Event, NewSession, ServerKind};
use serde_json::{Value, json};

use crate::gated::Gated;
use crate::support::{LIMIT, event, within};
use crate::world::{Ability, World, agent, ask, ends, options, stored};

fn say(server: &MockServer, session: &str, message: &str, text: &str) {
    let content = json!({"type": "text", "text": text});
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": content, "messageId": message});
    let params = json!({"sessionId": session, "update": update});
    server.emit(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
}

/// Ends the turn of the prompt with this number.
async fn respond(server: &MockServer, number: usize, stop_reason: &str) {
    assert!(server.wait_for(|_| server.messages("session/prompt").len() > number, LIMIT).await);
    let id: Value = server.messages("session/prompt")[number]["id"].clone();
    server.emit(json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": stop_reason}}));
}

/// The number of the turn with which each text is stored.
fn turns_of_texts(events: &[StoredEvent]) -> Vec<(&str, Option<usize>)> {
    let prompts = events.iter().filter(|event| event.kind == StoredEventKind::Prompt);
    let turns: Vec<_> = prompts.map(|prompt| prompt.turn_id.clone().unwrap()).collect();
    let updates = events.iter().filter(|event| event.kind == StoredEventKind::Update);
    let turn_of = |event: &StoredEvent| {
        let turn_id = event.turn_id.as_ref()?;
        turns.iter().position(|turn| turn == turn_id)
    };
    updates.map(|event| (event.payload["content"]["text"].as_str().unwrap(), turn_of(event))).collect()
}

#[tokio::test]
async fn late_text_of_a_cancelled_turn_is_not_stored_with_the_next_turn() {
    let world = World::new(ServerKind::Shared, Script::steps(vec![Step::Hang])).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let agent_session = session.agent_session().unwrap();
    let server = &world.server;
    let mut first = within(session.prompt("one")).await.unwrap();
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    say(server, agent_session.id(), "m1", "first");
    within(first.next()).await.unwrap();
    let cancelling = tokio::spawn(agent_session.cancel());
    assert!(server.wait_for(|_| !server.messages("session/cancel").is_empty(), LIMIT).await);
    respond(server, 0, "cancelled").await;
    within(cancelling).await.unwrap().unwrap();
    within(first.outcome()).await.unwrap();
    let mut second = within(session.prompt("two")).await.unwrap();
    assert!(server.wait_for(|_| server.messages("session/prompt").len() == 2, LIMIT).await);
    say(server, agent_session.id(), "m1", "late");
    say(server, agent_session.id(), "m2", "second");
    respond(server, 1, "end_turn").await;
    within(second.outcome()).await.unwrap();
    sessions.flush().await.unwrap();
    let kept = stored(&**sessions.store(), "mine").await;
    assert_eq!(turns_of_texts(&kept), [("first", Some(0)), ("late", None), ("second", Some(1))]);
}

#[tokio::test]
async fn text_that_arrives_while_a_prompt_is_stored_is_not_of_its_turn() {
    let world = Arc::new(World::new(ServerKind::Shared, Script::steps(vec![Step::Hang])).await);
    let store = Gated::new(world.store().await);
    let sessions = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let agent_session = session.agent_session().unwrap().id().to_owned();
    let (mut events, speaking, speaker) = (session.events(), Arc::clone(&world), agent_session.clone());
    *store.before_prompt.lock().unwrap() = Some(Box::new(move || {
        Box::pin(async move {
            say(&speaking.server, &speaker, "m1", "early");
            event(&mut events, |event| matches!(event, Event::Update(_)).then_some(())).await;
        })
    }));
    let mut turn = within(session.prompt("one")).await.unwrap();
    assert!(world.server.wait_for(|_| !world.server.messages("session/prompt").is_empty(), LIMIT).await);
    say(&world.server, &agent_session, "m2", "first");
    respond(&world.server, 0, "end_turn").await;
    within(turn.outcome()).await.unwrap();
    sessions.flush().await.unwrap();
    let kept = stored(&*store, "mine").await;
    assert_eq!(turns_of_texts(&kept), [("early", None), ("first", Some(0))]);
}

#[tokio::test]
async fn text_of_two_turns_whose_ends_are_not_stored_is_stored_with_its_own_turn() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let store = Gated::new(world.store().await);
    let first = options(&world.server, world.kind).shared_store(store.clone());
    let first = first.stored(|options| options.retry_for(Duration::from_millis(200))).build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    // Nothing is stored but the prompts.
    store.refusing.store(true, Ordering::SeqCst);
    ask(&session, "one").await;
    ask(&session, "two").await;
    // It ends without releasing anything.
    drop((session, first));
    assert_eq!(store.open("mine").await.unwrap().turns.len(), 2);

    let (_client, second) = world.program().await;
    within(second.resume("mine")).await.unwrap();
    second.flush().await.unwrap();
    let kept = stored(&**second.store(), "mine").await;
    let texts = [("re: one; ", 0), ("about one", 0), ("re: two; ", 1), ("about two", 1)];
    assert_eq!(turns_of_texts(&kept), texts.map(|(text, turn)| (text, Some(turn))));
    let turns =
        kept.iter().filter(|event| event.kind == StoredEventKind::Prompt).map(|prompt| &prompt.turn_id);
    let ends = ends(&kept);
    assert!(turns.eq(ends.iter().map(|end| &end.turn_id)), "{ends:#?}");
    assert!(ends.iter().all(|end| end.turn_end().unwrap().stop_reason.is_some()), "{ends:#?}");
}
