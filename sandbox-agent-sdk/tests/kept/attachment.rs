//! One program leaves a session, and another one goes on with it.

use std::time::{Duration, SystemTime};

use mock_server::{Script, Step};
use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::{Attachment, StoreError, StoredEventKind};
use sandbox_agent_sdk::{DropPolicy, Error, Event, NewSession, ServerKind};

use crate::gated::Gated;
use crate::support::{event, options, within};
use crate::world::{Ability, World, agent, counting, delivered, said, stored};

#[tokio::test]
async fn another_program_gets_exactly_the_rest() {
    const COUNT: usize = 60;
    for leave_after in [1, 7, 30] {
        let world = World::new(ServerKind::Shared, counting(Ability::Resume, COUNT)).await;
        let options = world.options().await.on_turn_drop(DropPolicy::Detach);
        let client = options.build().unwrap();
        let sessions = client.sessions();
        let session = within(sessions.create_as("mine", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(session.prompt("count")).await.unwrap();
        for _ in 0..leave_after {
            within(turn.next()).await.unwrap();
        }
        let attachment = within(session.detach()).await.unwrap();
        drop((turn, sessions, client));
        // It is written down, and read by another program a while later.
        let written = serde_json::to_string(&attachment).unwrap();
        let before = stored(&world.store().await, "mine").await;
        assert_eq!(before.len() as u64, attachment.index);
        assert!(said(&before).len() >= leave_after && said(&before).len() < COUNT, "it left in between");
        tokio::time::sleep(Duration::from_millis(20)).await;

        let attachment: Attachment = serde_json::from_str(&written).unwrap();
        let client = world.options().await.attach(attachment.clone()).build().unwrap();
        let mut events = client.events();
        let session = within(client.sessions().attached()).await.unwrap();
        assert_eq!(session.id(), "mine");
        let rest = within(async {
            loop {
                client.sessions().flush().await.unwrap();
                let page = session.stored_events(attachment.index).await.unwrap();
                if said(&page.events).last() == Some(&"60 ") {
                    return page.events;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let rest = rest.await;
        let all: Vec<String> = (1..=COUNT).map(|n| format!("{n} ")).collect();
        let seen: Vec<&str> = said(&before).into_iter().chain(said(&rest)).collect();
        assert_eq!(seen, all, "nothing is missing, nothing is there twice");
        assert_eq!(said(&stored(&world.store().await, "mine").await), all);
        assert_eq!(delivered(&mut events), said(&rest), "it hears of what it stores");
    }
}

#[tokio::test]
async fn an_attachment_is_for_the_first_who_uses_it() {
    const COUNT: usize = 60;
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, COUNT)).await;
    let options = world.options().await.on_turn_drop(DropPolicy::Detach);
    let client = options.build().unwrap();
    let session = within(client.sessions().create_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    for _ in 0..5 {
        within(turn.next()).await.unwrap();
    }
    let attachment = within(session.detach()).await.unwrap();
    drop((turn, client));
    let first = world.options().await.attach(attachment.clone()).build().unwrap();
    let second = world.options().await.attach(attachment.clone()).build().unwrap();
    let (mut first_events, mut second_events) = (first.events(), second.events());
    within(first.sessions().attached()).await.unwrap();
    within(second.sessions().attached()).await.unwrap();
    within(async {
        while !said(&stored(&world.store().await, "mine").await).contains(&"60 ") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    first.sessions().flush().await.unwrap();
    second.sessions().flush().await.unwrap();
    let all: Vec<String> = (1..=COUNT).map(|n| format!("{n} ")).collect();
    assert_eq!(said(&stored(&world.store().await, "mine").await), all);
    let mut taken_over = [0, 0];
    for (events, count) in [&mut first_events, &mut second_events].into_iter().zip(&mut taken_over) {
        while let Some(event) = events.try_next() {
            *count += usize::from(matches!(event, Event::TakenOver { .. }));
        }
    }
    assert_eq!(
        taken_over.iter().sum::<usize>(),
        1,
        "the second one hears that it is not its: {taken_over:?}"
    );
}

#[tokio::test]
async fn a_session_that_is_left_in_a_turn_and_taken_back_misses_nothing() {
    const COUNT: usize = 60;
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, COUNT)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.create_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    for _ in 0..5 {
        within(turn.next()).await.unwrap();
    }
    within(session.clone().detach()).await.unwrap();
    within(session.resume()).await.unwrap();
    within(turn.outcome()).await.unwrap();
    sessions.flush().await.unwrap();
    let kept = stored(&**sessions.store(), "mine").await;
    let all: Vec<String> = (1..=COUNT).map(|n| format!("{n} ")).collect();
    assert_eq!(said(&kept), all);
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "nothing is missing");
}

#[tokio::test]
async fn an_attachment_of_a_session_that_was_made_again_is_of_no_use() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.create_as("mine", NewSession::in_dir("/"))).await.unwrap();
    within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
    let agent_session = session.agent_session().unwrap();
    let attachment = within(session.detach()).await.unwrap();
    assert!(sessions.delete("mine").await.unwrap());
    // A session is known by the millisecond in which it was made.
    while Some(Timestamp::from(SystemTime::now())) <= attachment.created_at {
        tokio::task::yield_now().await;
    }
    let session = within(sessions.create_as("mine", NewSession::in_dir("/"))).await.unwrap();
    // Something goes on in what the old one was.
    within(agent_session.prompt("old").outcome()).await.unwrap();
    let client = world.options().await.attach(attachment).build().unwrap();
    let error = within(client.sessions().attached()).await.unwrap_err();
    assert!(matches!(error, Error::Store(StoreError::NotFound { .. })), "{error:?}");
    within(within(session.prompt("new")).await.unwrap().outcome()).await.unwrap();
    client.sessions().flush().await.unwrap();
    sessions.flush().await.unwrap();
    assert_eq!(said(&stored(&**sessions.store(), "mine").await), ["re: new; "]);
}

#[tokio::test]
async fn an_attached_session_can_be_prompted_on_every_kind_of_server() {
    for kind in [ServerKind::Shared, ServerKind::PerAgent] {
        for ability in Ability::ALL {
            let world = World::new(kind, agent(ability)).await;
            let (client, sessions) = world.program().await;
            let session = within(sessions.create_as("mine", NewSession::in_dir("/"))).await.unwrap();
            within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
            let attachment = within(session.detach()).await.unwrap();
            drop((client, sessions));
            let client = world.options().await.attach(attachment).build().unwrap();
            let session = within(client.sessions().attached()).await.unwrap();
            let answer = within(async { session.prompt("two").await?.text().await }).await;
            assert_eq!(answer.unwrap(), "re: two; ", "{kind} {ability:?}");
            client.sessions().flush().await.unwrap();
            let kept = stored(&**client.sessions().store(), "mine").await;
            assert_eq!(said(&kept), ["re: one; ", "re: two; "], "{kind} {ability:?}");
            let ends = kept.iter().filter(|event| event.kind == StoredEventKind::TurnEnded).count();
            assert_eq!(ends, 2);
        }
    }
}

#[tokio::test]
async fn a_client_that_attaches_to_nothing_says_so() {
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, 1)).await;
    let (_client, sessions) = world.program().await;
    assert!(matches!(sessions.attached().await, Err(Error::Config(_))));
    let unknown = r#"{"sessionId":"gone","agent":"mock","agentSessionId":"x","index":3}"#;
    let client = world.options().await.attach(serde_json::from_str(unknown).unwrap()).build().unwrap();
    assert!(matches!(client.sessions().attached().await, Err(Error::Store(_))));
}

#[tokio::test]
async fn what_the_server_no_longer_has_when_a_program_attaches_is_told_as_a_gap() {
    let script = Script::new(|turn| match turn.params["prompt"][0]["text"].as_str() {
        Some("flood") => vec![Step::Flood { updates: 1_500, bytes: 4 }],
        _ => vec![Step::Say("here".to_owned())],
    });
    let world = World::new(ServerKind::Shared, script).await;
    let (client, sessions) = world.program().await;
    let session = within(sessions.create_as("mine", NewSession::in_dir("/"))).await.unwrap();
    within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
    let attachment = within(session.detach()).await.unwrap();
    let plain = within(client.new_session(NewSession::in_dir("/"))).await.unwrap();
    within(plain.prompt("flood").outcome()).await.unwrap();
    drop((client, sessions, plain));

    // The store takes its time, so that the gap is told before the session is taken up.
    let store = Gated::new(world.store().await);
    let (told, gap_is_told) = tokio::sync::oneshot::channel::<()>();
    *store.before_put.lock().unwrap() =
        Some(Box::new(move || Box::pin(async move { gap_is_told.await.unwrap() })));
    let client = options(&world.server, world.kind).shared_store(store).attach(attachment);
    let client = client.auto_connect(false).build().unwrap();
    let mut events = client.events();
    within(client.connect()).await.unwrap();
    let gap = event(&mut events, |event| match event {
        Event::Gap(gap) => Some(gap),
        _ => None,
    });
    assert!(gap.await.count() > 100);
    told.send(()).unwrap();
    let session = within(client.sessions().attached()).await.unwrap();
    let answer = within(async { session.prompt("two").await?.text().await }).await;
    assert_eq!(answer.unwrap(), "here");
    client.sessions().flush().await.unwrap();
    let kept = stored(&world.store().await, "mine").await;
    assert_eq!(kept.iter().filter(|event| event.kind == StoredEventKind::Gap).count(), 1);
    assert_eq!(said(&kept), ["here", "here"]);
}

#[tokio::test]
async fn an_attachment_that_somebody_was_quicker_with_is_let_go_of() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.create_as("mine", NewSession::in_dir("/"))).await.unwrap();
    within(within(session.prompt("one")).await.unwrap().outcome()).await.unwrap();
    let attachment = within(session.detach()).await.unwrap();
    let (_quicker, quicker_sessions) = world.program().await;
    let quicker = within(quicker_sessions.resume("mine")).await.unwrap();
    within(within(quicker.prompt("two")).await.unwrap().outcome()).await.unwrap();
    quicker_sessions.flush().await.unwrap();

    let client = world.options().await.attach(attachment).build().unwrap();
    let mut events = client.events();
    let session = within(client.sessions().attached()).await.unwrap();
    let taken = event(&mut events, |event| match event {
        Event::TakenOver { session_id, .. } => Some(session_id),
        _ => None,
    });
    assert_eq!(taken.await, "mine");
    let answer = within(async { session.prompt("three").await?.text().await }).await;
    assert_eq!(answer.unwrap(), "re: three; ");
    client.sessions().flush().await.unwrap();
    quicker_sessions.flush().await.unwrap();
    let kept = stored(&world.store().await, "mine").await;
    assert_eq!(said(&kept), ["re: one; ", "re: two; ", "re: three; "]);
}
