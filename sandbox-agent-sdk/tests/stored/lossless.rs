//! Nothing is lost, stored twice or stuck when a step in between fails.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mock_server::{Cut, Fault, MockServer, PROBLEM_JSON, Reply, Script, State, Step};
use sandbox_agent_sdk::connection::ReconnectPolicy;
use sandbox_agent_sdk::event::Origin;
use sandbox_agent_sdk::sessions::store::TurnEnd;
use sandbox_agent_sdk::sessions::{Durability, RestoredBy, StoredEvent, StoredEventKind};
use sandbox_agent_sdk::{ConnectionState, DropPolicy, Error, Event, NewSession, ServerKind};
use serde_json::json;

use crate::gated::{Gated, Response};
use crate::killed::{has_stored, kill_a_program, lose_response, waiting};
use crate::support::{event, within};
use crate::world::{Ability, World, agent, ask, counted, counting, kinds, options, said, stored};

fn prompts(events: &[StoredEvent]) -> Vec<&StoredEvent> {
    events.iter().filter(|event| event.kind == StoredEventKind::Prompt).collect()
}

/// The end of the turn of a prompt with this text.
fn end_of(events: &[StoredEvent], text: &str) -> TurnEnd {
    let prompts = prompts(events);
    let prompt = prompts.iter().find(|prompt| prompt.payload["prompt"][0]["text"] == text).unwrap();
    let mut of_turn = events.iter().filter(|event| event.turn_id == prompt.turn_id);
    of_turn.find_map(StoredEvent::turn_end).unwrap_or_else(|| panic!("`{text}` has an end"))
}

/// What a program does between the loss of its connection and the time when it uses its session again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    /// It tries to acquire the session while that is not possible.
    FailsToAcquire,
    /// It releases the session when it is connected again.
    Releases,
}

#[tokio::test]
async fn nothing_of_a_lost_connection_is_skipped_by_a_failed_acquire() {
    loses_nothing(Between::FailsToAcquire).await;
}

#[tokio::test]
async fn nothing_of_a_lost_connection_is_skipped_by_a_release() {
    loses_nothing(Between::Releases).await;
}

async fn loses_nothing(between: Between) {
    const COUNT: usize = 250;
    let server = MockServer::builder().agent("mock", counting(Ability::Resume, COUNT));
    let server = server.fault(Fault::StreamCutAt { byte: 4000, cut: Cut::Reset }.times(1));
    let server = server.fault(Fault::StreamRefused { status: 500 }.skip(1).times(3));
    let server = server.released_quirks(false).start().await;
    let world = World { server, directory: tempfile::tempdir().unwrap(), kind: ServerKind::Shared };
    let policy = ReconnectPolicy::default().base(Duration::from_millis(5)).max_attempts(3);
    let client = world.options().await.reconnect(policy).build().unwrap();
    let mut events = client.events();
    let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let other = within(client.new_session_as("other", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    within(turn.outcome()).await.unwrap_err();
    let is_lost = |event: &Event| matches!(event, Event::Connection(ConnectionState::Lost(_)));
    event(&mut events, |event| is_lost(&event).then_some(())).await;
    if between == Between::FailsToAcquire {
        world.server.inject(Fault::post_status(500).on_method("initialize").times(1));
        within(session.resume()).await.unwrap_err();
    }
    within(client.client().connect()).await.unwrap();
    let is_live = |event: &Event| matches!(event, Event::Update(update) if update.origin() == Origin::Live);
    event(&mut events, |event| is_live(&event).then_some(())).await;
    within(async { other.prompt("count").await?.outcome().await }).await.unwrap();
    within(client.flush()).await.unwrap();
    if between == Between::Releases {
        within(session.release()).await.unwrap();
    }
    within(session.resume()).await.unwrap();
    assert_eq!(counted(&client, COUNT).await, (1..=COUNT).collect::<Vec<_>>(), "{between:?}");
    let kept = stored(&**client.store(), "mine").await;
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{between:?}");
}

/// Prompts that the agent never received: the server is unreachable, or becomes unreachable while the session is
/// acquired.
#[tokio::test]
async fn a_prompt_that_was_never_sent_ends_as_not_executed_and_is_not_replayed() {
    for kind in [ServerKind::Shared, ServerKind::PerAgent] {
        let world = World::new(kind, agent(Ability::Neither)).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
        world.server.stop().await;
        within(async { session.prompt("two").await?.text().await }).await.unwrap_err();
        world.server.restart(State::Lost).await;
        within(async {
            loop {
                if async { session.prompt("three").await?.text().await }.await.is_ok() {
                    return;
                }
            }
        })
        .await;
        within(sessions.flush()).await.unwrap();
        let kept = stored(&**sessions.store(), "mine").await;
        assert!(!end_of(&kept, "two").executed, "{kind}: {kept:#?}");
        let sent = world.server.messages("session/prompt");
        let last = sent.last().unwrap()["params"]["prompt"].to_string();
        assert!(last.contains("re: one") && !last.contains("two"), "{kind}: {last}");
    }
}

#[tokio::test]
async fn the_end_of_a_prompt_that_was_not_sent_is_stored_although_its_session_could_not_be_restored() {
    let script = agent(Ability::Resume).on_request(|method, _| {
        let fail = Step::Fail { code: -32603, message: "overloaded".to_owned(), data: None };
        (method == "session/resume").then(|| vec![fail])
    });
    let world = World::new(ServerKind::Shared, script).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    ask(&session, "one").await;
    within(sessions.flush()).await.unwrap();
    // The agent forgets the session, and the prompt is refused. To resume it fails, after the epoch was raised.
    let body = r#"{"type":"urn:sandbox-agent:error:session_not_found","sessionId":"s"}"#.to_owned();
    let reply = Reply { body, content_type: Some(PROBLEM_JSON.to_owned()), ..Reply::default() };
    let refused = Fault::PostStatus { status: 404, execute: false, reply: Some(reply) };
    world.server.inject(refused.on_method("session/prompt").times(1));
    within(async { session.prompt("two").await?.text().await }).await.unwrap_err();
    within(sessions.flush()).await.unwrap();
    let kept = stored(&**sessions.store(), "mine").await;
    assert!(!end_of(&kept, "two").executed, "{kept:#?}");
    assert!(sessions.store().open("mine").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_prompt_whose_append_was_not_confirmed_is_stored_once_and_leaves_no_open_turn() {
    let durabilities = [Durability::Background, Durability::BeforeDelivery];
    for (durability, response) in
        durabilities.into_iter().flat_map(|one| [(one, Response::Lost), (one, Response::Hangs)])
    {
        let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
        let store = Gated::new(world.store().await);
        let options = options(&world.server, world.kind).shared_store(store.clone());
        let options = options.stored(|options| options.retry_for(Duration::from_millis(700)));
        let sessions = options.stored(|options| options.durability(durability)).build().unwrap();
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        *store.prompt_response.lock().unwrap() = response;
        let outcome = within(async { session.prompt("one").await?.text().await }).await;
        let is_confirmed = outcome.is_ok();
        if let Err(error) = outcome {
            assert!(matches!(error, Error::Store(_)), "{response:?}: {error:?}");
        }
        assert_eq!(is_confirmed, response == Response::Lost, "a response that was lost is asked for again");
        // The losses of the store do not matter here.
        let _ = within(sessions.flush()).await;
        assert!(sessions.store().open("mine").await.unwrap().is_empty(), "{response:?}: no turn is open");
        let kept = stored(&*store, "mine").await;
        assert_eq!(prompts(&kept).len(), 1, "{response:?}");
        assert_eq!(end_of(&kept, "one").executed, is_confirmed, "{response:?}");
        ask(&session, "two").await;
    }
}

#[tokio::test]
async fn a_turn_whose_end_lies_in_a_gap_does_not_stop_the_next_prompt() {
    let world = World::new(ServerKind::Shared, waiting(Ability::Neither)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let options = world.options().await;
    let options = options.stored(|options| options.open_turn_timeout(Duration::from_millis(50)));
    let sessions = options.build().unwrap();
    let session = sessions.session("mine");
    within(session.resume()).await.unwrap();
    session.open_turn().expect("it is running");
    lose_response(&world, session.agent_session().unwrap().id()).await;
    world.server.emit(json!({"jsonrpc": "2.0", "method": "_other/notice", "params": {}}));
    has_stored(&sessions, "mine", StoredEventKind::Gap).await;
    within(within(session.prompt("again")).await.unwrap().outcome()).await.unwrap();
    let kept = stored(&**sessions.store(), "mine").await;
    assert!(end_of(&kept, "go").error.is_some(), "{kept:#?}");
}

#[tokio::test]
async fn the_next_owner_ends_a_turn_whose_end_lies_in_a_stored_gap() {
    let world = World::new(ServerKind::Shared, waiting(Ability::Neither)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let (_client, second) = world.program().await;
    within(second.session("mine").resume()).await.unwrap();
    lose_response(&world, second.session("mine").agent_session().unwrap().id()).await;
    let agent_session = second.get("mine").await.unwrap().unwrap().agent_session.unwrap().id;
    let update = json!({"sessionUpdate": "session_info_update", "title": "after"});
    let params = json!({"sessionId": agent_session, "update": update});
    world.server.emit(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    has_stored(&second, "mine", StoredEventKind::Gap).await;
    within(async {
        while second.session("mine").title().await.unwrap().as_deref() != Some("after") {
            second.flush().await.unwrap();
        }
    })
    .await;
    drop(second);
    let options = world.options().await.cancel_timeout(Duration::from_millis(200));
    let options = options.stored(|options| options.unconfirmed_timeout(Duration::from_millis(200)));
    let third = options.build().unwrap();
    within(third.session("mine").resume()).await.unwrap();
    within(third.session("mine").open_turn_ended()).await;
    third.flush().await.unwrap();
    let kept = stored(&**third.store(), "mine").await;
    assert!(end_of(&kept, "go").error.is_some(), "{kept:#?}");
}

#[tokio::test]
async fn a_session_whose_position_the_server_has_dropped_gets_no_text_of_the_session_that_has_its_id_now() {
    const COUNT: usize = 2000;
    let script = Script::new(|turn| {
        let prompt = turn.params["prompt"].as_array().unwrap().last().unwrap()["text"].as_str().unwrap();
        let count = if prompt == "new" { COUNT } else { 5 };
        (1..=count).map(|n| Step::Say(format!("{prompt} {n}"))).collect()
    });
    // After a restart the agent reuses the id of its first session.
    let script = script.initialize(Ability::Neither.initialize()).session_ids(|number| match number {
        1 | 4 => "same".to_owned(),
        _ => format!("other-{number}"),
    });
    let world = World::new(ServerKind::Shared, script).await;
    let (_client, first) = world.program().await;
    let old = within(first.new_session_as("old", NewSession::in_dir("/"))).await.unwrap();
    let witness = within(first.new_session_as("witness", NewSession::in_dir("/"))).await.unwrap();
    for (session, name) in [(&old, "old"), (&witness, "witness")] {
        within(within(session.prompt(name)).await.unwrap().outcome()).await.unwrap();
    }
    first.flush().await.unwrap();
    world.server.restart(State::Lost).await;
    // This program stores that the server has restarted.
    within(within(witness.prompt("witness")).await.unwrap().outcome()).await.unwrap();
    drop((old, witness, first));
    let (_client, second) = world.program().await;
    let new = within(second.new_session_as("new", NewSession::in_dir("/"))).await.unwrap();
    within(within(new.prompt("new")).await.unwrap().outcome()).await.unwrap();
    second.flush().await.unwrap();
    let id = |name: &'static str| {
        let second = second.clone();
        async move { second.get(name).await.unwrap().unwrap().agent_session.unwrap().id }
    };
    assert_eq!((id("old").await, id("new").await), ("same".to_owned(), "same".to_owned()));

    let (_client, third) = world.program().await;
    let restored = within(third.session("old").resume()).await.unwrap().unwrap();
    assert_eq!(restored.by, RestoredBy::Replay);
    third.flush().await.unwrap();
    let kept = stored(&**third.store(), "old").await;
    assert_eq!(said(&kept), (1..=5).map(|n| format!("old {n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_turn_of_another_process_whose_session_is_archived_has_one_end() {
    let steps = vec![Step::Say("begun".into()), Step::WaitForCancel];
    let world = World::new(ServerKind::Shared, Script::steps(steps)).await;
    let first = world.options().await.on_turn_drop(DropPolicy::Cancel).build().unwrap();
    let mut events = first.events();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let turn = within(session.prompt("go")).await.unwrap();
    has_stored(&first, "mine", StoredEventKind::Update).await;
    let (_client, second) = world.program().await;
    within(second.archive("mine")).await.unwrap();
    drop(turn);
    event(&mut events, |event| matches!(event, Event::TurnEnded(_)).then_some(())).await;
    within(first.flush()).await.unwrap();
    let kept = stored(&**second.store(), "mine").await;
    let ends = kept.iter().filter(|event| event.kind == StoredEventKind::TurnEnded).count();
    assert_eq!(ends, 1, "{kept:#?}");
}

#[tokio::test]
async fn what_was_lost_before_the_position_of_a_session_does_not_interrupt_its_turn() {
    let steps =
        vec![Step::Say("first".into()), Step::Wait(Duration::from_millis(300)), Step::Say("second".into())];
    let script = Script::steps([steps, vec![Step::WaitForCancel]].concat());
    let world = World::new(ServerKind::Shared, script).await;
    let first = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let _turn = within(session.prompt("go")).await.unwrap();
    has_stored(&first, "mine", StoredEventKind::Update).await;
    world.server.inject(Fault::MalformedEvent("{".to_owned()));
    within(async {
        while said(&stored(&**first.store(), "mine").await).len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;

    let (_, second) = world.program().await;
    let session = second.session("mine");
    within(session.resume()).await.unwrap();
    assert!(session.open_turn().is_some(), "it is running");
    within(session.cancel()).await.unwrap();
    within(session.open_turn_ended()).await;
    second.flush().await.unwrap();
    let events = stored(&**second.store(), "mine").await;
    let lost = events.iter().filter(|event| event.kind == StoredEventKind::Lost);
    assert_eq!((lost.count(), end_of(&events, "go").error), (1, None), "{events:#?}");
}

#[tokio::test]
async fn a_session_whose_id_another_session_has_after_a_restart_has_a_gap_in_its_turn() {
    let ids = |number| if number <= 2 { "a" } else { "b" }.to_owned();
    let world = World::new(ServerKind::Shared, waiting(Ability::Neither).session_ids(ids)).await;
    let first = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let turn = within(session.prompt("go")).await.unwrap();
    has_stored(&first, "mine", StoredEventKind::Update).await;
    // It ends without releasing anything.
    drop((turn, session, first));
    world.server.restart(State::Lost).await;
    let (_client, second) = world.program().await;
    let _other = within(second.new_session_as("other", NewSession::in_dir("/"))).await.unwrap();
    let record = second.get("mine").await.unwrap().unwrap();
    assert_eq!(record.agent_session, None, "the session `a` of the agent is that of `other` now");
    let restored = within(second.session("mine").resume()).await.unwrap();
    assert_eq!(restored.map(|restored| restored.by), Some(RestoredBy::Replay));
    let kept = stored(&**second.store(), "mine").await;
    assert_eq!(kinds(&kept), ["prompt", "update", "gap", "turn_ended", "restored"]);
}

#[tokio::test]
async fn a_database_that_fails_is_not_retried_for_each_append() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let store = Gated::new(world.store().await);
    let options = options(&world.server, world.kind).shared_store(store.clone());
    let sessions = options.stored(|options| options.retry_for(Duration::from_millis(200))).build().unwrap();
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    ask(&session, "one").await;
    within(sessions.flush()).await.unwrap();
    store.broken.store(true, Ordering::SeqCst);
    store.refusing.store(true, Ordering::SeqCst);
    let mut events = sessions.events();
    let agent_session = session.agent_session().unwrap().id().to_owned();
    let mut attempts = Vec::new();
    for n in 0..2 {
        let before = store.refusals();
        let content = json!({"type": "text", "text": format!("late {n}")});
        let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
        let params = json!({"sessionId": agent_session, "update": update});
        world.server.emit(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
        event(&mut events, |event| matches!(event, Event::Update(_)).then_some(())).await;
        within(sessions.flush()).await.unwrap_err();
        attempts.push(store.refusals() - before);
    }
    assert!(attempts[0] > 1 && attempts[1] == 1, "{attempts:?}");
}
