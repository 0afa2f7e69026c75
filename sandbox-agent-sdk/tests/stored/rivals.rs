//! Processes that acquire a session at the same time.

use std::time::Duration;

use mock_server::Step;
use sandbox_agent_sdk::{NewSession, ServerKind};
use serde_json::json;

use crate::support::within;
use crate::world::{Ability, World, agent, ask};

#[tokio::test]
async fn two_processes_that_acquire_a_session_at_once_both_get_it_although_loading_takes_long() {
    let script = agent(Ability::Load).on_request(|method, _| {
        let load = vec![Step::Wait(Duration::from_millis(900)), Step::Finish(json!({}))];
        (method == "session/load").then_some(load)
    });
    let world = World::new(ServerKind::Shared, script).await;
    let (_client, maker) = world.program().await;
    let session = within(maker.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    ask(&session, "one").await;
    maker.flush().await.unwrap();
    drop((session, maker));
    let program = || async {
        let options = world.options().await;
        options.stored(|options| options.retry_for(Duration::from_secs(8))).build().unwrap()
    };
    let (one, other) = (program().await, program().await);
    let (here, there) = within(async { tokio::join!(one.resume("mine"), other.resume("mine")) }).await;
    here.unwrap();
    there.unwrap();
    let loads = world.server.messages("session/load").len();
    assert!(loads <= 4, "the session was loaded {loads} times");
}
