//! Two programs, one server that both see everything of, one store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mock_server::{Script, State, Step};
use sandbox_agent_sdk::sessions::{
    RestoredBy, SessionStatus, StoreError, StoreOptions, StoredClient, StoredEventKind, StoredSession,
    Suspend, UserAction,
};
use sandbox_agent_sdk::{DropPolicy, Error, Event, Events, NewSession, SandboxAgentClient, ServerKind};

use crate::gated::Gated;
use crate::support::{KINDS, event, within};
use crate::world::{Ability, World, agent, ask, counted, counting, delivered, options, said, stored};

async fn taken_over(events: &mut Events) -> String {
    event(events, |event| match event {
        Event::OwnershipLost { session_id, .. } => Some(session_id),
        _ => None,
    })
    .await
}

/// Waits until a counting turn is stored with its end, by any process, and each number once.
async fn all_is_counted(programs: [&StoredClient; 2], count: usize) {
    let last = format!("{count} ");
    let kept = within(async {
        loop {
            for sessions in programs {
                sessions.flush().await.unwrap();
            }
            let kept = stored(&**programs[0].store(), "mine").await;
            if said(&kept).contains(&last.as_str())
                && kept.iter().any(|event| event.kind == StoredEventKind::TurnEnded)
            {
                return kept;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let kept = kept.await;
    let mut numbers: Vec<usize> = said(&kept).iter().map(|text| text.trim().parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=count).collect::<Vec<_>>());
}

#[tokio::test]
async fn events_are_stored_once_and_the_process_that_lost_the_session_is_notified() {
    for ability in Ability::ALL {
        let world = World::new(ServerKind::Shared, agent(ability)).await;
        let (one, one_sessions) = world.program().await;
        let (other, other_sessions) = world.program().await;
        let (mut one_events, mut other_events) = (one.events(), other.events());
        let here = within(one_sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&here, "one").await;
        one_sessions.flush().await.unwrap();
        let there = within(other_sessions.resume("mine")).await.unwrap();
        ask(&there, "two").await;
        other_sessions.flush().await.unwrap();
        // Prompting from here takes it back.
        ask(&here, "three").await;
        one_sessions.flush().await.unwrap();
        assert_eq!(taken_over(&mut one_events).await, "mine");
        ask(&there, "four").await;
        assert_eq!(taken_over(&mut other_events).await, "mine");
        one_sessions.flush().await.unwrap();
        other_sessions.flush().await.unwrap();
        let kept = stored(&**one_sessions.store(), "mine").await;
        assert_eq!(said(&kept), ["re: one; ", "re: two; ", "re: three; ", "re: four; "], "{ability:?}");
        let count = |kind| kept.iter().filter(|event| event.kind == kind).count();
        assert_eq!(count(StoredEventKind::Prompt), 4, "{ability:?}");
        assert_eq!(count(StoredEventKind::TurnEnded), 4, "{ability:?}");
        assert_eq!(count(StoredEventKind::Update), 8, "{ability:?}");
        assert_eq!(here.record().await.unwrap().status, SessionStatus::Active);
    }
}

#[tokio::test]
async fn a_process_that_shuts_down_suspends_no_session_that_another_one_acquired() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let (_one, one_sessions) = world.program().await;
    let (_other, other_sessions) = world.program().await;
    for id in ["mine", "theirs"] {
        let session = within(one_sessions.new_session_as(id, NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
    }
    one_sessions.flush().await.unwrap();
    let there = within(other_sessions.resume("theirs")).await.unwrap();
    // The first one has not heard of it yet.
    assert_eq!(within(one_sessions.shut_down(Suspend::Own)).await.unwrap(), 1);
    assert_eq!(there.record().await.unwrap().status, SessionStatus::Active);
    let mine = other_sessions.get("mine").await.unwrap().unwrap();
    assert_eq!(mine.status, SessionStatus::Suspended);
    ask(&there, "two").await;
    assert_eq!(within(other_sessions.shut_down(Suspend::Own)).await.unwrap(), 1);
}

#[tokio::test]
async fn the_process_that_acquires_a_session_stores_the_rest_of_its_turn() {
    const COUNT: usize = 80;
    let moments = [1, 20, 50].into_iter();
    for (leave_after, ability) in moments.flat_map(|n| [(n, Ability::Resume), (n, Ability::Neither)]) {
        let world = World::new(ServerKind::Shared, counting(ability, COUNT)).await;
        let store = Gated::new(world.store().await);
        let one = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
        let mut events = one.events();
        let here = within(one.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        // What this program sees waits to be stored until another one has taken the session up.
        let gate = store.appending.lock().await;
        let mut turn = within(here.prompt("count")).await.unwrap();
        for _ in 0..leave_after {
            within(turn.next()).await.unwrap();
        }
        let (_other, other_sessions) = world.program().await;
        within(other_sessions.resume("mine")).await.unwrap();
        if leave_after == 20 {
            // The one that was first may be quicker, or slower.
            within(turn.outcome()).await.unwrap();
        }
        drop(gate);
        within(turn.outcome()).await.unwrap();
        assert_eq!(taken_over(&mut events).await, "mine");
        within(async {
            loop {
                one.flush().await.unwrap();
                other_sessions.flush().await.unwrap();
                let kept = stored(&**other_sessions.store(), "mine").await;
                if said(&kept).contains(&"80 ")
                    && kept.iter().any(|event| event.kind.as_str() == "turn_ended")
                {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        one.flush().await.unwrap();
        let kept = stored(&**other_sessions.store(), "mine").await;
        let mut numbers: Vec<usize> = said(&kept).iter().map(|text| text.trim().parse().unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=COUNT).collect::<Vec<_>>(), "left after {leave_after}, {ability:?}");
        let count = |kind| kept.iter().filter(|event| event.kind == kind).count();
        assert_eq!((count(StoredEventKind::Prompt), count(StoredEventKind::TurnEnded)), (1, 1));
    }
}

#[tokio::test]
async fn a_prompt_looks_at_the_record_and_not_only_at_what_it_remembers() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let (_one, one_sessions) = world.program().await;
    let (_other, other_sessions) = world.program().await;
    let archived = within(one_sessions.new_session_as("archived", NewSession::in_dir("/"))).await.unwrap();
    let deleted = within(one_sessions.new_session_as("deleted", NewSession::in_dir("/"))).await.unwrap();
    ask(&archived, "one").await;
    ask(&deleted, "one").await;
    one_sessions.flush().await.unwrap();
    other_sessions.archive("archived").await.unwrap();
    other_sessions.delete("deleted").await.unwrap();
    let refused = within(archived.prompt("two")).await.unwrap_err();
    assert!(matches!(
        refused,
        Error::NotAllowed { action: UserAction::Send, status: SessionStatus::Archived, .. }
    ));
    let refused = within(deleted.prompt("two")).await.unwrap_err();
    assert!(matches!(refused, Error::Store(StoreError::NotFound { id }) if id == "deleted"));
    assert_eq!(world.server.messages("session/prompt").len(), 2);
}

#[tokio::test]
async fn two_programs_that_want_one_session_at_once_both_get_it_and_there_is_one() {
    for ability in Ability::ALL {
        for round in 0..3 {
            let world = World::new(ServerKind::Shared, agent(ability)).await;
            let (_one, one_sessions) = world.program().await;
            let (_other, other_sessions) = world.program().await;
            let new = || NewSession::in_dir("/");
            let (here, there) = within(async {
                tokio::join!(
                    one_sessions.resume_or_create("mine", new()),
                    other_sessions.resume_or_create("mine", new())
                )
            })
            .await;
            let (here, there) = (here.unwrap(), there.unwrap());
            assert_eq!(one_sessions.badge_count().await.unwrap(), 1);
            ask(&here, "one").await;
            one_sessions.flush().await.unwrap();
            ask(&there, "two").await;
            one_sessions.flush().await.unwrap();
            other_sessions.flush().await.unwrap();
            let kept = stored(&**one_sessions.store(), "mine").await;
            assert_eq!(said(&kept), ["re: one; ", "re: two; "], "{ability:?} {round}");
        }
    }
}

#[tokio::test]
async fn the_same_number_and_words_after_a_restart_are_another_event() {
    // Everything the server sends has the same number and the same content in both of its lives.
    let world = World::new(ServerKind::Shared, Script::steps(vec![Step::Say("the same".to_owned())])).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut answers = 0;
    for life in 0..3 {
        for _ in 0..3 {
            let answer = within(async { session.prompt("again").await?.text().await }).await;
            match answer {
                Ok(text) => {
                    assert_eq!(text, "the same");
                    answers += 1;
                }
                Err(error) => assert!(life > 0, "{error:?}"),
            }
        }
        world.server.restart(State::Preserved).await;
    }
    assert!(answers >= 6, "{answers}");
    sessions.flush().await.unwrap();
    assert_eq!(said(&stored(&**sessions.store(), "mine").await).len(), answers);
}

#[tokio::test]
async fn an_end_reported_before_the_session_was_acquired_is_old() {
    // Another client crashes the agent, and the session is acquired before this client has read the end.
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let (_one, one_sessions) = world.program().await;
    let here = within(one_sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    for round in 0..5 {
        let (_other, other_sessions) = world.program().await;
        let there: StoredSession = other_sessions.session("mine");
        let error = within(async { there.prompt("die").await?.text().await }).await.unwrap_err();
        assert!(error.termination().is_some(), "{error:?}");
        other_sessions.flush().await.unwrap();
        assert!(there.record().await.unwrap().details.termination_info.is_some());
        ask(&here, &format!("round {round}")).await;
        ask(&here, &format!("again {round}")).await;
        one_sessions.flush().await.unwrap();
        assert!(here.record().await.unwrap().details.termination_info.is_none(), "it was taken up again");
    }
    let kept = stored(&**one_sessions.store(), "mine").await;
    assert_eq!(kept.iter().filter(|event| event.kind == StoredEventKind::Ended).count(), 5);
    assert_eq!(said(&kept).len(), 15);
}

#[tokio::test]
async fn a_session_is_acquired_in_a_turn_although_the_agent_refuses_to_resume_it() {
    const COUNT: usize = 80;
    let made = std::sync::atomic::AtomicBool::new(false);
    let script = counting(Ability::Resume, COUNT).on_request(move |method, _| {
        let refused = match method {
            "session/resume" => true,
            "session/new" => made.swap(true, Ordering::SeqCst),
            _ => false,
        };
        let fail = Step::Fail { code: -32603, message: "not now".to_owned(), data: None };
        refused.then(|| vec![fail])
    });
    let world = World::new(ServerKind::Shared, script).await;
    let store = Gated::new(world.store().await);
    let one = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let (one_sessions, mut events) = (one.clone(), one.events());
    let here = within(one_sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    // However slow the other program is, this one has something to store when it is done.
    let gate = store.appending.lock().await;
    let mut turn = within(here.prompt("count")).await.unwrap();
    for _ in 0..10 {
        within(turn.next()).await.unwrap();
    }
    let (_other, other_sessions) = world.program().await;
    within(other_sessions.resume("mine")).await.unwrap();
    drop(gate);
    assert_eq!(taken_over(&mut events).await, "mine");
    within(turn.outcome()).await.unwrap();
    all_is_counted([&one_sessions, &other_sessions], COUNT).await;
}

#[tokio::test]
async fn a_session_that_moves_while_it_is_acquired_is_acquired_where_it_is() {
    const COUNT: usize = 80;
    let world = World::new(ServerKind::Shared, counting(Ability::Neither, COUNT)).await;
    let (_maker, made) = world.program().await;
    within(made.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    made.flush().await.unwrap();
    let (_one, one_sessions) = world.program().await;
    let store = Gated::new(world.store().await);
    let other = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let other_sessions = other;
    // It has read the record when another program gets a new session of the agent and begins a turn in that.
    let (begun, turn) = tokio::sync::oneshot::channel();
    let mover = one_sessions.session("mine");
    *store.before_acquire.lock().unwrap() = Some(Box::new(move || {
        Box::pin(async move { begun.send(within(mover.prompt("count")).await.unwrap()).unwrap() })
    }));
    within(other_sessions.resume("mine")).await.unwrap();
    within(turn.await.unwrap().outcome()).await.unwrap();
    all_is_counted([&one_sessions, &other_sessions], COUNT).await;
}

#[tokio::test]
async fn a_store_that_fails_while_a_session_is_acquired_loses_no_events() {
    const COUNT: usize = 80;
    for (ability, refused) in [(Ability::Resume, false), (Ability::Neither, false), (Ability::Neither, true)]
    {
        let made = std::sync::atomic::AtomicBool::new(false);
        let script = counting(ability, COUNT).on_request(move |method, _| {
            let again = method == "session/new" && made.swap(true, Ordering::SeqCst);
            let fail = Step::Fail { code: -32603, message: "not now".to_owned(), data: None };
            (again && refused).then(|| vec![fail])
        });
        let world = World::new(ServerKind::Shared, script).await;
        let (store, blind) = (Gated::new(world.store().await), Gated::new(world.store().await));
        let one = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
        let other = options(&world.server, world.kind).shared_store(blind.clone()).build().unwrap();
        let here = within(one.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let gate = store.appending.lock().await;
        let mut turn = within(here.prompt("count")).await.unwrap();
        for _ in 0..10 {
            within(turn.next()).await.unwrap();
        }
        blind.blind.store(true, Ordering::SeqCst);
        // It is asked for its sessions only now, and has seen what came before all the same.
        let other_sessions = other;
        let failure = within(other_sessions.resume("mine")).await.unwrap_err();
        assert!(matches!(failure, Error::Store(StoreError::Unavailable(_))), "{failure:?}");
        blind.blind.store(false, Ordering::SeqCst);
        drop(gate);
        within(turn.outcome()).await.unwrap();
        // The next attempt stores what the server has, also if the agent refuses to continue the session.
        let resumed = within(other_sessions.resume("mine")).await;
        assert_eq!(resumed.is_err(), refused, "{resumed:?}");
        all_is_counted([&one, &other_sessions], COUNT).await;
    }
}

#[tokio::test]
async fn events_stored_while_a_session_is_acquired_are_not_stored_again() {
    const COUNT: usize = 40;
    for ability in [Ability::Resume, Ability::Neither] {
        let world = World::new(ServerKind::Shared, counting(ability, COUNT)).await;
        let (_one, one_sessions) = world.program().await;
        let here = within(one_sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let store = Gated::new(world.store().await);
        let other = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
        // The other program holds back what comes already when the whole turn is stored by the first one.
        let sessions = one_sessions.clone();
        *store.before_acquire.lock().unwrap() = Some(Box::new(move || {
            Box::pin(async move {
                within(within(here.prompt("count")).await.unwrap().outcome()).await.unwrap();
                within(sessions.flush()).await.unwrap();
            })
        }));
        within(other.resume("mine")).await.unwrap();
        all_is_counted([&one_sessions, &other], COUNT).await;
    }
}

#[tokio::test]
async fn events_from_before_a_server_restart_are_not_stored_again() {
    // The sessions of both lives have the same id, and much is said in the first.
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, 40)).await;
    let (_one, here) = world.program().await;
    let (watching, there) = world.program().await;
    let mut events = watching.events();
    let session = within(here.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    within(within(session.prompt("count")).await.unwrap().outcome()).await.unwrap();
    here.flush().await.unwrap();
    world.server.restart(State::Preserved).await;
    within(async { while async { session.prompt("count").await?.outcome().await }.await.is_err() {} }).await;
    here.flush().await.unwrap();
    let before = stored(&**here.store(), "mine").await;
    // It has noticed, and has read what the new one says.
    let mut heard = 0;
    event(&mut events, |event| {
        let is_last = matches!(event, Event::Update(update) if update.message_text() == Some("40 "));
        heard += usize::from(is_last);
        (heard == 2).then_some(())
    })
    .await;
    within(there.resume("mine")).await.unwrap();
    there.flush().await.unwrap();
    let after = stored(&**there.store(), "mine").await;
    let rest: Vec<_> = after[before.len()..].iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(rest, ["restored"]);
}

#[tokio::test]
async fn events_that_arrive_while_a_session_cannot_be_acquired_are_not_lost() {
    const COUNT: usize = 80;
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, COUNT)).await;
    let one = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let store = Gated::new(world.store().await);
    let other = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let mut events = other.events();
    let session = within(one.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    within(turn.next()).await.unwrap();
    one.flush().await.unwrap();
    drop((turn, session, one));
    // The record cannot be written for a while. The turn continues meanwhile.
    let (begun, mut goes_on) = tokio::sync::mpsc::channel(1);
    *store.before_acquire.lock().unwrap() = Some(Box::new(move || {
        Box::pin(async move {
            let said = |event| matches!(event, Event::Update(update) if update.message_text() == Some("50 "));
            event(&mut events, |event| said(event).then_some(())).await;
            begun.send(()).await.unwrap();
        })
    }));
    store.refusing.store(true, Ordering::SeqCst);
    within(other.resume("mine")).await.unwrap_err();
    within(goes_on.recv()).await.unwrap();
    store.refusing.store(false, Ordering::SeqCst);
    within(other.resume("mine")).await.unwrap();
    assert_eq!(counted(&other, COUNT).await, (1..=COUNT).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_subscriber_gets_the_events_of_a_session_that_another_process_had_meanwhile() {
    let world = World::new(ServerKind::Shared, agent(Ability::Neither)).await;
    let (_one, here) = world.program().await;
    let (_other, there) = world.program().await;
    let session = within(here.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut events = session.events();
    ask(&session, "one").await;
    here.flush().await.unwrap();
    ask(&there.session("mine"), "two").await;
    there.flush().await.unwrap();
    ask(&session, "three").await;
    assert_eq!(delivered(&mut events), ["re: one; ", "re: three; "]);
}

#[tokio::test]
async fn a_server_with_a_name_is_one_server_under_all_its_urls() {
    for (kind, is_named) in KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let world = World::new(kind, counting(Ability::Load, 100_000)).await;
        let named = |options: StoreOptions| if is_named { options.server_name("sandbox") } else { options };
        let first = world.options().await.stored(named).on_turn_drop(DropPolicy::Detach).build().unwrap();
        let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(session.prompt("count")).await.unwrap();
        within(turn.next()).await.unwrap();
        drop((turn, session, first));
        let url = world.server.url().replace("127.0.0.1", "localhost");
        assert_ne!(url, world.server.url());
        let client = SandboxAgentClient::builder(url).agent("mock").server(kind).build().unwrap();
        let second = client.with_store_options(Arc::new(world.store().await), named(StoreOptions::new()));
        let session = second.session("mine");
        let restored = within(session.resume()).await.unwrap().unwrap();
        assert_eq!(restored.by == RestoredBy::Attach, is_named, "{kind}: the turn is running");
        within(session.cancel()).await.unwrap();
    }
}
