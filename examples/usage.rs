//! Prints the cost of each turn, and stops when a budget is spent.
//!
//! The agent of the embedded server reports its usage. If `SANDBOX_AGENT_URL` is set (with `SANDBOX_AGENT_TOKEN` and
//! `SANDBOX_AGENT_AGENT`, if required), the agent of that server is used instead; not every agent reports costs.

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::usage::Budget;
use sandbox_agent_sdk::{Error, Event, NewSession};
use sdk_examples::Server;
use serde_json::json;

/// An agent whose turns cost 0.40 USD each.
fn costly() -> Script {
    Script::new(|turn| {
        let cost = json!({"amount": 0.40 * turn.number as f64, "currency": "USD"});
        let usage = json!({"inputTokens": 900, "outputTokens": 100, "cachedReadTokens": 700});
        vec![
            Step::Say("done".into()),
            Step::Update(
                json!({"sessionUpdate": "usage_update", "used": 1000, "size": 200_000, "cost": cost}),
            ),
            Step::Finish(json!({"stopReason": "end_turn", "usage": usage})),
        ]
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let server = Server::find_or_start(MockServer::builder().agent("mock", costly())).await;
    let client = server.options().build()?;
    let mut events = client.events();
    let session = client.new_session(NewSession::in_dir("/")).await?;
    session.set_budget(Budget::new().max_cost(1.0, "USD").max_turns(5).warn_at(0.7));

    for number in 1..=5 {
        match session.prompt("do the next step").outcome().await {
            Ok(outcome) => {
                let tokens = outcome.usage.tokens.map_or("no".to_owned(), |tokens| tokens.all().to_string());
                let cost = outcome.usage.cost.map_or("an unknown amount".to_owned(), |cost| cost.to_string());
                println!("turn {number}: {tokens} tokens reported, {cost}");
            }
            Err(Error::BudgetSpent(spent)) => {
                println!("turn {number} was not sent: {spent}");
                break;
            }
            Err(error) => return Err(error),
        }
        while let Some(event) = events.try_next() {
            if let Event::Budget(warning) = event {
                println!("  {warning}");
            }
        }
    }
    let used = client.usage();
    println!("total: {} turns, {} tokens, {:?}", used.turns, used.tokens.all(), used.costs);
    client.disconnect().await
}
