//! Acquiring a session, and events that occur meanwhile.

use std::time::Duration;

use mock_server::{Cut, Fault, MockServer, State, Step};
use sandbox_agent_sdk::connection::ReconnectPolicy;
use sandbox_agent_sdk::event::Origin;
use sandbox_agent_sdk::sessions::{
    RestoredBy, SessionStatus, StoredClient, StoredEventKind, StoredSession, Suspend, TransitionError,
};
use sandbox_agent_sdk::{ConnectionState, Error, Event, NewSession, ServerKind};

use crate::support::{KINDS, event, within};
use crate::world::{Ability, World, agent, ask, counted, counting, delivered, options, said, stored};

/// A step that refuses a request.
fn refusal(code: i64) -> Vec<Step> {
    vec![Step::Fail { code, message: "no such session".to_owned(), data: None }]
}

#[tokio::test]
async fn history_that_an_agent_replays_when_it_resumes_is_not_new() {
    for kind in KINDS {
        let world = World::new(kind, agent(Ability::Resume).replays_on_resume(true)).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
        sessions.flush().await.unwrap();
        for round in 0..3 {
            let (client, sessions) = world.program().await;
            let mut events = client.events();
            let session = sessions.session("mine");
            assert_eq!(
                within(session.resume()).await.unwrap().map(|restored| restored.by),
                Some(RestoredBy::Load),
                "{kind}"
            );
            ask(&session, &format!("after {round}")).await;
            sessions.flush().await.unwrap();
            let (mut old, mut new) = (Vec::new(), Vec::new());
            while let Some(event) = events.try_next() {
                if let Event::Update(update) = event
                    && let Some(text) = update.message_text()
                {
                    let seen = if update.origin() == Origin::Live { &mut new } else { &mut old };
                    seen.push(text.to_owned());
                }
            }
            assert_eq!(new, [format!("re: after {round}; ")], "{kind}");
            assert!(old.contains(&"re: one; ".to_owned()), "{kind}: {old:?}");
        }
        let kept = stored(&**sessions.store(), "mine").await;
        let expected = ["re: one; ", "re: after 0; ", "re: after 1; ", "re: after 2; "];
        assert_eq!(said(&kept), expected, "{kind}");
    }
}

#[tokio::test]
async fn nothing_is_missed_of_a_turn_because_nothing_is_loaded_during_it() {
    const COUNT: usize = 80;
    // The agent loads slowly, and the turn continues meanwhile.
    let script = counting(Ability::Load, COUNT).on_request(|method, _| {
        let slowly = vec![Step::Wait(Duration::from_millis(60)), Step::Finish(serde_json::json!({}))];
        (method == "session/load").then_some(slowly)
    });
    let world = World::new(ServerKind::Shared, script).await;
    let (_one, here) = world.program().await;
    let session = within(here.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    for _ in 0..20 {
        within(turn.next()).await.unwrap();
    }
    let (_other, there) = world.program().await;
    within(there.resume("mine")).await.unwrap();
    within(turn.outcome()).await.unwrap();
    let kept = within(async {
        loop {
            here.flush().await.unwrap();
            there.flush().await.unwrap();
            let kept = stored(&**there.store(), "mine").await;
            let is_over = kept.iter().any(|event| event.kind == StoredEventKind::TurnEnded);
            if is_over && said(&kept).contains(&format!("{COUNT} ").as_str()) {
                return kept;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let kept = kept.await;
    let mut numbers: Vec<usize> = said(&kept).iter().map(|text| text.trim().parse().unwrap()).collect();
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "nothing is there twice: {numbers:?}");
    assert_eq!(numbers.len(), COUNT, "nothing is missing");
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap));
    assert!(world.server.messages("session/load").is_empty());

    // Without a turn there is nothing to miss.
    let (_third, third) = world.program().await;
    within(third.resume("mine")).await.unwrap();
    third.flush().await.unwrap();
    let kept = stored(&**there.store(), "mine").await;
    assert_eq!(kept.iter().filter(|event| event.kind == StoredEventKind::Gap).count(), 0);
}

#[tokio::test]
async fn a_suspended_session_that_the_agent_forgot_gets_another_one_only_where_replay_is_allowed() {
    for kind in KINDS {
        let forgetful = agent(Ability::Both).on_request(|method, _| {
            matches!(method, "session/resume" | "session/load").then(|| refusal(-32002))
        });
        let world = World::new(kind, forgetful).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
        within(sessions.shut_down(Suspend::All)).await.unwrap();

        let sessions =
            world.options().await.stored(|options| options.resume_by_replay(false)).build().unwrap();
        let refused = within(sessions.resume("mine")).await.unwrap_err();
        assert!(matches!(refused, Error::Status(TransitionError::NotResumable { .. })), "{refused:?}");
        assert_eq!(sessions.session("mine").record().await.unwrap().status, SessionStatus::Suspended);
        assert_eq!(world.server.messages("session/new").len(), 1, "{kind}");

        let client = world.options().await.stored(|options| options.resume_by_replay(true)).build().unwrap();
        let session = within(client.resume("mine")).await.unwrap();
        assert_eq!(session.record().await.unwrap().status, SessionStatus::Active);
        ask(&session, "two").await;
    }
}

#[tokio::test]
async fn resuming_comes_first_and_loading_where_that_is_refused() {
    for (kind, code) in
        KINDS.into_iter().flat_map(|kind| [None, Some(-32002), Some(-32601)].map(|code| (kind, code)))
    {
        let script = agent(Ability::Both);
        let script =
            script.on_request(move |method, _| code.filter(|_| method == "session/resume").map(refusal));
        let world = World::new(kind, script).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
        sessions.flush().await.unwrap();
        let (_client, sessions) = world.program().await;
        let session = sessions.session("mine");
        let restored = within(session.resume()).await.unwrap().map(|restored| restored.by);
        let expected = if code.is_some() { RestoredBy::Load } else { RestoredBy::Resume };
        assert_eq!(restored, Some(expected), "{kind} {code:?}");
        let sent = |method| world.server.messages(method).len();
        assert_eq!(sent("session/resume"), 1, "{kind} {code:?}");
        assert_eq!(sent("session/load"), usize::from(code.is_some()), "{kind} {code:?}");
        assert_eq!(sent("session/new"), 1, "{kind} {code:?}");
        ask(&session, "two").await;
        sessions.flush().await.unwrap();
        assert_eq!(said(&stored(&**sessions.store(), "mine").await), ["re: one; ", "re: two; "]);
    }
}

#[tokio::test]
async fn an_agent_that_cannot_resume_and_loads_nothing_has_forgotten_everything() {
    for kind in KINDS {
        let script = agent(Ability::Both).history(|_| Vec::new());
        let script = script.on_request(|method, _| (method == "session/resume").then(|| refusal(-32601)));
        let world = World::new(kind, script).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
        sessions.flush().await.unwrap();
        let (_client, sessions) = world.program().await;
        let restored = within(sessions.session("mine").resume()).await.unwrap().unwrap();
        assert_eq!(restored.by, RestoredBy::Load, "{kind}");
        assert_eq!((restored.unknown_prompts, restored.unknown_answers), (Some(1), Some(1)), "{kind}");
    }
}

/// A server with two agents, of which the client asks for the first.
async fn two_agents(first: Ability, second: Ability) -> World {
    // An agent refuses what it does not say it can.
    let script = |ability: Ability| {
        agent(ability).on_request(move |method, _| {
            let refused = match method {
                "session/resume" => !matches!(ability, Ability::Resume | Ability::Both),
                "session/load" => !matches!(ability, Ability::Load | Ability::Both),
                _ => false,
            };
            refused.then(|| refusal(-32601))
        })
    };
    let server = MockServer::builder().agent("mock", script(first)).agent("other", script(second));
    let server = server.released_quirks(false).start().await;
    World { server, directory: tempfile::tempdir().unwrap(), kind: ServerKind::Shared }
}

#[tokio::test]
async fn what_one_agent_can_do_says_nothing_of_another() {
    let cases = [
        (Ability::Neither, Ability::Resume, RestoredBy::Resume),
        (Ability::Neither, Ability::Load, RestoredBy::Load),
        (Ability::Resume, Ability::Load, RestoredBy::Load),
        (Ability::Both, Ability::Neither, RestoredBy::Replay),
    ];
    for (first, second, expected) in cases {
        let world = two_agents(first, second).await;
        let (_client, sessions) = world.program().await;
        let new = NewSession::in_dir("/").agent("other");
        let session = within(sessions.new_session_as("mine", new)).await.unwrap();
        ask(&session, "one").await;
        sessions.flush().await.unwrap();
        let (_client, sessions) = world.program().await;
        let session = sessions.session("mine");
        assert_eq!(
            within(session.resume()).await.unwrap().map(|restored| restored.by),
            Some(expected),
            "{first:?} {second:?}"
        );
        ask(&session, "two").await;
        within(sessions.shut_down(Suspend::All)).await.unwrap();

        let (_client, sessions) = world.program().await;
        let session = sessions.session("mine");
        let restored = within(session.resume()).await.unwrap();
        assert_eq!(restored.map(|restored| restored.by), Some(expected), "{first:?} {second:?}");
        ask(&session, "three").await;
    }
}

#[tokio::test]
async fn a_session_survives_an_agent_that_dies_while_idle() {
    for (kind, ability) in KINDS.into_iter().flat_map(|kind| Ability::ALL.map(|ability| (kind, ability))) {
        for is_noticed in [true, false] {
            let world = World::new(kind, agent(ability)).await;
            let (client, sessions) = world.program().await;
            let mut events = client.events();
            let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
            ask(&session, "one").await;
            world.kill_agent();
            if is_noticed {
                let ended = |event| matches!(event, Event::SessionEnded(_)).then_some(());
                event(&mut events, ended).await;
            }
            survives(&sessions, &session, &format!("{kind} {ability:?} {is_noticed}")).await;
        }
    }
}

#[tokio::test]
async fn a_subscriber_of_a_session_gets_its_events_whatever_the_agent_calls_it() {
    for (kind, ability) in KINDS.into_iter().flat_map(|kind| Ability::ALL.map(|ability| (kind, ability))) {
        let world = World::new(kind, agent(ability)).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let mut events = session.events();
        let mut of_agent = session.agent_session().unwrap().events();
        ask(&session, "one").await;
        for round in 0..2 {
            within(async { session.prompt("die").await?.text().await }).await.unwrap_err();
            ask(&session, &format!("after {round}")).await;
        }
        let all = ["re: one; ", "dying; ", "re: after 0; ", "dying; ", "re: after 1; "];
        assert_eq!(delivered(&mut events), all, "{kind} {ability:?}");
        // A session of the agent is itself.
        let own = if ability == Ability::Neither { &all[..2] } else { &all[..] };
        assert_eq!(delivered(&mut of_agent), own, "{kind} {ability:?}");
    }
}

/// A prompt succeeds, at the second attempt if the first one fails because the agent's end was not known yet.
async fn survives(sessions: &StoredClient, session: &StoredSession, case: &str) {
    let first = within(async { session.prompt("two").await?.text().await }).await;
    if let Err(error) = first {
        assert!(error.termination().is_some() || matches!(error, Error::Http(_)), "{case}: {error:?}");
        ask(session, "two").await;
    }
    assert_eq!(session.record().await.unwrap().status, SessionStatus::Active);
    sessions.flush().await.unwrap();
    assert_eq!(said(&stored(&**sessions.store(), "mine").await), ["re: one; ", "re: two; "], "{case}");
}

/// Waits until a session holds so many numbers, of which none is missing or there twice.
async fn all_counted(sessions: &StoredClient, count: usize) {
    assert_eq!(counted(sessions, count).await, (1..=count).collect::<Vec<_>>());
    let kept = stored(&**sessions.store(), "mine").await;
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "nothing is missing");
}

#[tokio::test]
async fn what_comes_while_there_is_no_connection_is_stored_in_its_place() {
    const COUNT: usize = 250;
    // The stream breaks off in the turn, and cannot be had again for a while.
    let server = MockServer::builder().agent("mock", counting(Ability::Resume, COUNT)).released_quirks(false);
    let server = server.fault(Fault::StreamCutAt { byte: 4000, cut: Cut::Reset }.times(1));
    let server = server.fault(Fault::StreamRefused { status: 500 }.skip(1).times(3)).start().await;
    let world = World { server, directory: tempfile::tempdir().unwrap(), kind: ServerKind::Shared };
    let policy = ReconnectPolicy::default().base(Duration::from_millis(5)).max_attempts(3);
    let client = world.options().await.reconnect(policy).build().unwrap();
    let mut events = client.events();
    let sessions = client.clone();
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let other = within(sessions.new_session_as("other", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    within(turn.outcome()).await.unwrap_err();
    let is_lost = |event: &Event| matches!(event, Event::Connection(ConnectionState::Lost(_)));
    event(&mut events, |event| is_lost(&event).then_some(())).await;
    // Some of it is older than the new connection, and some is not.
    within(client.client().connect()).await.unwrap();
    let is_live = |event: &Event| matches!(event, Event::Update(update) if update.origin() == Origin::Live);
    event(&mut events, |event| is_live(&event).then_some(())).await;
    // What another session stores meanwhile says nothing about this one.
    within(async { other.prompt("count").await?.outcome().await }).await.unwrap();
    within(sessions.flush()).await.unwrap();
    within(session.resume()).await.unwrap();
    all_counted(&sessions, COUNT).await;
}

#[tokio::test]
async fn a_program_that_connects_again_stores_nothing_twice() {
    const COUNT: usize = 40;
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, COUNT)).await;
    let (client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    within(async { session.prompt("count").await?.outcome().await }).await.unwrap();
    sessions.flush().await.unwrap();
    for _ in 0..2 {
        within(client.disconnect()).await.unwrap();
        within(client.connect()).await.unwrap();
        within(session.resume()).await.unwrap();
        all_counted(&sessions, COUNT).await;
    }
}

#[tokio::test]
async fn while_the_server_stays_away_prompts_fail_typed_and_in_time() {
    for kind in KINDS {
        let world = World::new(kind, agent(Ability::Resume)).await;
        let client = options(&world.server, kind).store(world.store().await).build().unwrap();
        let sessions = client.clone();
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
        world.server.stop().await;
        for _ in 0..2 {
            let error = within(async { session.prompt("two").await?.text().await }).await.unwrap_err();
            assert!(
                !matches!(error, Error::Store(_) | Error::Config(_) | Error::NotAllowed { .. }),
                "{error:?}"
            );
            assert_eq!(session.record().await.unwrap().status, SessionStatus::Active);
        }
        world.server.restart(State::Lost).await;
        let answered = within(async {
            loop {
                if let Ok(text) = async { session.prompt("three").await?.text().await }.await {
                    return text;
                }
            }
        });
        assert_eq!(answered.await, "re: three; ", "{kind}");
    }
}

#[tokio::test]
async fn an_error_that_does_not_say_that_the_session_is_gone_leaves_it_as_it_is() {
    for kind in KINDS {
        for ability in [Ability::Resume, Ability::Load] {
            let refuses = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
            let is_refusing = std::sync::Arc::clone(&refuses);
            let script = agent(ability).on_request(move |method, _| {
                let is_refused = matches!(method, "session/resume" | "session/load")
                    && is_refusing.load(std::sync::atomic::Ordering::SeqCst);
                let overloaded = || Step::Fail { code: -32603, message: "overloaded".to_owned(), data: None };
                is_refused.then(|| vec![overloaded()])
            });
            let world = World::new(kind, script).await;
            let (_client, sessions) = world.program().await;
            let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
            ask(&session, "one").await;
            let before = session.record().await.unwrap().agent_session;
            sessions.flush().await.unwrap();

            let (client, sessions) = world.program().await;
            let session = sessions.session("mine");
            let error = within(session.resume()).await.unwrap_err();
            assert!(matches!(error, Error::Rpc { .. }), "{kind} {ability:?}: {error:?}");
            let record = session.record().await.unwrap();
            assert_eq!(record.agent_session, before, "{kind} {ability:?}");
            assert_eq!(world.server.messages("session/new").len(), 1, "{kind} {ability:?}");

            refuses.store(false, std::sync::atomic::Ordering::SeqCst);
            let mut events = client.events();
            ask(&session, "two").await;
            let how = event(&mut events, |event| match event {
                Event::Restored { session_id, restored, .. } if session_id == "mine" => Some(restored.by),
                _ => None,
            });
            let expected = if ability == Ability::Load { RestoredBy::Load } else { RestoredBy::Resume };
            assert_eq!(how.await, expected, "{kind}");
        }
    }
}

#[tokio::test]
async fn what_one_session_says_is_never_stored_in_another_although_the_agent_reuses_their_ids() {
    for kind in KINDS {
        // After a restart the agent assigns its ids to the other sessions.
        let script = agent(Ability::Neither).session_ids(|number| match number % 4 {
            1 | 0 => "a".to_owned(),
            _ => "b".to_owned(),
        });
        let world = World::new(kind, script).await;
        let (_client, sessions) = world.program().await;
        let one = within(sessions.new_session_as("one", NewSession::in_dir("/"))).await.unwrap();
        let two = within(sessions.new_session_as("two", NewSession::in_dir("/"))).await.unwrap();
        ask(&one, "first of one").await;
        ask(&two, "first of two").await;
        sessions.flush().await.unwrap();
        world.server.restart(State::Lost).await;
        for (session, name) in [(&one, "one"), (&two, "two"), (&one, "one"), (&two, "two")] {
            within(async {
                loop {
                    let text = format!("again {name}");
                    match async { session.prompt(text.as_str()).await?.text().await }.await {
                        Ok(answer) => return assert_eq!(answer, format!("re: {text}; "), "{kind}"),
                        Err(error) => assert!(!matches!(error, Error::Store(_)), "{kind}: {error:?}"),
                    }
                }
            })
            .await;
        }
        sessions.flush().await.unwrap();
        for name in ["one", "two"] {
            let kept = stored(&**sessions.store(), name).await;
            let again = format!("re: again {name}; ");
            assert_eq!(
                said(&kept),
                [format!("re: first of {name}; "), again.clone(), again],
                "{kind} {name}"
            );
            let record = sessions.get(name).await.unwrap().unwrap();
            assert_eq!(record.details.earlier_agent_sessions.len(), 1, "{kind} {name}");
        }
    }
}
