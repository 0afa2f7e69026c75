//! Usage of turns, and budgets.

use std::time::Duration;

use mock_server::{MockServer, Script, State, Step};
use sandbox_agent_sdk::usage::{Budget, BudgetEvent, BudgetMeasure, BudgetState, Counts};
use sandbox_agent_sdk::{Error, Event, Events, OpenSession, SandboxAgentClient, ServerKind, StopReason};
use serde_json::json;

use super::support::{KINDS, event, options, session, within};

/// A step that reports the running total of the cost.
fn cost(amount: f64) -> Step {
    let cost = json!({"amount": amount, "currency": "USD"});
    Step::Update(json!({"sessionUpdate": "usage_update", "used": 10, "size": 100, "cost": cost}))
}

fn finish(input: u64, output: u64) -> Step {
    let usage = json!({"inputTokens": input, "outputTokens": output, "cachedReadTokens": 4});
    Step::Finish(json!({"stopReason": "end_turn", "usage": usage, "_meta": {"trace": 1}}))
}

/// Returns a server whose agent has a known name, and a client.
async fn world(kind: ServerKind, agent: &str, script: Script) -> (MockServer, SandboxAgentClient) {
    let server = MockServer::builder().agent(agent, script).start().await;
    let client = options(&server, kind).agent(agent).build().unwrap();
    (server, client)
}

async fn budget_event(events: &mut Events) -> BudgetEvent {
    event(events, |event| match event {
        Event::Budget(budget) => Some(*budget),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn a_turn_reports_its_usage_and_session_and_client_add_it_up() {
    for kind in KINDS {
        let script = Script::new(|turn| {
            let so_far = 0.25 * turn.number as f64;
            vec![cost(so_far - 0.1), cost(so_far), finish(10, 5)]
        });
        let (_server, client) = world(kind, "claude", script).await;
        let (one, two) = (session(&client).await, session(&client).await);
        for (session, turns) in [(&one, 2), (&two, 1)] {
            for _ in 0..turns {
                let outcome = within(session.prompt("go").outcome()).await.unwrap();
                let tokens = outcome.usage.tokens.unwrap();
                assert_eq!((tokens.input, tokens.output, tokens.cached_read), (Some(10), Some(5), Some(4)));
                assert_eq!(outcome.usage.counts, Some(Counts::Turn));
                let cost = outcome.usage.cost.as_ref().unwrap();
                assert_eq!((cost.amount, cost.currency.as_str()), (0.25, "USD"));
                assert_eq!((outcome.usage.context_used, outcome.usage.context_size), (Some(10), Some(100)));
                assert_eq!(outcome.meta().unwrap()["trace"], 1);
            }
        }
        let used = one.usage();
        assert_eq!((used.turns, used.tokens.input, used.tokens_complete), (2, Some(20), true));
        assert_eq!(used.cost("USD").unwrap().amount, 0.5);
        assert_eq!(one.snapshot().cost.as_ref().unwrap().amount, 0.5);
        let all = client.usage();
        assert_eq!((all.turns, all.tokens.output, all.cost("USD").unwrap().amount), (3, Some(15), 0.75));
        let written = serde_json::to_value(&all).unwrap();
        assert_eq!(written["costs"], json!([{"amount": 0.75, "currency": "USD"}]));
    }
}

#[tokio::test]
async fn neither_a_reconnect_nor_a_load_counts_anything_twice() {
    let chunk = |text: &str| {
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text},
            "_meta": {"usage": {"inputTokens": 7, "outputTokens": 3}}})
    };
    let steps =
        vec![Step::Update(chunk("a")), cost(0.5), Step::Update(chunk("b")), Step::Stop("end_turn".into())];
    let history = move |_: &str| vec![chunk("a"), chunk("b")];
    let (server, client) = world(ServerKind::Shared, "qwen", Script::steps(steps).history(history)).await;
    let session = session(&client).await;
    let mut events = client.events();
    let first = within(session.prompt("go").outcome()).await.unwrap();
    assert_eq!(first.usage.tokens.unwrap().all(), 20, "the model calls of a turn are added up");
    server.restart(State::Preserved).await;
    event(&mut events, |event| matches!(event, Event::Reconnected { .. }).then_some(())).await;
    let loaded = within(client.load_session(session.id(), OpenSession::in_dir("/"))).await.unwrap();
    assert_eq!(loaded.history().len(), 2, "the history repeats the reports");
    let used = session.usage();
    assert_eq!((used.tokens.all(), used.cost("USD").unwrap().amount, used.turns), (20, 0.5, 1));
    assert_eq!(client.usage(), used);
    within(loaded.prompt("go").outcome()).await.unwrap();
    let used = session.usage();
    assert_eq!((used.tokens.all(), used.cost("USD").unwrap().amount, used.turns), (40, 0.5, 2));
}

#[tokio::test]
async fn usage_counted_per_process_is_added_up_over_agent_restarts() {
    for kind in KINDS {
        let script = Script::new(|turn| match turn.text.as_str() {
            "die" => vec![cost(0.5), Step::crash(3, ["boom"])],
            _ => vec![cost(0.75), finish(1, 1)],
        });
        let (_server, client) = world(kind, "claude", script).await;
        let session = session(&client).await;
        within(session.prompt("die").outcome()).await.unwrap_err();
        within(client.restart_agent()).await.unwrap();
        let again = within(client.load_session(session.id(), OpenSession::in_dir("/"))).await.unwrap();
        within(again.prompt("go").outcome()).await.unwrap();
        let used = again.usage();
        assert_eq!((used.cost("USD").unwrap().amount, used.turns, used.tokens_complete), (1.25, 2, false));
    }
}

#[tokio::test]
async fn a_budget_warns_then_cancels_the_turn_and_refuses_the_next() {
    for kind in KINDS {
        let script = Script::steps(vec![cost(0.85), cost(1.2), Step::WaitForCancel]);
        let (server, client) = world(kind, "opencode", script).await;
        let session = session(&client).await;
        session.set_budget(Budget::new().max_cost(1.0, "USD"));
        let mut events = session.events();
        let outcome = within(session.prompt("go").outcome()).await.unwrap();
        assert_eq!(outcome.stop_reason, StopReason::Cancelled);
        let spent = outcome.budget.unwrap();
        assert_eq!((spent.session_id.as_deref(), spent.state), (Some(session.id()), BudgetState::Spent));
        assert!(
            matches!(&spent.measure, BudgetMeasure::Cost { used, limit, .. } if used.amount == 1.2 && limit.amount == 1.0)
        );
        // Two reports that arrive together may be published as one.
        let mut published = budget_event(&mut events).await;
        if published.state == BudgetState::Warning {
            published = budget_event(&mut events).await;
        }
        assert_eq!(published, *spent);
        let refused = within(session.prompt("more").outcome()).await.unwrap_err();
        assert!(matches!(&refused, Error::BudgetSpent(budget) if **budget == *spent), "{refused:?}");
        assert!(!refused.maybe_executed() && !refused.is_terminal());
        assert_eq!(server.messages("session/prompt").len(), 1, "it was not sent");
        session.set_budget(None);
        let mut turn = session.prompt("more");
        assert!(within(turn.next()).await.is_some(), "without a budget it is sent");
    }
}

#[tokio::test]
async fn an_agent_that_reports_at_the_end_of_a_turn_is_stopped_before_the_next() {
    for kind in KINDS {
        let (_server, client) = world(kind, "gemini", Script::steps(vec![finish(600, 600)])).await;
        let session = session(&client).await;
        session.set_budget(Budget::new().max_tokens(1000));
        let outcome = within(session.prompt("go").outcome()).await.unwrap();
        assert_eq!((outcome.stop_reason, outcome.budget), (StopReason::EndTurn, None));
        let refused = within(session.prompt("more").outcome()).await.unwrap_err();
        assert!(
            matches!(&refused, Error::BudgetSpent(budget)
            if matches!(budget.measure, BudgetMeasure::Tokens { used: 1200, limit: 1000, .. })),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn without_usage_reports_only_turn_and_time_budgets_apply_and_a_warning_says_so() {
    for kind in KINDS {
        let script = Script::new(|turn| match turn.text.as_str() {
            "wait" => vec![Step::WaitForCancel],
            _ => vec![Step::Say("free".into())],
        });
        let (server, client) = world(kind, "codex", script).await;
        client.set_budget(Budget::new().max_cost(0.01, "USD").max_turns(2).warn_at(1.0));
        let (one, two) = (session(&client).await, session(&client).await);
        let mut events = client.events();
        within(one.prompt("go").outcome()).await.unwrap();
        let published = budget_event(&mut events).await;
        assert_eq!((published.session_id.as_deref(), published.state), (None, BudgetState::NotReported));
        assert!(matches!(published.measure, BudgetMeasure::Cost { .. }));
        within(two.prompt("go").outcome()).await.unwrap();
        let published = budget_event(&mut events).await;
        assert!(matches!(published.measure, BudgetMeasure::Turns { used: 2, limit: 2, .. }), "{published:?}");
        assert!(matches!(within(one.prompt("go").outcome()).await, Err(Error::BudgetSpent(_))));
        assert_eq!(server.messages("session/prompt").len(), 2);

        client.set_budget(None);
        // The time of earlier turns counts: this session has none.
        let three = session(&client).await;
        three.set_budget(Budget::new().max_time(Duration::from_millis(50)));
        let outcome = within(three.prompt("wait").outcome()).await.unwrap();
        assert_eq!(outcome.stop_reason, StopReason::Cancelled);
        assert!(matches!(outcome.budget.unwrap().measure, BudgetMeasure::Time { .. }));
        assert!(matches!(within(three.prompt("go").outcome()).await, Err(Error::BudgetSpent(_))));
    }
}

#[tokio::test]
async fn a_client_can_be_created_with_a_budget() {
    let server = MockServer::start().await;
    let budget = Budget::new().max_turns(0);
    let client = options(&server, ServerKind::Shared).budget(budget).build().unwrap();
    let refused = within(session(&client).await.prompt("go").outcome()).await.unwrap_err();
    assert_eq!(refused.to_string(), "the budget of the client is spent: 0 of 0 turns");
    assert_eq!(client.usage().turns, 0);
}
