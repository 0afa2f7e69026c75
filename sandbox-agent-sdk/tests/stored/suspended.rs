//! Sessions that were suspended during a turn of another process.

use std::sync::atomic::Ordering;

use mock_server::{Script, Step};
use sandbox_agent_sdk::sessions::{RestoredBy, SessionStatus, StoredEventKind, Suspend};
use sandbox_agent_sdk::{NewSession, ServerKind, StopReason};

use crate::gated::Gated;
use crate::killed::kill_a_program;
use crate::support::{KINDS, within};
use crate::world::{Ability, World, options, stored};

/// An agent that answers "go" with these steps, and every other prompt with "again".
fn agent(go: Vec<Step>) -> Script {
    let script = Script::new(move |turn| {
        let prompt = turn.params["prompt"].as_array().unwrap();
        match prompt.last().unwrap()["text"].as_str() {
            Some("go") => go.clone(),
            _ => vec![Step::Say("again".into())],
        }
    });
    script.initialize(Ability::Load.initialize())
}

#[tokio::test]
async fn a_session_that_was_suspended_before_its_turn_ended_for_good_can_be_resumed() {
    for kind in KINDS {
        let steps = vec![Step::Say("begun".into()), Step::Stop("max_turn_requests".into())];
        let world = World::new(kind, agent(steps)).await;
        let store = Gated::new(world.store().await);
        let first = options(&world.server, kind).shared_store(store.clone()).build().unwrap();
        let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        // The process stores nothing after the prompt.
        store.refusing.store(true, Ordering::SeqCst);
        within(async { session.prompt("go").await?.outcome().await }).await.unwrap();
        drop((session, first));
        let (_client, other) = world.program().await;
        assert_eq!(within(other.shut_down(Suspend::All)).await.unwrap(), 1, "{kind}");

        let (_client, second) = world.program().await;
        let session = second.session("mine");
        within(session.resume()).await.unwrap();
        assert_eq!(session.record().await.unwrap().status, SessionStatus::Active, "{kind}");
        let kept = stored(&**second.store(), "mine").await;
        let end = kept.iter().find_map(|event| event.turn_end()).unwrap();
        assert_eq!(end.stop_reason, Some(StopReason::MaxTurnRequests), "{kind}: {kept:#?}");
        assert!(second.store().open("mine").await.unwrap().is_empty(), "{kind}");
        let text = within(async { session.prompt("more").await?.text().await }).await.unwrap();
        assert_eq!(text, "again", "{kind}");
    }
}

#[tokio::test]
async fn a_suspended_session_is_active_again_while_its_turn_runs_on_another_endpoint() {
    let steps = vec![Step::Say("begun".into()), Step::WaitForCancel];
    let world = World::new(ServerKind::PerAgent, agent(steps)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let (_client, other) = world.program().await;
    assert_eq!(within(other.shut_down(Suspend::All)).await.unwrap(), 2);

    let (_client, second) = world.program().await;
    let session = second.session("mine");
    let restored = within(session.resume()).await.unwrap().unwrap();
    assert_eq!(restored.by, RestoredBy::Attach, "the turn is running");
    assert_eq!(session.record().await.unwrap().status, SessionStatus::Active);
    within(session.cancel()).await.unwrap();
    let text = within(async { session.prompt("more").await?.text().await }).await.unwrap();
    assert_eq!(text, "again");
}
