//! One program leaves a session, and another one goes on with it.

use std::time::Duration;

use mock_server::{Script, Step};
use sandbox_agent_sdk::{Attachment, DropPolicy, Error, NewSession, ServerKind, StoredEventKind};

use crate::support::within;
use crate::world::{Ability, World, agent, said, stored};

/// An agent that counts slowly enough for somebody to leave in between.
fn counting(to: usize) -> Script {
    Script::new(move |_| {
        let count = |n| [Step::Say(format!("{n} ")), Step::Wait(Duration::from_millis(3))];
        (1..=to).flat_map(count).collect()
    })
}

#[tokio::test]
async fn another_program_gets_exactly_the_rest() {
    const COUNT: usize = 60;
    for leave_after in [1, 7, 30] {
        let world = World::new(ServerKind::Shared, counting(COUNT)).await;
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
    }
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
    let world = World::new(ServerKind::Shared, counting(1)).await;
    let (_client, sessions) = world.program().await;
    assert!(matches!(sessions.attached().await, Err(Error::Config(_))));
    let unknown = r#"{"sessionId":"gone","agent":"mock","agentSessionId":"x","index":3}"#;
    let client = world.options().await.attach(serde_json::from_str(unknown).unwrap()).build().unwrap();
    assert!(matches!(client.sessions().attached().await, Err(Error::Store(_))));
}
