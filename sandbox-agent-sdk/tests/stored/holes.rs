//! Turns of stored sessions with missing updates.

use mock_server::{Fault, Script, Step};
use sandbox_agent_sdk::{Error, NewSession, ServerKind};
use serde_json::json;

use crate::support::within;
use crate::world::{Ability, World, kinds, said, stored};

/// An agent that says four letters and knows them when it is loaded.
fn letters() -> Script {
    let chunk =
        |kind: &str, text: &str| json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
    let history = vec![chunk("user_message_chunk", "go"), chunk("agent_message_chunk", "abcd")];
    Script::new(|_| ["a", "b", "c", "d"].map(|text| Step::Say(text.into())).to_vec())
        .initialize(Ability::Load.initialize())
        .history(move |_| history.clone())
}

#[tokio::test]
async fn a_hole_in_a_stored_turn_makes_it_incomplete_or_is_filled_from_the_agents_history() {
    for reload in [false, true] {
        let world = World::new(ServerKind::Shared, letters()).await;
        let sessions = world.options().await.reload_incomplete_turns(reload).build().unwrap();
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        world.server.inject(Fault::Hole { id: world.server.last_event_id() + 2 });
        let text = within(async { session.prompt("go").await?.text().await }).await;
        match (reload, text) {
            (true, text) => assert_eq!(text.unwrap(), "abcd"),
            (false, Err(Error::IncompleteTurn(turn))) => {
                assert_eq!((turn.collected.text.as_str(), turn.missing.len()), ("acd", 1));
            }
            (false, text) => panic!("{text:?}"),
        }
        sessions.flush().await.unwrap();
        let events = stored(&**sessions.store(), "mine").await;
        assert!(kinds(&events).contains(&"gap"), "{:?}", kinds(&events));
        assert_eq!(said(&events)[..3], ["a", "c", "d"], "{reload}");
    }
}
