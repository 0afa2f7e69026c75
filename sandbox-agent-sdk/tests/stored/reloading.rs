//! Reading histories: that of the agent, and that of the store.

use std::sync::atomic::Ordering;

use sandbox_agent_sdk::sessions::RestoredBy;
use sandbox_agent_sdk::{Error, NewSession, ServerKind};

use crate::gated::Gated;
use crate::support::within;
use crate::world::{Ability, World, agent, ask, options, said, stored};

#[tokio::test]
async fn a_session_that_is_loaded_again_has_the_history_of_the_agent_and_nothing_is_stored_twice() {
    let world = World::new(ServerKind::Shared, agent(Ability::Load)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    ask(&session, "one").await;
    let loaded = within(session.reload()).await.unwrap();
    let history: Vec<_> = loaded.history().iter().filter_map(|update| update.message_text()).collect();
    assert_eq!(history, ["re: one; "]);
    ask(&session, "two").await;
    within(sessions.flush()).await.unwrap();
    drop((session, sessions));
    let (_client, sessions) = world.program().await;
    within(sessions.resume("mine")).await.unwrap();
    assert_eq!(said(&stored(&**sessions.store(), "mine").await), ["re: one; ", "re: two; "]);
}

#[tokio::test]
async fn a_session_that_the_agent_cannot_load_is_unchanged_by_a_reload() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let error = within(session.reload()).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    ask(&session, "one").await;
    within(sessions.flush()).await.unwrap();
    assert_eq!(said(&stored(&**sessions.store(), "mine").await), ["re: one; "]);
}

#[tokio::test]
async fn no_stored_history_is_read_without_a_limit_of_bytes() {
    for (ability, by) in [(Ability::Load, RestoredBy::Load), (Ability::Neither, RestoredBy::Replay)] {
        let world = World::new(ServerKind::Shared, agent(ability)).await;
        let store = Gated::new(world.store().await);
        let program = || options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
        let first = program();
        let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
        within(first.flush()).await.unwrap();
        drop((session, first));
        let second = program();
        let session = second.session("mine");
        let restored = within(session.resume()).await.unwrap().unwrap();
        assert_eq!(restored.by, by);
        ask(&session, "two").await;
        assert_eq!(store.unbounded.load(Ordering::SeqCst), 0, "{by:?}");
    }
}
