//! Shutting down although one session cannot be stored.

use std::time::Duration;

use sandbox_agent_sdk::sessions::{SessionStatus, SessionStore as _, Suspend};
use sandbox_agent_sdk::{NewSession, ServerKind};

use crate::gated::Gated;
use crate::support::within;
use crate::world::{Ability, World, agent, options};

#[tokio::test]
async fn sessions_are_suspended_although_events_cannot_be_stored() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let store = Gated::new(world.store().await);
    let client = options(&world.server, world.kind).shared_store(store.clone());
    let client = client.stored(|options| options.retry_for(Duration::from_millis(400))).build().unwrap();
    let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let _gate = store.appending.lock().await;
    within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
    within(client.shut_down(Suspend::Own)).await.unwrap_err();
    assert_eq!(store.get("mine").await.unwrap().unwrap().status, SessionStatus::Suspended);
}
