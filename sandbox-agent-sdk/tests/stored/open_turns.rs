//! Turns that other processes left open, and their ends.

use std::time::Duration;

use mock_server::{Fault, Script, Step};
use sandbox_agent_sdk::sessions::{StoredEvent, StoredEventKind};
use sandbox_agent_sdk::{DropPolicy, Error, NewSession, ServerKind};
use serde_json::json;

use crate::gated::{Gated, Response};
use crate::killed::{has_stored, kill_a_program};
use crate::support::within;
use crate::world::{Ability, World, agent, options, stored};

fn ends(events: &[StoredEvent]) -> Vec<&StoredEvent> {
    events.iter().filter(|event| event.kind == StoredEventKind::TurnEnded).collect()
}

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
    prompting.abort();
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
async fn a_turn_that_ends_while_its_session_is_archived_has_one_end() {
    let steps = vec![Step::Say("begun".into()), Step::WaitForCancel];
    let world = World::new(ServerKind::Shared, Script::steps(steps)).await;
    let (_client, first) = world.program().await;
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("go")).await.unwrap();
    has_stored(&first, "mine", StoredEventKind::Update).await;
    let store = Gated::new(world.store().await);
    let second = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let ending = first.clone();
    *store.after_open.lock().unwrap() = Some(Box::new(move || {
        Box::pin(async move {
            within(session.cancel()).await.unwrap();
            within(turn.outcome()).await.unwrap();
            within(ending.flush()).await.unwrap();
        })
    }));
    within(second.archive("mine")).await.unwrap();
    let kept = stored(&*store, "mine").await;
    let ends = ends(&kept);
    assert_eq!(ends.len(), 1, "{ends:#?}");
    assert_eq!(ends[0].turn_end().unwrap().stop_reason.unwrap().as_str(), "cancelled");
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
    let script =
        Script::new(|_| vec![Step::Say("first".to_owned()), Step::Wait(Duration::from_millis(1000))]);
    let world = World::new(ServerKind::Shared, script.initialize(Ability::Resume.initialize())).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let options = world.options().await;
    let options = options.stored(|options| options.unconfirmed_timeout(Duration::from_millis(300)));
    let sessions = options.build().unwrap();
    let session = sessions.session("mine");
    within(session.resume()).await.unwrap();
    session.open_turn().expect("it is running");
    // The response to its prompt is the next event, and the server loses it.
    let response = world.server.last_event_id() + 1;
    world.server.inject(Fault::Hole { id: response });
    within(async {
        while world.server.last_event_id() < response {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    world.server.emit(json!({"jsonrpc": "2.0", "method": "_other/notice", "params": {}}));
    within(session.open_turn_ended()).await;
    sessions.flush().await.unwrap();
    assert!(sessions.store().open("mine").await.unwrap().is_empty());
    let kept = stored(&**sessions.store(), "mine").await;
    assert!(ends(&kept)[0].turn_end().unwrap().error.is_some(), "{kept:#?}");
}
