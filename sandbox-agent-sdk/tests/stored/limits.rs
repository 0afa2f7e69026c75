//! The limits of turns that are sent again.

use std::time::Duration;

use mock_server::{Script, State, Step};
use sandbox_agent_sdk::sessions::StoredEventKind;
use sandbox_agent_sdk::{Event, NewSession};
use tokio::sync::oneshot;

use crate::gated::Gated;
use crate::support::{KINDS, event, within};
use crate::world::{Ability, World, agent, ask, ends, options, stored, unknown_session};

#[tokio::test]
async fn a_busy_turn_that_is_sent_again_is_not_idle() {
    const LIMIT: Duration = Duration::from_secs(2);
    let words = ["word"; 30].join(" ");
    for kind in KINDS {
        let spoken = words.clone();
        let script = Script::new(move |turn| {
            let prompt = turn.params["prompt"].as_array().unwrap();
            match prompt.last().unwrap()["text"].as_str() {
                Some("first") => vec![Step::Say("first".into())],
                _ => Step::say_words(&spoken, LIMIT / 20),
            }
        });
        let world = World::new(kind, script.initialize(Ability::Neither.initialize())).await;
        let (_, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        within(async { session.prompt("first").await?.text().await }).await.unwrap();
        world.server.restart(State::Lost).await;
        let mut failures = 0;
        let text = loop {
            let turn = within(session.prompt("go")).await.unwrap();
            match within(turn.with_idle_timeout(LIMIT).text()).await {
                Ok(text) => break text,
                // The client may not know of the restart yet.
                Err(error) => {
                    assert!(!error.is_timeout(), "{kind}: {error:?}");
                    failures += 1;
                    assert!(failures < 5, "{kind}: {error:?}");
                }
            }
        };
        assert_eq!(text, words, "{kind}");
    }
}

#[tokio::test]
async fn a_turn_that_reaches_a_limit_while_its_session_is_restored_has_one_end() {
    for kind in KINDS {
        let world = World::new(kind, agent(Ability::Neither)).await;
        let store = Gated::new(world.store().await);
        let sessions = options(&world.server, kind).shared_store(store.clone()).build().unwrap();
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "first").await;
        world.server.inject(unknown_session());
        let (restoring, is_restoring) = oneshot::channel();
        let (restore, may_restore) = oneshot::channel::<()>();
        *store.before_acquire.lock().unwrap() = Some(Box::new(move || {
            restoring.send(()).unwrap();
            Box::pin(async { may_restore.await.unwrap() })
        }));
        let mut events = session.events();
        let turn = within(session.prompt("late")).await.unwrap();
        within(is_restoring).await.unwrap();
        let error = within(turn.with_deadline(Duration::from_millis(50)).outcome()).await.unwrap_err();
        assert!(error.is_timeout() && !error.maybe_executed(), "{kind}: {error:?}");
        restore.send(()).unwrap();
        let ended = event(&mut events, |event| match event {
            Event::TurnEnded(ended) => Some(ended),
            _ => None,
        })
        .await;
        assert!(ended.outcome.as_ref().is_err_and(|error| error.is_timeout()), "{kind}: {ended:?}");
        ask(&session, "second").await;
        within(sessions.flush()).await.unwrap();
        let kept = stored(&*store, "mine").await;
        let late = kept.iter().find(|event| event.payload["prompt"][0]["text"] == "late").unwrap();
        assert_eq!(late.kind, StoredEventKind::Prompt, "{kind}");
        let ends = ends(&kept);
        let ends: Vec<_> = ends.iter().filter(|end| end.turn_id == late.turn_id).collect();
        assert_eq!(ends.len(), 1, "{kind}: {kept:#?}");
        assert_eq!(ends[0].payload["executed"], false, "{kind}");
        assert_eq!(world.server.messages("session/new").len(), 2, "{kind}: it is restored once");
    }
}
