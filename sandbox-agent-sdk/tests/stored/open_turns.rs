//! Turns that other processes left open, and their ends.

use std::time::Duration;

use mock_server::{Fault, MockServer, Script, State, Step};
use sandbox_agent_sdk::sessions::store::OpenEvents;
use sandbox_agent_sdk::sessions::{RestoredBy, SessionStore as _, StoreOptions, StoredEventKind};
use sandbox_agent_sdk::{DropPolicy, Error, Event, NewSession, ServerKind};
use serde_json::json;

use crate::gated::{Gated, Response};
use crate::killed::{has_stored, kill_a_program, lose_response, waiting};
use crate::support::{event, within};
use crate::world::{Ability, World, agent, ask, ends, options, stored, unknown_session};

#[tokio::test]
async fn cancelling_ends_a_turn_whose_prompt_was_stored_and_never_sent() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let store = Gated::new(world.store().await);
    let first = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    *store.prompt_response.lock().unwrap() = Response::Hangs;
    let prompting = tokio::spawn(session.prompt("go"));
    let (_client, observer) = world.program().await;
    has_stored(&observer, "mine", StoredEventKind::Prompt).await;

    let options = world.options().await.cancel_timeout(Duration::from_millis(300));
    let second = options.build().unwrap();
    within(second.session("mine").cancel()).await.unwrap();
    let open = second.store().open("mine").await.unwrap();
    assert!(open.is_empty(), "{open:#?}");
    let kept = stored(&**second.store(), "mine").await;
    assert_eq!(ends(&kept)[0].payload["unheard"], true, "nothing shows that the prompt was sent");
    prompting.abort();
}

#[tokio::test]
async fn a_prompt_of_which_nothing_was_heard_is_not_replayed() {
    let world = World::new(ServerKind::Shared, agent(Ability::Neither)).await;
    let store = Gated::new(world.store().await);
    let first = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    ask(&session, "one").await;
    *store.prompt_response.lock().unwrap() = Response::Hangs;
    let prompting = tokio::spawn(session.prompt("two"));
    let (_client, observer) = world.program().await;
    // The turn of "one" may still be open: its end is stored in the background.
    within(async {
        let has_two = |open: &OpenEvents| {
            open.turns.iter().any(|turn| turn.prompt.payload["prompt"][0]["text"] == "two")
        };
        while !has_two(&observer.store().open("mine").await.unwrap()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let options = world.options().await.cancel_timeout(Duration::from_millis(300));
    let second = options.build().unwrap();
    let session = second.session("mine");
    within(session.cancel()).await.unwrap();
    prompting.abort();
    world.server.restart(State::Lost).await;
    ask(&session, "three").await;
    let sent = world.server.messages("session/prompt");
    let last = sent.last().unwrap()["params"]["prompt"].to_string();
    let kept = stored(&**second.store(), "mine").await;
    assert!(last.contains("re: one") && !last.contains("two"), "{last}\n{kept:#?}");
}

#[tokio::test]
async fn a_prompt_whose_turn_another_process_has_ended_is_not_sent_again() {
    let script = Script::new(|turn| {
        let prompt = turn.params["prompt"].as_array().unwrap().last().unwrap()["text"].as_str().unwrap();
        vec![Step::Say(prompt.to_owned()), Step::WaitForCancel]
    });
    let world = World::new(ServerKind::Shared, script.initialize(Ability::Resume.initialize())).await;
    let store = Gated::new(world.store().await);
    let first = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let second = world.options().await.on_turn_drop(DropPolicy::Detach);
    let second = second.cancel_timeout(Duration::from_millis(300));
    let limits = |options: StoreOptions| options.open_turn_timeout(Duration::from_millis(50));
    let second = second.stored(limits).build().unwrap();
    // The agent does not get the prompt. Before the first process restores the session, the second one ends its turn, and
    // prompts.
    world.server.inject(unknown_session());
    let rival = second.clone();
    *store.before_acquire.lock().unwrap() = Some(Box::new(move || {
        Box::pin(async move {
            drop(within(rival.session("mine").prompt("two")).await.unwrap());
            has_stored(&rival, "mine", StoredEventKind::Update).await;
        })
    }));
    within(async { session.prompt("one").await?.outcome().await }).await.unwrap_err();
    let sent = world.server.messages("session/prompt");
    let texts: Vec<_> = sent.iter().map(|sent| sent["params"]["prompt"][0]["text"].clone()).collect();
    assert_eq!(texts, ["one", "two"], "nothing is sent beside the turn of the second process");
    within(session.cancel()).await.unwrap();
    within(first.flush()).await.unwrap();
    let kept = stored(&*store, "mine").await;
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::PromptResent), "{kept:#?}");
    assert_eq!(ends(&kept).len(), 2, "{kept:#?}");
    assert!(store.open("mine").await.unwrap().is_empty());
}

#[tokio::test]
async fn cancelling_a_turn_that_does_not_stop_times_out() {
    let steps = vec![Step::Say("begun".into()), Step::WaitForCancel];
    let world = World::new(ServerKind::Shared, Script::steps(steps)).await;
    let first = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let turn = within(session.prompt("go")).await.unwrap();
    has_stored(&first, "mine", StoredEventKind::Update).await;
    drop((turn, session, first));
    world.server.inject(Fault::post_status(503).on_method("session/cancel"));
    let options = world.options().await.cancel_timeout(Duration::from_millis(300));
    let second = options.build().unwrap();
    let error = within(second.session("mine").cancel()).await.unwrap_err();
    assert!(matches!(error, Error::Timeout(_)), "{error:?}");
    assert!(second.session("mine").open_turn().is_some(), "it is running");
}

#[tokio::test]
async fn an_earlier_turn_whose_response_the_server_has_is_not_interrupted() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let store = Gated::new(world.store().await);
    let program = options(&world.server, world.kind).shared_store(store.clone());
    let program = program.on_turn_drop(DropPolicy::Detach);
    let first = program.stored(|options| options.retry_for(Duration::from_millis(600))).build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    // The store takes prompts, and nothing else.
    store.refusing.store(true, std::sync::atomic::Ordering::SeqCst);
    for text in ["one", "two"] {
        let mut turn = within(session.prompt(text)).await.unwrap();
        within(turn.outcome()).await.unwrap();
        first.flush().await.unwrap_err();
    }
    let open = world.store().await;
    let open = sandbox_agent_sdk::sessions::SessionStore::open(&open, "mine").await.unwrap();
    assert_eq!(open.turns.len(), 2, "the ends of both are not stored");

    let (_client, second) = world.program().await;
    within(second.session("mine").resume()).await.unwrap();
    let kept = stored(&**second.store(), "mine").await;
    let reasons: Vec<_> = ends(&kept).iter().map(|end| end.turn_end().unwrap().stop_reason).collect();
    assert!(reasons.iter().all(|reason| reason.as_ref().is_some_and(|reason| reason.as_str() == "end_turn")));
    assert_eq!(reasons.len(), 2, "{kept:#?}");
    drop(session);
}

#[tokio::test]
async fn a_turn_whose_response_lies_in_a_gap_is_not_waited_for_without_end() {
    let world = World::new(ServerKind::Shared, waiting(Ability::Resume)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let options = world.options().await.cancel_timeout(Duration::from_millis(200));
    let options = options.stored(|options| options.unconfirmed_timeout(Duration::from_millis(300)));
    let sessions = options.build().unwrap();
    let session = sessions.session("mine");
    within(session.resume()).await.unwrap();
    session.open_turn().expect("it is running");
    lose_response(&world, session.agent_session().unwrap().id()).await;
    world.server.emit(json!({"jsonrpc": "2.0", "method": "_other/notice", "params": {}}));
    within(session.open_turn_ended()).await;
    sessions.flush().await.unwrap();
    assert!(sessions.store().open("mine").await.unwrap().is_empty());
    let kept = stored(&**sessions.store(), "mine").await;
    assert!(ends(&kept)[0].turn_end().unwrap().error.is_some(), "{kept:#?}");
}

/// A turn of a program that has ended, behind which the server has dropped events. Returns the id of the agent's session.
async fn a_turn_before_a_gap() -> (World, String) {
    const BUFFER: usize = 16;
    let script = Script::steps(vec![Step::Say("first".into()), Step::WaitForCancel]);
    let script = script.initialize(Ability::Load.initialize());
    let server = MockServer::builder().agent("mock", script).replay_buffer(BUFFER);
    let server = server.released_quirks(false).start().await;
    let world = World { server, directory: tempfile::tempdir().unwrap(), kind: ServerKind::Shared };
    let first = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let turn = within(session.prompt("go")).await.unwrap();
    has_stored(&first, "mine", StoredEventKind::Update).await;
    let agent_session = session.agent_session().unwrap().id().to_owned();
    drop((turn, session, first));
    for _ in 0..2 * BUFFER {
        world.server.emit(json!({"jsonrpc": "2.0", "method": "_other/notice", "params": {}}));
    }
    (world, agent_session)
}

#[tokio::test]
async fn a_turn_that_runs_behind_a_gap_is_followed_and_its_requests_are_offered() {
    let (world, agent_session) = a_turn_before_a_gap().await;
    let option = json!({"optionId": "allow_once", "name": "Allow", "kind": "allow_once"});
    let asked = world.server.emit_request(json!({
        "jsonrpc": "2.0", "id": "asked", "method": "session/request_permission",
        "params": {"sessionId": agent_session, "options": [option],
            "toolCall": {"toolCallId": "call-1", "title": "Remove everything"}}}));
    let options = world.options().await;
    let second = options.stored(|options| options.unconfirmed_timeout(Duration::ZERO)).build().unwrap();
    let mut events = second.client().events().deciding();
    let session = second.session("mine");
    let restored = within(session.resume()).await.unwrap().unwrap();
    assert_eq!(restored.by, RestoredBy::Attach);
    let request = event(&mut events, |event| match event {
        Event::Permission(request) => Some(request),
        _ => None,
    })
    .await;
    assert_eq!(request.id(), asked);
    assert!(session.open_turn().is_some(), "it waits for a decision");
    request.allow_once().unwrap();
    has_stored(&second, "mine", StoredEventKind::Answered).await;
    within(session.cancel()).await.unwrap();
    second.flush().await.unwrap();
    let kept = stored(&**second.store(), "mine").await;
    let end = ends(&kept)[0].turn_end().unwrap();
    assert_eq!(end.stop_reason.unwrap().as_str(), "cancelled", "{kept:#?}");
    assert!(kept.iter().any(|event| event.kind == StoredEventKind::Gap));
    assert_eq!(world.server.messages("session/load").len(), 0, "nothing is loaded during a turn");
}

#[tokio::test]
async fn a_silent_turn_behind_a_gap_is_cancelled_before_anything_else_is_done_in_its_session() {
    let (world, _) = a_turn_before_a_gap().await;
    let options = world.options().await;
    let options = options.stored(|options| options.unconfirmed_timeout(Duration::from_millis(300)));
    let second = options.build().unwrap();
    let session = second.session("mine");
    within(session.resume()).await.unwrap();
    assert!(session.open_turn().is_some(), "it may be running");
    assert_eq!(world.server.messages("session/load").len(), 0, "nothing is loaded during a turn");
    within(session.open_turn_ended()).await;
    assert_eq!(world.server.messages("session/cancel").len(), 1);
    second.flush().await.unwrap();
    let kept = stored(&**second.store(), "mine").await;
    let end = ends(&kept)[0].turn_end().unwrap();
    assert_eq!(end.stop_reason.unwrap().as_str(), "cancelled", "{kept:#?}");
}

#[tokio::test]
async fn a_late_update_behind_the_gap_that_holds_the_response_does_not_make_a_turn_endless() {
    let world = World::new(ServerKind::Shared, waiting(Ability::Resume)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let options = world.options().await.cancel_timeout(Duration::from_millis(200));
    let options = options.stored(|options| options.unconfirmed_timeout(Duration::from_millis(300)));
    let sessions = options.build().unwrap();
    let session = sessions.session("mine");
    within(session.resume()).await.unwrap();
    let agent_session = session.agent_session().unwrap().id().to_owned();
    lose_response(&world, session.agent_session().unwrap().id()).await;
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "late"}});
    let params = json!({"sessionId": agent_session, "update": update});
    world.server.emit(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    within(session.open_turn_ended()).await;
    sessions.flush().await.unwrap();
    let kept = stored(&**sessions.store(), "mine").await;
    assert!(ends(&kept)[0].turn_end().unwrap().error.is_some(), "{kept:#?}");
}
