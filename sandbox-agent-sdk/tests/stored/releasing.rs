//! One program releases a session, and another one acquires it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mock_server::{Script, Step};
use sandbox_agent_sdk::limits::Limits;
use sandbox_agent_sdk::sessions::{RestoredBy, StoredEventKind, Suspend};
use sandbox_agent_sdk::{DropPolicy, NewSession, ServerKind};

use crate::gated::Gated;
use crate::support::within;
use crate::world::{Ability, World, agent, ask, counted, counting, delivered, options, said, stored};

#[tokio::test]
async fn another_program_gets_exactly_the_rest() {
    const COUNT: usize = 60;
    for leave_after in [1, 7, 30] {
        let world = World::new(ServerKind::Shared, counting(Ability::Resume, COUNT)).await;
        let client = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
        let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(session.prompt("count")).await.unwrap();
        for _ in 0..leave_after {
            within(turn.next()).await.unwrap();
        }
        let released = within(session.release()).await.unwrap();
        assert_eq!(released.owner, None);
        drop((turn, session, client));
        let before = stored(&world.store().await, "mine").await;
        assert!(said(&before).len() >= leave_after && said(&before).len() < COUNT, "it left in between");

        let client = world.options().await.build().unwrap();
        let session = client.session("mine");
        let mut events = session.events();
        let restored = within(session.resume()).await.unwrap().unwrap();
        assert_eq!(restored.by, RestoredBy::Attach, "nothing is asked of the agent during a turn");
        assert_eq!(counted(&client, COUNT).await, (1..=COUNT).collect::<Vec<_>>());
        within(session.open_turn_ended()).await;
        within(client.flush()).await.unwrap();
        let kept = stored(&world.store().await, "mine").await;
        let ends = kept.iter().filter(|event| event.kind == StoredEventKind::TurnEnded);
        assert_eq!(ends.count(), 1);
        assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "nothing is missing");
        let rest = delivered(&mut events);
        // What happens after it was acquired is delivered, too.
        assert!(rest.last().is_none_or(|last| last == "60 "), "{rest:?}");
    }
}

#[tokio::test]
async fn a_session_that_is_released_in_a_turn_and_acquired_again_misses_nothing() {
    const COUNT: usize = 60;
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, COUNT)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    for _ in 0..5 {
        within(turn.next()).await.unwrap();
    }
    within(session.release()).await.unwrap();
    within(session.resume()).await.unwrap();
    within(turn.outcome()).await.unwrap();
    assert_eq!(counted(&sessions, COUNT).await, (1..=COUNT).collect::<Vec<_>>());
    within(session.open_turn_ended()).await;
    sessions.flush().await.unwrap();
    let kept = stored(&**sessions.store(), "mine").await;
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "nothing is missing");
    let ends = kept.iter().filter(|event| event.kind == StoredEventKind::TurnEnded).count();
    assert_eq!(ends, 1, "the turn has one end");
}

#[tokio::test]
async fn a_released_session_can_be_prompted_on_every_kind_of_server() {
    for kind in [ServerKind::Shared, ServerKind::PerAgent] {
        for ability in Ability::ALL {
            let world = World::new(kind, agent(ability)).await;
            let (client, sessions) = world.program().await;
            let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
            within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
            within(session.release()).await.unwrap();
            drop((client, sessions, session));
            let (_client, sessions) = world.program().await;
            let session = sessions.session("mine");
            let answer = within(async { session.prompt("two").await?.text().await }).await;
            assert_eq!(answer.unwrap(), "re: two; ", "{kind} {ability:?}");
            sessions.flush().await.unwrap();
            let kept = stored(&**sessions.store(), "mine").await;
            assert_eq!(said(&kept), ["re: one; ", "re: two; "], "{kind} {ability:?}");
            let ends = kept.iter().filter(|event| event.kind == StoredEventKind::TurnEnded).count();
            assert_eq!(ends, 2);
            if kind == ServerKind::Shared {
                assert_eq!(world.server.messages("session/new").len(), 1, "its agent has the session still");
                assert_eq!(world.server.messages("session/load").len(), 0, "{ability:?}");
            }
        }
    }
}

#[tokio::test]
async fn what_the_server_no_longer_has_when_a_session_is_acquired_is_a_gap() {
    let script = Script::new(|turn| match turn.params["prompt"][0]["text"].as_str() {
        Some("flood") => vec![Step::Flood { updates: 1_500, bytes: 4 }],
        _ => vec![Step::Say("here".to_owned())],
    });
    let world = World::new(ServerKind::Shared, script).await;
    let (client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
    within(session.release()).await.unwrap();
    let plain = within(client.new_session(NewSession::in_dir("/"))).await.unwrap();
    within(plain.prompt("flood").outcome()).await.unwrap();
    drop((client, sessions, session, plain));

    let (_client, sessions) = world.program().await;
    let session = sessions.session("mine");
    let answer = within(async { session.prompt("two").await?.text().await }).await;
    assert_eq!(answer.unwrap(), "here");
    sessions.flush().await.unwrap();
    let kept = stored(&world.store().await, "mine").await;
    let gaps: Vec<_> = kept.iter().filter(|event| event.kind == StoredEventKind::Gap).collect();
    let [gap] = gaps[..] else { panic!("{gaps:?}") };
    let bound = |name: &str| gap.payload[name].as_u64().unwrap();
    assert!(bound("to") - bound("from") > 100, "{gap:?}");
    assert_eq!(said(&kept), ["here", "here"]);
}

#[tokio::test]
async fn a_quiet_session_on_a_busy_endpoint_is_no_gap() {
    let script = Script::new(|turn| match turn.params["prompt"][0]["text"].as_str() {
        Some("flood") => vec![Step::Flood { updates: 1_500, bytes: 4 }],
        _ => vec![Step::Say("here".to_owned())],
    });
    let world = World::new(ServerKind::Shared, script).await;
    let (client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
    let busy = within(sessions.new_session_as("busy", NewSession::in_dir("/"))).await.unwrap();
    within(within(busy.prompt("flood")).await.unwrap().outcome()).await.unwrap();
    within(sessions.flush()).await.unwrap();
    // It is killed: nothing is released.
    drop((client, sessions, session, busy));
    tokio::time::sleep(Duration::ZERO).await;

    let (_client, sessions) = world.program().await;
    within(sessions.resume("mine")).await.unwrap();
    sessions.flush().await.unwrap();
    let kept = stored(&world.store().await, "mine").await;
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{kept:?}");
}

#[tokio::test]
async fn a_process_that_stores_nothing_stores_how_far_it_has_read() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let quiet = world.options().await.stored(|options| options.advance_every(8)).build().unwrap();
    within(quiet.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    quiet.flush().await.unwrap();
    let (_client, busy) = world.program().await;
    let session = within(busy.new_session_as("busy", NewSession::in_dir("/"))).await.unwrap();
    let endpoint = quiet.get("mine").await.unwrap().unwrap().endpoint.unwrap();
    let before = quiet.store().scanned_to(quiet.owner(), &endpoint).await.unwrap().map_or(0, |at| at.offset);
    for _ in 0..8 {
        ask(&session, "anything").await;
    }
    within(async {
        loop {
            let now = quiet.store().scanned_to(quiet.owner(), &endpoint).await.unwrap();
            // Each of the eight turns has at least two events, and fewer than `advance_every` are not stored yet.
            if now.is_some_and(|now| now.offset > before + 16 - 8) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn acquiring_a_session_refuses_no_request_of_other_clients() {
    const REQUESTS: usize = 8;
    let world = World::new(ServerKind::Shared, Script::steps(vec![Step::FireRequests(REQUESTS)])).await;
    let (first_client, first) = world.program().await;
    let _deciding = first_client.events().deciding();
    let session = within(first.new_session_as("asking", NewSession::in_dir("/"))).await.unwrap();
    within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let turn = within(session.prompt("go")).await.unwrap();
    within(async {
        while first.store().open("asking").await.unwrap().requests.len() < REQUESTS {
            first.flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let limits = Limits::default().open_requests(2);
    let second = world.options().await.limits(limits).build().unwrap();
    within(second.session("mine").resume()).await.unwrap();
    assert_eq!(world.server.answers().len(), 0, "nothing was answered");
    drop(turn);
}

#[tokio::test]
async fn a_process_that_disconnects_between_turns_leaves_no_gap() {
    for by_shutdown in [false, true] {
        let world = World::new(ServerKind::ConnectionId, agent(Ability::Load)).await;
        for text in ["one", "two", "three"] {
            let (_client, program) = world.program().await;
            let session = within(program.resume_or_create("mine", NewSession::in_dir("/"))).await.unwrap();
            ask(&session, text).await;
            match by_shutdown {
                true => drop(within(program.shut_down(Suspend::Own)).await.unwrap()),
                false => within(program.disconnect()).await.unwrap(),
            }
        }
        let kept = stored(&world.store().await, "mine").await;
        assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{by_shutdown}: {kept:#?}");
        // A process that is killed may have missed something.
        let (_client, program) = world.program().await;
        within(program.resume("mine")).await.unwrap();
        drop(program);
        let (_client, program) = world.program().await;
        within(program.resume("mine")).await.unwrap();
        let kept = stored(&world.store().await, "mine").await;
        assert_eq!(kept.iter().filter(|event| event.kind == StoredEventKind::Gap).count(), 1);
    }
}

#[tokio::test]
async fn that_a_session_is_not_followed_any_more_is_stored_when_the_store_works_again() {
    let world = World::new(ServerKind::Shared, agent(Ability::Load)).await;
    let store = Gated::new(world.store().await);
    let client = options(&world.server, world.kind).shared_store(store.clone());
    let client = client.stored(|options| options.retry_for(Duration::from_millis(50))).build().unwrap();
    let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    ask(&session, "one").await;
    within(client.disconnect()).await.unwrap();
    store.refusing.store(true, Ordering::SeqCst);
    let refused = store.refusals();
    within(client.client().connect_with("mock")).await.unwrap();
    within(store.refused(refused + 1)).await;
    let _ = within(client.flush()).await;
    assert!(session.record().await.unwrap().caught_up);
    store.refusing.store(false, Ordering::SeqCst);
    let _ = within(client.flush()).await;
    assert!(!session.record().await.unwrap().caught_up);
}
