//! What is stored of a session that is archived or deleted while something happens in it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mock_server::{Script, Step};
use sandbox_agent_sdk::sessions::{SessionStatus, SessionStore as _, StoreError, StoredEventKind};
use sandbox_agent_sdk::{Error, NewSession, ServerKind};

use crate::gated::Gated;
use crate::killed::has_stored;
use crate::support::within;
use crate::world::{World, ends, options, said, stored};

fn waiting() -> Script {
    Script::steps(vec![Step::Say("begun".into()), Step::WaitForCancel])
}

#[tokio::test]
async fn a_turn_that_ends_while_its_session_is_archived_has_one_end_and_no_gap() {
    let world = World::new(ServerKind::Shared, waiting()).await;
    let (_client, first) = world.program().await;
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("go")).await.unwrap();
    has_stored(&first, "mine", StoredEventKind::Update).await;
    let store = Gated::new(world.store().await);
    let second = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let ending = first.clone();
    *store.before_status.lock().unwrap() = Some(Box::new(move || {
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
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{kept:#?}");
}

#[tokio::test]
async fn a_turn_that_begins_while_its_session_is_archived_is_stored_as_interrupted() {
    let world = World::new(ServerKind::Shared, waiting()).await;
    let (_client, first) = world.program().await;
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    first.flush().await.unwrap();
    let store = Gated::new(world.store().await);
    let second = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let beginning = first.clone();
    *store.before_status.lock().unwrap() = Some(Box::new(move || {
        Box::pin(async move {
            // The turn goes on when this is dropped.
            let turn = within(session.prompt("go")).await.unwrap();
            has_stored(&beginning, "mine", StoredEventKind::Update).await;
            std::mem::forget(turn);
        })
    }));
    within(second.archive("mine")).await.unwrap();
    let kept = stored(&*store, "mine").await;
    let turn = &kept.iter().find(|event| event.kind == StoredEventKind::Prompt).unwrap().turn_id;
    let of_turn = |kind| kept.iter().any(|event| event.kind == kind && event.turn_id == *turn);
    assert!(of_turn(StoredEventKind::Gap) && of_turn(StoredEventKind::TurnEnded), "{kept:#?}");
    assert!(store.open("mine").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_turn_that_could_not_be_closed_when_its_session_was_archived_is_closed_by_archiving_it_again() {
    let world = World::new(ServerKind::Shared, waiting()).await;
    let store = Gated::new(world.store().await);
    let program = options(&world.server, world.kind).shared_store(store.clone());
    let program = program.stored(|options| options.retry_for(Duration::from_millis(300)));
    let sessions = program.build().unwrap();
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let turn = within(session.prompt("go")).await.unwrap();
    has_stored(&sessions, "mine", StoredEventKind::Update).await;
    let refusing = store.clone();
    *store.after_open.lock().unwrap() =
        Some(Box::new(move || Box::pin(async move { refusing.refusing.store(true, Ordering::SeqCst) })));
    let error = within(session.archive()).await.unwrap_err();
    assert!(matches!(error, Error::Store(StoreError::Unavailable(_))), "{error:?}");
    assert_eq!(session.record().await.unwrap().status, SessionStatus::Archived);
    store.refusing.store(false, Ordering::SeqCst);
    let error = within(session.archive()).await.unwrap_err();
    assert!(matches!(error, Error::Status(_)), "{error:?}");
    assert!(store.open("mine").await.unwrap().is_empty());
    drop(turn);
}

#[tokio::test]
async fn what_waits_to_be_stored_of_a_session_that_could_not_be_deleted_is_stored() {
    let wait = Step::Wait(Duration::from_millis(200));
    let script = Script::steps(vec![Step::Say("first".into()), wait, Step::Say("second".into())]);
    let world = World::new(ServerKind::Shared, script).await;
    let store = Gated::new(world.store().await);
    let sessions = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let gate = store.appending.lock().await;
    let mut turn = within(session.prompt("go")).await.unwrap();
    within(turn.outcome()).await.unwrap();
    // An append waits for the store, and later events wait for that append.
    assert_eq!(store.waiting.load(Ordering::SeqCst), 1);
    store.refusing.store(true, Ordering::SeqCst);
    let error = within(session.delete()).await.unwrap_err();
    assert!(matches!(error, Error::Store(StoreError::Unavailable(_))), "{error:?}");
    store.refusing.store(false, Ordering::SeqCst);
    drop(gate);
    within(sessions.flush()).await.unwrap();
    let kept = stored(&*store, "mine").await;
    assert_eq!(said(&kept), ["first", "second"]);
    assert_eq!(ends(&kept).len(), 1, "{kept:#?}");
}
