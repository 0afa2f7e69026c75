//! How far a process has read the stream, for sessions in which nothing happens.

use std::time::Duration;

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::sessions::StoredEventKind;
use sandbox_agent_sdk::{DropPolicy, NewSession, ServerKind};

use crate::gated::Gated;
use crate::support::within;
use crate::world::{Ability, World, options, said, stored};

#[tokio::test]
async fn a_session_that_is_not_used_again_after_a_lost_connection_costs_the_others_no_gap() {
    let script = Script::new(|_| vec![Step::Flood { updates: 100, bytes: 10 }]);
    let script = script.initialize(Ability::Resume.initialize());
    let server = MockServer::builder().agent("mock", script).replay_buffer(300);
    let server = server.released_quirks(false).start().await;
    let world = World { server, directory: tempfile::tempdir().unwrap(), kind: ServerKind::Shared };
    let (client, first) = world.program().await;
    for id in ["quiet", "unused", "busy"] {
        within(first.new_session_as(id, NewSession::in_dir("/"))).await.unwrap();
    }
    first.flush().await.unwrap();
    within(client.disconnect()).await.unwrap();
    within(client.connect()).await.unwrap();
    within(first.session("quiet").resume()).await.unwrap();
    for _ in 0..6 {
        within(within(first.session("busy").prompt("go")).await.unwrap().outcome()).await.unwrap();
    }
    first.flush().await.unwrap();
    // It ends without releasing anything.
    drop((client, first));
    let (_client, second) = world.program().await;
    within(second.session("quiet").resume()).await.unwrap();
    let kept = stored(&**second.store(), "quiet").await;
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{kept:#?}");
    // What happened in the unused session while no process read it is not known.
    within(second.session("unused").resume()).await.unwrap();
    let kept = stored(&**second.store(), "unused").await;
    assert!(kept.iter().any(|event| event.kind == StoredEventKind::Gap), "{kept:#?}");
}

#[tokio::test]
async fn the_position_is_not_stored_ahead_of_an_event_that_is_stored_after_an_invalid_one() {
    let script = Script::new(|_| {
        let wait = Step::Wait(Duration::from_millis(200));
        let say = |text: &str| Step::Say(text.to_owned());
        vec![say("first"), wait, say("one"), say("invalid"), say("two"), Step::WaitForCancel]
    });
    let world = World::new(ServerKind::Shared, script).await;
    let store = Gated::new(world.store().await);
    let program = options(&world.server, world.kind).shared_store(store.clone());
    let program = program.on_turn_drop(DropPolicy::Detach);
    let first = program.stored(|options| options.retry_for(Duration::from_millis(300))).build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    *store.invalid.lock().unwrap() = Some("invalid");
    let gate = store.appending.lock().await;
    let mut turn = within(session.prompt("go")).await.unwrap();
    // The others are one batch, because the append of the first waits.
    for _ in 0..4 {
        within(turn.next()).await.unwrap();
    }
    drop(gate);
    within(store.refused(1)).await;
    drop((turn, session, first));

    let (_client, second) = world.program().await;
    within(second.session("mine").resume()).await.unwrap();
    let kept = stored(&**second.store(), "mine").await;
    assert_eq!(said(&kept).last(), Some(&"two"), "{kept:#?}");
}
