//! What a stored session used, over programs and agents.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mock_server::{Script, Step};
use sandbox_agent_sdk::NewSession;
use sandbox_agent_sdk::usage::Budget;
use serde_json::json;

use crate::support::{KINDS, within};
use crate::world::World;

/// An agent that reports the running total of its session's cost, over its own restarts too.
fn costly() -> Script {
    let turns = Arc::new(AtomicUsize::new(0));
    Script::new(move |turn| {
        let amount = 0.25 * (turns.fetch_add(1, Ordering::SeqCst) + 1) as f64;
        let cost = json!({"amount": amount, "currency": "USD"});
        let update = json!({"sessionUpdate": "usage_update", "used": 1, "size": 9, "cost": cost});
        let usage = json!({"inputTokens": 10, "outputTokens": 5});
        let end = match turn.text.as_str() {
            "die" => Step::crash(3, ["fatal"]),
            _ => Step::Finish(json!({"stopReason": "end_turn", "usage": usage})),
        };
        vec![Step::Update(update), end]
    })
    .history(|_| {
        let cost = json!({"amount": 9.0, "currency": "USD"});
        vec![json!({"sessionUpdate": "usage_update", "used": 1, "size": 9, "cost": cost})]
    })
}

#[tokio::test]
async fn a_stored_session_adds_up_over_crashes_and_programs_and_counts_nothing_twice() {
    for kind in KINDS {
        let script =
            costly().initialize(json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}}));
        let world = World::new(kind, script).await;
        let (client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        within(async { session.prompt("one").await?.text().await }).await.unwrap();
        within(async { session.prompt("die").await?.text().await }).await.unwrap_err();
        within(client.disconnect()).await.unwrap();
        drop((client, sessions, session));

        let (client, sessions) = world.program().await;
        let session = within(sessions.resume_or_create("mine", NewSession::in_dir("/"))).await.unwrap();
        within(async { session.prompt("two").await?.text().await }).await.unwrap();
        let used = within(session.usage()).await.unwrap();
        assert_eq!(
            (used.turns, used.tokens.all(), used.cost("USD").unwrap().amount),
            (3, 30, 0.75),
            "{kind}"
        );
        assert!(!used.tokens_complete, "the turn that died did not say");

        client.set_budget(Budget::new().max_turns(1));
        within(async { session.prompt("refused").await?.text().await }).await.unwrap_err();
        assert_eq!(within(session.usage()).await.unwrap().turns, 3, "what was not sent is no turn");
        within(client.disconnect()).await.unwrap();
    }
}
