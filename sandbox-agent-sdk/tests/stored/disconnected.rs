//! Processes that disconnect, or lose their connection, while their agent works on a shared endpoint.

use std::time::Duration;

use mock_server::{Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::limits::Limits;
use sandbox_agent_sdk::requests::{ClaimedRequest, PermissionRequest};
use sandbox_agent_sdk::sessions::{RestoredBy, StoredClient, StoredEventKind, Suspend};
use sandbox_agent_sdk::{DropPolicy, Error, Event, NewSession, ServerKind};

use crate::killed::has_stored;
use crate::support::{event, within};
use crate::world::{Ability, World, counting, ends, said, stored};

/// How long nothing may happen.
const QUIET: Duration = Duration::from_millis(500);

/// How a process ends the use of its connection.
#[derive(Debug, Clone, Copy)]
enum Way {
    Disconnect,
    ShutDown,
}

impl Way {
    const ALL: [Self; 2] = [Self::Disconnect, Self::ShutDown];

    async fn take(self, client: &StoredClient) {
        match self {
            Self::Disconnect => within(client.disconnect()).await.unwrap(),
            Self::ShutDown => drop(within(client.shut_down(Suspend::Own)).await.unwrap()),
        }
    }
}

fn asking() -> Script {
    Script::new(|_| {
        let ask = Step::AskPermission(Permission::new(ToolCall::new("call-1", "Continue?")));
        vec![ask, Step::Say("done".into())]
    })
}

fn permission(event: Event) -> Option<PermissionRequest> {
    match event {
        Event::Permission(request) => Some(request),
        _ => None,
    }
}

#[tokio::test]
async fn a_turn_of_a_process_that_disconnects_is_followed_to_its_end_by_the_next_owner() {
    const COUNT: usize = 300;
    for way in Way::ALL {
        let world = World::new(ServerKind::Shared, counting(Ability::Load, COUNT)).await;
        let (_client, first) = world.program().await;
        let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(session.prompt("go")).await.unwrap();
        has_stored(&first, "mine", StoredEventKind::Update).await;
        way.take(&first).await;
        let error = within(turn.outcome()).await.unwrap_err();
        assert!(matches!(error, Error::Disconnected { .. }), "{way:?}: {error:?}");
        drop((turn, session, first));

        let (_client, second) = world.program().await;
        let session = second.session("mine");
        let restored = within(session.resume()).await.unwrap().unwrap();
        assert_eq!(restored.by, RestoredBy::Attach, "{way:?}: the turn is running");
        let open = session.open_turn().expect("it is running");
        // The prompt waits for the end of that turn.
        within(within(session.prompt("again")).await.unwrap().outcome()).await.unwrap();
        second.flush().await.unwrap();
        let kept = stored(&**second.store(), "mine").await;
        let first: Vec<_> =
            kept.iter().filter(|event| event.turn_id.as_ref() == Some(&open.turn_id)).cloned().collect();
        assert_eq!(said(&first).len(), COUNT, "{way:?}: all of its text is its own");
        let end = first.last().unwrap().turn_end().unwrap();
        assert_eq!(end.stop_reason.map(|reason| reason.to_string()).as_deref(), Some("end_turn"), "{way:?}");
        assert_eq!((ends(&kept).len(), said(&kept).len()), (2, 2 * COUNT), "{way:?}");
        assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{way:?}");
    }
}

#[tokio::test]
async fn a_process_that_connects_again_follows_its_own_turn() {
    const COUNT: usize = 300;
    let world = World::new(ServerKind::Shared, counting(Ability::Load, COUNT)).await;
    let (client, program) = world.program().await;
    let session = within(program.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("go")).await.unwrap();
    has_stored(&program, "mine", StoredEventKind::Update).await;
    within(program.disconnect()).await.unwrap();
    within(turn.outcome()).await.unwrap_err();
    within(client.connect()).await.unwrap();
    within(within(session.prompt("again")).await.unwrap().outcome()).await.unwrap();
    program.flush().await.unwrap();
    let kept = stored(&**program.store(), "mine").await;
    let counts: Vec<usize> = said(&kept).iter().map(|text| text.trim().parse().unwrap()).collect();
    let expected: Vec<usize> = (1..=COUNT).chain(1..=COUNT).collect();
    assert_eq!(counts, expected);
    assert!(ends(&kept).iter().all(|end| end.turn_end().unwrap().stop_reason.is_some()));
    assert_eq!(world.server.messages("session/load").len(), 0, "nothing is loaded during a turn");
}

#[tokio::test]
async fn an_open_permission_of_a_process_that_disconnects_is_left_to_the_next_owner() {
    for way in Way::ALL {
        let world = World::new(ServerKind::Shared, asking()).await;
        let (client, first) = world.program().await;
        let mut asked = client.events().deciding();
        let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let turn = within(session.prompt("go")).await.unwrap();
        let here = event(&mut asked, permission).await;
        has_stored(&first, "mine", StoredEventKind::Permission).await;
        way.take(&first).await;
        assert!(here.allow_once().is_err(), "{way:?}: the process does not decide it any more");
        let is_answered = world.server.wait_for_answers(|answers| !answers.is_empty(), QUIET).await;
        assert!(!is_answered, "{way:?}: {:?}", world.server.answers());
        drop((turn, asked, session, client, first));
        is_decided_by_the_next_owner(&world).await;
    }
}

/// The next owner is offered the open permission, and its decision is what the agent receives and what is stored.
async fn is_decided_by_the_next_owner(world: &World) {
    let (client, next) = world.program().await;
    let mut asked = client.events().deciding();
    let session = next.session("mine");
    within(session.resume()).await.unwrap();
    event(&mut asked, permission).await.allow_once().unwrap();
    within(session.open_turn_ended()).await;
    next.flush().await.unwrap();
    let kept = stored(&**next.store(), "mine").await;
    assert_eq!(said(&kept), ["permission: allow_once", "done"]);
    let answers: Vec<_> = kept.iter().filter(|event| event.kind == StoredEventKind::Answered).collect();
    assert_eq!(answers.len(), 1, "{answers:#?}");
}

#[tokio::test]
async fn an_open_permission_of_a_session_that_a_process_no_longer_owns_is_not_cancelled_when_it_disconnects()
{
    for is_released in [true, false] {
        let world = World::new(ServerKind::Shared, asking()).await;
        let (client, first) = world.program().await;
        let mut asked = client.events().deciding();
        let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let turn = within(session.prompt("go")).await.unwrap();
        let _here = event(&mut asked, permission).await;
        has_stored(&first, "mine", StoredEventKind::Permission).await;
        let mut second = None;
        if is_released {
            within(session.release()).await.unwrap();
        } else {
            let (client, program) = world.program().await;
            let asked = client.events().deciding();
            within(program.resume("mine")).await.unwrap();
            second = Some((program, asked));
        }
        within(first.disconnect()).await.unwrap();
        let is_answered = world.server.wait_for_answers(|answers| !answers.is_empty(), QUIET).await;
        assert!(!is_answered, "released: {is_released}: {:?}", world.server.answers());
        drop((turn, second));
        is_decided_by_the_next_owner(&world).await;
    }
}

#[tokio::test]
async fn a_permission_of_a_session_that_a_process_no_longer_owns_does_not_count_as_open() {
    for is_decided in [true, false] {
        let world = World::new(ServerKind::Shared, asking()).await;
        let limits = Limits::default().open_requests(1);
        let first = world.options().await.limits(limits).on_turn_drop(DropPolicy::Detach).build().unwrap();
        let mut asked = first.client().events().deciding();
        let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let _turn = within(session.prompt("go")).await.unwrap();
        let here = event(&mut asked, permission).await;
        has_stored(&first, "mine", StoredEventKind::Permission).await;
        within(session.release()).await.unwrap();
        if is_decided {
            // Too late: the next owner decides it.
            let _ = here.reject_once();
        }
        within(here.closed()).await;
        assert_eq!(world.server.answers().len(), 0, "decided: {is_decided}");
        let other = within(first.new_session_as("other", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(other.prompt("go")).await.unwrap();
        event(&mut asked, permission).await.allow_once().unwrap();
        within(turn.outcome()).await.unwrap();
        is_decided_by_the_next_owner(&world).await;
    }
}

#[tokio::test]
async fn a_permission_that_another_client_answered_does_not_count_as_open_after_its_turn() {
    let world = World::new(ServerKind::Shared, asking()).await;
    let limits = Limits::default().open_requests(1);
    let client = world.options().await.limits(limits).build().unwrap();
    let mut asked = client.events().deciding();
    // It answers for the first program, and stores nothing.
    let other = crate::support::options(&world.server, world.kind).build().unwrap();
    within(other.list_models(None)).await.unwrap();
    let mut unclaimed = other.events().deciding();
    let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("go")).await.unwrap();
    let here = event(&mut asked, permission).await;
    let there = event(&mut unclaimed, |event| match event {
        Event::UnclaimedRequest(request) => Some(request),
        _ => None,
    })
    .await;
    let Ok(ClaimedRequest::Permission(there)) = there.claim() else { panic!("a permission") };
    there.allow_once().unwrap();
    within(turn.outcome()).await.unwrap();
    within(here.closed()).await;
    let session = within(client.new_session_as("second", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("go")).await.unwrap();
    event(&mut asked, permission).await.allow_once().unwrap();
    within(turn.outcome()).await.unwrap();
}
