//! What happens while a session is made or deleted, and while the store does not answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mock_server::{Fault, MockServer, Script, State, Step};
use sandbox_agent_sdk::sessions::{
    EventsLost, StoreError, StoreOptions, StoredClient, StoredEvent, StoredEventKind,
};
use sandbox_agent_sdk::update::Missed;
use sandbox_agent_sdk::{ConnectionState, Error, Event, Events, NewSession, ServerKind};

use crate::gated::{Gated, Slowness};
use crate::support::{KINDS, event, within};
use crate::world::{Ability, World, agent, ask, counting, options, said, stored};

fn program(world: &World, store: &Arc<Gated>) -> StoredClient {
    let recorder = StoreOptions::default().retry_for(Duration::from_millis(1500));
    options(&world.server, world.kind).shared_store(store.clone()).stored(|_| recorder).build().unwrap()
}

fn not_stored_so_far(events: &mut Events) -> Vec<EventsLost> {
    let mut lost = Vec::new();
    while let Some(event) = events.try_next() {
        if let Event::EventsLost(loss) = event {
            lost.push(loss);
        }
    }
    lost
}

#[tokio::test]
async fn a_session_that_ends_while_it_is_made_is_known_to_have_ended() {
    for (kind, ability) in KINDS.into_iter().flat_map(|kind| Ability::ALL.map(|ability| (kind, ability))) {
        let world = World::new(kind, agent(ability)).await;
        let store = Gated::new(world.store().await);
        let client = program(&world, &store);
        let mut events = client.events();
        let server = Arc::new(world);
        let killer = Arc::clone(&server);
        // The agent has answered, and the record is not written yet.
        *store.before_binding.lock().unwrap() = Some(Box::new(move || {
            Box::pin(async move {
                killer.kill_agent();
                event(&mut events, |event| matches!(event, Event::SessionEnded(_)).then_some(())).await;
            })
        }));
        let sessions = client.clone();
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        assert!(session.agent_session().is_none(), "{kind} {ability:?}: the agent does not have it any more");
        sessions.flush().await.unwrap();
        assert!(session.record().await.unwrap().details.termination_info.is_some(), "{kind} {ability:?}");
        let kept = stored(&**sessions.store(), "mine").await;
        let ends = kept.iter().filter(|event| event.kind == StoredEventKind::Ended).count();
        assert_eq!(ends, 1, "{kind} {ability:?}");
        ask(&session, "one").await;
        assert!(session.record().await.unwrap().details.termination_info.is_none(), "{kind} {ability:?}");
    }
}

#[tokio::test]
async fn a_connection_that_is_lost_while_a_session_is_made_costs_no_prompt() {
    let world = Arc::new(World::new(ServerKind::PerAgent, agent(Ability::Resume)).await);
    let store = Gated::new(world.store().await);
    let client = program(&world, &store);
    let mut events = client.events();
    let restarted = Arc::clone(&world);
    *store.before_binding.lock().unwrap() = Some(Box::new(move || {
        Box::pin(async move {
            restarted.server.restart(State::Lost).await;
            event(&mut events, |event| match event {
                Event::ServerRestarted | Event::Connection(ConnectionState::Lost(_)) => Some(()),
                _ => None,
            })
            .await;
        })
    }));
    let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    ask(&session, "one").await;
}

#[tokio::test]
async fn everything_that_comes_while_a_session_is_made_is_stored_or_counted() {
    // More arrives before the response than is held for an unknown session.
    const UPDATES: usize = 9_000;
    let script = agent(Ability::Resume).on_request(|method, _| {
        let update = |n| {
            serde_json::json!({"method": "session/update", "params": {"sessionId": "early", "update": {
                "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": format!("{n} ")}}}})
        };
        let mut steps: Vec<Step> = (1..=UPDATES).map(update).map(Step::Raw).collect();
        steps.push(Step::Finish(serde_json::json!({"sessionId": "early"})));
        (method == "session/new").then_some(steps)
    });
    for buffer in [1_024, 2 * UPDATES] {
        let server = MockServer::builder().agent("mock", script.clone()).replay_buffer(buffer);
        let server = server.released_quirks(false).start().await;
        let kind = ServerKind::PerAgent;
        let world = World { server, directory: tempfile::tempdir().unwrap(), kind };
        let (_client, sessions) = world.program().await;
        let mut events = sessions.events();
        within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let flushed = within(sessions.flush()).await;
        let kept = stored(&**sessions.store(), "mine").await;
        let gaps = kept.iter().filter(|event| event.kind == StoredEventKind::Gap);
        let bound = |event: &StoredEvent, name: &str| event.payload[name].as_u64().unwrap();
        let missing: u64 = gaps.map(|gap| bound(gap, "to") + 1 - bound(gap, "from")).sum();
        let marks = kept.iter().filter(|event| event.kind == StoredEventKind::Lost);
        let lost: u64 = marks.map(|mark| bound(mark, "count")).sum();
        let all = said(&kept).len() as u64 + lost + missing;
        assert_eq!(all, UPDATES as u64, "{lost} are lost, {missing} are missing");
        assert!(buffer < UPDATES || lost > 0 && missing == 0, "{lost} are lost, {missing} are missing");
        let losses = match flushed {
            Err(Error::EventsLost(losses)) => losses.iter().map(|loss| loss.count).sum(),
            flushed => flushed.map(|()| 0).unwrap(),
        };
        assert_eq!(losses, lost, "the flush reports what is lost");
        let mut reported = 0;
        while reported < lost {
            reported += event(&mut events, |event| match event {
                Event::EventsLost(loss) => Some(loss.count),
                _ => None,
            })
            .await;
        }
        assert_eq!(reported, lost);
    }
}

#[tokio::test]
async fn what_waits_to_be_stored_of_a_session_that_is_deleted_is_not_missed() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let store = Gated::new(world.store().await);
    let client = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let mut events = client.events();
    let sessions = client.clone();
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let gate = store.appending.lock().await;
    ask(&session, "one").await;
    assert!(session.delete().await.unwrap());
    drop(gate);
    within(sessions.flush()).await.unwrap();
    assert!(not_stored_so_far(&mut events).is_empty());
    // Another one of its id is another one.
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    ask(&session, "two").await;
    sessions.flush().await.unwrap();
    assert_eq!(said(&stored(&**sessions.store(), "mine").await), ["re: two; "]);
}

#[tokio::test]
async fn a_session_that_another_process_deletes_is_reported_and_released() {
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, 60)).await;
    let (client, sessions) = world.program().await;
    let (_other, others) = world.program().await;
    let mut events = client.events();
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let agent_session = session.agent_session().unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    within(turn.next()).await.unwrap();
    assert!(others.delete("mine").await.unwrap());
    within(async {
        while session.agent_session().is_some() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    within(turn.outcome()).await.unwrap();
    let error = within(sessions.flush()).await.unwrap_err();
    assert!(matches!(error, Error::EventsLost(_)), "{error:?}");
    let lost = not_stored_so_far(&mut events);
    assert!(!lost.is_empty());
    let is_not_found = |lost: &EventsLost| {
        let error = lost.error.as_ref().and_then(|error| error.downcast_ref());
        matches!(error, Some(StoreError::NotFound { .. }))
    };
    assert!(lost.iter().all(is_not_found), "{lost:?}");
    // Nothing more of it is missed.
    within(agent_session.prompt("count").outcome()).await.unwrap();
    within(sessions.flush()).await.unwrap();
    assert!(not_stored_so_far(&mut events).is_empty());
}

#[tokio::test]
async fn a_first_connection_that_failed_is_made_by_the_next_call() {
    for kind in KINDS {
        let world = World::new(kind, agent(Ability::Resume)).await;
        world.server.inject(Fault::post_status(500).on_method("initialize").times(1));
        let (client, sessions) = world.program().await;
        within(async {
            while client.state() != ConnectionState::Disconnected {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        assert_eq!(world.server.fired("PostStatus"), 1, "{kind}");
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_fails_what_needs_it_in_time_and_holds_up_nothing_else() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let store = Gated::new(world.store().await);
    let client = program(&world, &store);
    let mut events = client.events();
    let sessions = client.clone();
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let agent_session = session.agent_session().unwrap();
    *store.slowness.lock().unwrap() = Slowness::Stuck;
    let unavailable = |error| matches!(error, Error::Store(StoreError::Unavailable(_)));
    assert!(unavailable(within(session.prompt("one")).await.unwrap_err()));
    assert!(unavailable(within(session.resume()).await.unwrap_err()));
    let created = within(sessions.new_session_as("other", NewSession::in_dir("/"))).await;
    assert!(unavailable(created.unwrap_err()));
    // The agent responds to every prompt, and events that the store did not accept are reported.
    assert_eq!(within(agent_session.prompt("two").text()).await.unwrap(), "re: two; ");
    let error = within(sessions.flush()).await.unwrap_err();
    assert!(matches!(error, Error::EventsLost(_)) || unavailable(error));
    event(&mut events, |event| match event {
        Event::EventsLost(loss) if loss.session_id == "mine" => Some(loss.count),
        _ => None,
    })
    .await;
    *store.slowness.lock().unwrap() = Slowness::None;
    ask(&session, "three").await;
    sessions.flush().await.unwrap();
    let kept = stored(&**sessions.store(), "mine").await;
    assert!(kept.iter().any(|event| event.kind == StoredEventKind::Lost));
    assert_eq!(said(&kept).last(), Some(&"re: three; "));
}

#[tokio::test]
async fn a_slow_store_costs_no_event() {
    let world =
        World::new(ServerKind::Shared, Script::steps(vec![Step::Flood { updates: 500, bytes: 10 }])).await;
    let store = Gated::new(world.store().await);
    *store.slowness.lock().unwrap() = Slowness::Slow(Duration::from_millis(200));
    let client = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let mut events = client.events();
    let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("flood")).await.unwrap();
    let mut updates = 0;
    while within(turn.next()).await.is_some() {
        updates += 1;
    }
    assert_eq!(updates, 500);
    within(client.flush()).await.unwrap();
    assert!(not_stored_so_far(&mut events).is_empty());
    *store.slowness.lock().unwrap() = Slowness::None;
    let kept = stored(&*store, "mine").await;
    assert_eq!(kept.iter().filter(|event| event.kind == StoredEventKind::Update).count(), 500);
}

#[tokio::test]
async fn a_record_whose_write_was_not_confirmed_is_recognised_as_own() {
    for kind in KINDS {
        let world = World::new(kind, agent(Ability::Resume)).await;
        let store = Gated::new(world.store().await);
        let client = program(&world, &store);
        let mut events = client.events();
        let sessions = client.clone();
        store.mute.store(true, Ordering::SeqCst);
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
        within(async { session.prompt("die").await?.text().await }).await.unwrap_err();
        sessions.flush().await.unwrap();
        store.mute.store(true, Ordering::SeqCst);
        ask(&session, "two").await;
        sessions.flush().await.unwrap();
        store.mute.store(true, Ordering::SeqCst);
        within(session.release()).await.unwrap();
        ask(&session, "three").await;
        sessions.flush().await.unwrap();
        let kept = stored(&**sessions.store(), "mine").await;
        assert_eq!(said(&kept), ["re: one; ", "dying; ", "re: two; ", "re: three; "], "{kind}");
        while let Some(event) = events.try_next() {
            assert!(
                !matches!(event, Event::OwnershipLost { .. } | Event::EventsLost(_)),
                "{kind}: {event:?}"
            );
        }
    }
}

#[tokio::test]
async fn words_that_arrive_after_the_unproven_end_of_their_turn_are_stored_with_it() {
    for prompts_again in [false, true] {
        let world = World::new(ServerKind::Shared, agent(Ability::Neither)).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        // The server is known to echo responses.
        within(async { session.prompt("zero").await?.outcome().await }).await.unwrap();
        // The stream is held back for longer than a response waits for its echo.
        let late = Fault::BodyBeforeUpdates { delay: Duration::from_secs(4) };
        world.server.inject(late.on_method("session/prompt").times(1));
        let outcome = within(async { session.prompt("one").await?.outcome().await }).await.unwrap();
        assert_eq!(outcome.missing, [Missed::Unverified]);
        if prompts_again {
            within(async { session.prompt("two").await?.outcome().await }).await.unwrap();
        }
        let count = if prompts_again { 3 } else { 2 };
        let kept = within(async {
            loop {
                sessions.flush().await.unwrap();
                let kept = stored(&**sessions.store(), "s").await;
                if said(&kept).len() == count {
                    return kept;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let prompts = kept.iter().filter(|event| event.kind == StoredEventKind::Prompt);
        for (prompt, text) in prompts.zip(["re: zero; ", "re: one; ", "re: two; "]) {
            let of_turn = kept.iter().filter(|event| event.turn_id == prompt.turn_id).cloned();
            assert_eq!(said(&of_turn.collect::<Vec<_>>()), [text], "{kept:#?}");
        }
        let end = kept.iter().filter_map(|event| event.turn_end()).nth(1).unwrap();
        assert_eq!(end.missing, [Missed::Unverified]);
    }
}
