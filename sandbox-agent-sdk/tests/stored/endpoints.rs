//! Endpoints of a released server: each has the agent process and the stream of one program.

use std::time::{Duration, SystemTime};

use mock_server::{Fault, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::store::Suspend;
use sandbox_agent_sdk::sessions::{RestoredBy, RetentionPolicy, SessionStore, StoredEventKind};
use sandbox_agent_sdk::{DropPolicy, Error, Event, NewSession, ServerKind};

use crate::gated::Gated;
use crate::killed::{has_stored, kill_a_program};
use crate::support::{LIMIT, event, within};
use crate::world::{Ability, World, counting, options, said, stored};

const COUNT: usize = 300;

/// The endpoints that were ended.
pub(crate) fn ended(world: &World) -> Vec<String> {
    let requests = world.server.requests();
    let ended = requests.iter().filter(|request| request.method == "DELETE");
    ended.map(|request| request.path.clone()).collect()
}

/// The endpoint that the record of a session names.
pub(crate) async fn endpoint(world: &World, id: &str) -> String {
    endpoint_in(world, &world.store().await, id).await
}

pub(crate) async fn endpoint_in(world: &World, store: &dyn SessionStore, id: &str) -> String {
    let record = store.get(id).await.unwrap().unwrap();
    let endpoint = record.endpoint.expect("it is stored");
    endpoint.strip_prefix(&world.server.url()).expect("it is of this server").to_owned()
}

fn asking() -> Script {
    Script::new(|_| {
        let call = ToolCall::new("call-1", "Remove everything");
        vec![Step::AskPermission(Permission::new(call)), Step::Say("done".to_owned())]
    })
}

#[tokio::test]
async fn an_open_permission_of_a_killed_program_is_offered_by_its_id() {
    let world = World::new(ServerKind::PerAgent, asking()).await;
    kill_a_program(&world, StoredEventKind::Permission).await;
    let before = stored(&world.store().await, "mine").await;
    let asked = before.iter().find(|event| event.kind == StoredEventKind::Permission).unwrap();
    let left = endpoint(&world, "mine").await;

    let (client, sessions) = world.program().await;
    let mut events = client.events().deciding();
    let session = sessions.session("mine");
    let mut followed = session.events();
    let restored = within(session.resume()).await.unwrap().unwrap();
    assert_eq!(restored.by, RestoredBy::Attach, "the turn is running");
    assert!(session.open_turn().is_some());
    assert_eq!(within(session.resume()).await.unwrap(), None, "it is acquired");
    let request = event(&mut events, |event| match event {
        Event::Permission(request) => Some(request),
        _ => None,
    })
    .await;
    assert_eq!(asked.rpc_id.as_deref(), Some(format!("{:?}", request.id()).as_str()));
    request.allow_once().unwrap();
    within(session.open_turn_ended()).await;
    has_stored(&sessions, "mine", StoredEventKind::TurnEnded).await;
    let done = event(&mut followed, |event| match event {
        Event::Update(update) => update.message_text().filter(|text| *text == "done").map(str::to_owned),
        _ => None,
    });
    assert_eq!(done.await, "done", "those who follow the session see it");
    let kept = stored(&**sessions.store(), "mine").await;
    let count = |kind| kept.iter().filter(|event| event.kind == kind).count();
    assert_eq!((count(StoredEventKind::Permission), count(StoredEventKind::Answered)), (1, 1));
    assert_eq!(said(&kept), ["permission: allow_once", "done"]);
    let end = kept.iter().find_map(|event| event.turn_end()).unwrap();
    assert_eq!(end.stop_reason.map(|reason| reason.as_str().to_owned()).as_deref(), Some("end_turn"));
    assert!(sessions.store().open("mine").await.unwrap().is_empty(), "nothing is open any more");
    assert_eq!(endpoint(&world, "mine").await, left, "it is on its endpoint until it is needed");
}

#[tokio::test]
async fn a_turn_of_a_killed_program_is_read_to_its_end_and_then_the_session_moves() {
    for ability in [Ability::Load, Ability::Neither] {
        let world = World::new(ServerKind::PerAgent, counting(ability, COUNT)).await;
        kill_a_program(&world, StoredEventKind::Update).await;
        let left = endpoint(&world, "mine").await;
        let (_client, sessions) = world.program().await;
        let session = sessions.session("mine");
        within(session.resume()).await.unwrap();
        let open = session.open_turn().expect("it is running");
        // The prompt waits for the end of that turn.
        within(within(session.prompt("again")).await.unwrap().outcome()).await.unwrap();
        assert_eq!(session.open_turn(), None);
        sessions.flush().await.unwrap();
        let kept = stored(&**sessions.store(), "mine").await;
        let of_turn = |id: &str| {
            let events = kept.iter().filter(|event| event.turn_id.as_deref() == Some(id)).cloned();
            events.collect::<Vec<_>>()
        };
        let first = of_turn(&open.turn_id);
        let numbers: Vec<usize> = said(&first).iter().map(|text| text.trim().parse().unwrap()).collect();
        assert_eq!(numbers, (1..=COUNT).collect::<Vec<_>>(), "{ability:?}");
        assert_eq!(first.last().unwrap().kind, StoredEventKind::TurnEnded);
        let second = kept.iter().rev().find_map(|event| event.turn_id.clone()).unwrap();
        assert_eq!(said(&of_turn(&second)).len(), COUNT, "{ability:?}");
        assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{ability:?}");
        assert_ne!(endpoint(&world, "mine").await, left, "it has moved to the endpoint of this process");
        assert_eq!(ended(&world), [""; 0], "another session is on the endpoint");
        // The last session leaves it.
        within(sessions.session("other").resume()).await.unwrap();
        assert_eq!(ended(&world), [left]);
    }
}

#[tokio::test]
async fn a_turn_on_the_endpoint_of_another_process_can_be_cancelled() {
    let world = World::new(ServerKind::PerAgent, counting(Ability::Load, 100_000)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let (_client, sessions) = world.program().await;
    let session = sessions.session("mine");
    within(session.resume()).await.unwrap();
    within(session.cancel()).await.unwrap();
    assert_eq!(session.open_turn(), None);
    has_stored(&sessions, "mine", StoredEventKind::TurnEnded).await;
    let kept = stored(&**sessions.store(), "mine").await;
    let end = kept.iter().find_map(|event| event.turn_end()).unwrap();
    assert_eq!(end.stop_reason.map(|reason| reason.as_str().to_owned()).as_deref(), Some("cancelled"));
}

#[tokio::test]
async fn an_agent_that_died_after_its_program_is_read_up_to_its_end() {
    let world = World::new(ServerKind::PerAgent, counting(Ability::Load, 100_000)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let seen = said(&stored(&world.store().await, "mine").await).len();
    let left = endpoint(&world, "mine").await;
    assert!(world.server.kill_agent_of(left.strip_prefix("/v1/acp/").unwrap()));
    let (_client, sessions) = world.program().await;
    let session = sessions.session("mine");
    within(session.resume()).await.unwrap();
    assert_eq!(session.open_turn(), None);
    let kept = stored(&**sessions.store(), "mine").await;
    let numbers: Vec<usize> = said(&kept).iter().map(|text| text.trim().parse().unwrap()).collect();
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>());
    assert!(numbers.len() >= seen);
    let end = kept.iter().find_map(|event| event.turn_end()).expect("the turn has an end");
    assert!(end.error.is_some());
    let ended = kept.iter().find(|event| event.kind == StoredEventKind::Ended).expect("it says how");
    assert!(ended.termination_info().is_some());
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap));
}

#[tokio::test]
async fn an_endpoint_that_is_gone_with_its_server_is_a_gap() {
    let world = World::new(ServerKind::PerAgent, counting(Ability::Load, COUNT)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    world.server.restart(mock_server::State::Lost).await;
    let (_client, sessions) = world.program().await;
    within(sessions.session("mine").resume()).await.unwrap();
    let kept = stored(&**sessions.store(), "mine").await;
    let count = |kind| kept.iter().filter(|event| event.kind == kind).count();
    assert_eq!((count(StoredEventKind::Gap), count(StoredEventKind::TurnEnded)), (1, 1));
}

#[tokio::test]
async fn a_process_that_disconnects_leaves_an_endpoint_on_which_another_one_works() {
    let world = World::new(ServerKind::PerAgent, counting(Ability::Load, COUNT)).await;
    let first = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    within(turn.next()).await.unwrap();
    let (_client, second) = world.program().await;
    let acquired = second.session("mine");
    within(acquired.resume()).await.unwrap();
    assert!(acquired.open_turn().is_some());
    drop(turn);
    within(first.disconnect()).await.unwrap();
    assert_eq!(ended(&world), [""; 0]);
    within(acquired.open_turn_ended()).await;
    second.flush().await.unwrap();
    let kept = stored(&**second.store(), "mine").await;
    assert_eq!(said(&kept).len(), COUNT);
    let end = kept.iter().find_map(|event| event.turn_end()).unwrap();
    assert_eq!(end.stop_reason.map(|reason| reason.as_str().to_owned()).as_deref(), Some("end_turn"));
}

#[tokio::test]
async fn an_open_permission_of_a_killed_program_is_offered_to_those_who_follow_its_session() {
    let world = World::new(ServerKind::PerAgent, asking()).await;
    kill_a_program(&world, StoredEventKind::Permission).await;
    let (_client, sessions) = world.program().await;
    let session = sessions.session("mine");
    let mut events = session.events().deciding();
    within(session.resume()).await.unwrap();
    let request = event(&mut events, |event| match event {
        Event::Permission(request) => Some(request),
        _ => None,
    })
    .await;
    request.allow_once().unwrap();
    within(session.open_turn_ended()).await;
    has_stored(&sessions, "mine", StoredEventKind::TurnEnded).await;
    let kept = stored(&**sessions.store(), "mine").await;
    assert_eq!(said(&kept), ["permission: allow_once", "done"]);
    let mut done = 0;
    while let Some(event) = events.try_next() {
        done += usize::from(matches!(event, Event::Update(update) if update.message_text() == Some("done")));
    }
    assert_eq!(done, 1, "each event is delivered once");
}

#[tokio::test]
async fn a_session_that_has_just_moved_to_an_endpoint_is_read_from_there() {
    let script = Script::new(|turn| {
        let text = turn.params["prompt"].as_array().unwrap().last().unwrap()["text"].as_str();
        let wait = if text == Some("go") { Duration::ZERO } else { Duration::from_millis(500) };
        let count = |n| [Step::Say(format!("{n} ")), Step::Wait(Duration::from_millis(3))];
        [Step::Wait(wait)].into_iter().chain((1..=COUNT).flat_map(count)).collect()
    });
    let script = script.initialize(Ability::Resume.initialize());
    let world = World::new(ServerKind::PerAgent, script).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    // The client reads nothing on its stream but its own responses, in their order.
    world.server.inject(Fault::ResponseOnStreamOnly.on_method("initialize").times(1));
    let second = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let other = second.session("other");
    within(other.resume()).await.unwrap();
    let turn = within(other.prompt("count")).await.unwrap();
    assert!(world.server.wait_for(|_| world.server.messages("session/prompt").len() == 2, LIMIT).await);
    // It ends without releasing anything, and before it has stored anything of the turn.
    drop((turn, other, second));
    let (_client, third) = world.program().await;
    let other = third.session("other");
    within(other.resume()).await.unwrap();
    within(other.open_turn_ended()).await;
    has_stored(&third, "other", StoredEventKind::TurnEnded).await;
    let kept = stored(&**third.store(), "other").await;
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{kept:?}");
    let numbers: Vec<usize> = said(&kept).iter().map(|text| text.trim().parse().unwrap()).collect();
    assert_eq!(numbers, (1..=COUNT).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_quiet_session_of_a_killed_program_is_no_gap() {
    let world = World::new(ServerKind::PerAgent, counting(Ability::Load, COUNT)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let (_client, sessions) = world.program().await;
    within(sessions.session("other").resume()).await.unwrap();
    let kept = stored(&**sessions.store(), "other").await;
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{kept:?}");
}

#[tokio::test]
async fn text_of_a_turn_on_another_endpoint_that_does_not_fit_is_reported_as_lost() {
    let world = World::new(ServerKind::PerAgent, counting(Ability::Load, COUNT)).await;
    kill_a_program(&world, StoredEventKind::Update).await;
    let store = Gated::new(world.store().await);
    let sessions = options(&world.server, world.kind).shared_store(store.clone());
    let sessions = sessions.stored(|options| options.capacity(10)).build().unwrap();
    let mut events = sessions.events();
    let session = sessions.session("mine");
    within(session.resume()).await.unwrap();
    assert!(session.open_turn().is_some());
    let gate = store.appending.lock().await;
    let lost = event(&mut events, |event| match event {
        Event::EventsLost(lost) => Some(lost),
        _ => None,
    });
    let lost = lost.await;
    assert!(lost.session_id == "mine" && lost.error.is_none() && lost.count > 0, "{lost:?}");
    drop(gate);
    let error = within(sessions.flush()).await.unwrap_err();
    assert!(matches!(error, Error::EventsLost(_)), "{error:?}");
}

#[tokio::test]
async fn the_endpoint_of_a_killed_program_is_ended_with_the_last_session_that_may_continue_there() {
    for how in ["archive", "fail", "delete", "expire", "release"] {
        let world = World::new(ServerKind::PerAgent, counting(Ability::Load, COUNT)).await;
        kill_a_program(&world, StoredEventKind::Update).await;
        let left = endpoint(&world, "mine").await;
        let (_client, sessions) = world.program().await;
        let now = Timestamp::from(SystemTime::now());
        let later =
            Timestamp::from_millis(now.as_millis() + Duration::from_secs(3600 * 24 * 365).as_millis() as u64);
        for id in ["other", "mine"] {
            assert_eq!(ended(&world), [""; 0], "{how}: a session on the endpoint may continue");
            match how {
                "archive" => drop(within(sessions.archive(id)).await.unwrap()),
                "fail" => drop(within(sessions.fail(id)).await.unwrap()),
                "delete" => assert!(within(sessions.delete(id)).await.unwrap()),
                "release" if id == "mine" => {
                    let session = sessions.session(id);
                    within(session.resume()).await.unwrap();
                    within(session.open_turn_ended()).await;
                    within(session.release()).await.unwrap();
                }
                "release" => drop(within(sessions.archive(id)).await.unwrap()),
                _ => {}
            }
        }
        if how == "expire" {
            sessions.store().suspend(Suspend::All, now).await.unwrap();
            let expired = within(sessions.delete_expired(&RetentionPolicy::default(), later)).await.unwrap();
            assert_eq!(expired.len(), 2);
        }
        assert_eq!(ended(&world), [left], "{how}");
    }
}

#[tokio::test]
async fn the_own_endpoint_and_that_of_a_released_session_are_not_ended_with_a_session() {
    let world = World::new(ServerKind::PerAgent, counting(Ability::Load, 3)).await;
    let (_client, first) = world.program().await;
    for id in ["own", "released"] {
        within(first.new_session_as(id, NewSession::in_dir("/"))).await.unwrap();
    }
    within(first.session("released").release()).await.unwrap();
    within(first.archive("own")).await.unwrap();
    let (_client, second) = world.program().await;
    within(second.archive("released")).await.unwrap();
    assert_eq!(ended(&world), [""; 0]);
}
