//! The limits of turns that are sent again.

use std::time::Duration;

use mock_server::{Script, State, Step};
use sandbox_agent_sdk::NewSession;

use crate::support::{KINDS, within};
use crate::world::{Ability, World};

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
