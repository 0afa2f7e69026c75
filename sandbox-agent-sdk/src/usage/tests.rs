//! What is counted, and that nothing is counted twice.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::agents::Rules;
use super::meter::TurnEnd;
use super::{Budget, BudgetState, Counts, Meter, TurnUsage, UsageTable};
use crate::Update;
use crate::event::Origin;

fn update(update: Value, origin: Origin) -> Update {
    Update::read(json!({"sessionId": "s", "update": update}), origin, 10)
}

fn cost(amount: f64) -> Update {
    let cost = json!({"amount": amount, "currency": "USD"});
    update(json!({"sessionUpdate": "usage_update", "used": 10, "size": 100, "cost": cost}), Origin::Live)
}

fn end(response: &Value) -> TurnEnd<'_> {
    TurnEnd { response: Some(response), elapsed: Duration::from_secs(1), cancelled: false, executed: true }
}

/// Runs a turn with these updates and this response.
fn turn(meter: &mut Meter, agent: &str, updates: &[Update], response: &Value) -> TurnUsage {
    meter.begin_turn();
    for update in updates {
        meter.observe(update, Rules::of(agent));
    }
    meter.end_turn(&end(response), Rules::of(agent))
}

fn spent(meter: &Meter) -> f64 {
    meter.totals().cost("USD").map_or(0.0, |cost| (cost.amount * 100.0).round() / 100.0)
}

#[test]
fn every_known_agent_is_understood() {
    let usage = json!({"inputTokens": 7, "outputTokens": 3, "totalTokens": 10});
    let chunk = |tokens: u64| {
        let meta = json!({"usage": {"inputTokens": tokens, "outputTokens": 1, "thoughtTokens": 2, "cachedReadTokens": 3}});
        update(
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": ""}, "_meta": meta}),
            Origin::Live,
        )
    };
    let context = update(json!({"sessionUpdate": "usage_update", "used": 5, "size": 9}), Origin::Live);
    let quota = json!({"stopReason": "end_turn", "_meta": {"quota": {"token_count": {"input_tokens": 8, "output_tokens": 2},
        "model_usage": [{"model": "m", "token_count": {"input_tokens": 8, "output_tokens": 2}}]}}});
    // The agent, its reports, and the result: total tokens, what they count, cost.
    let table = [
        ("opencode", vec![cost(0.5)], json!({ "usage": usage }), (Some(10), Some(Counts::Call), Some(0.5))),
        (
            "claude",
            vec![context.clone(), cost(0.5)],
            json!({ "usage": usage }),
            (Some(10), Some(Counts::Turn), Some(0.5)),
        ),
        ("codex", vec![context], json!({}), (None, None, None)),
        ("gemini", vec![], quota, (Some(10), Some(Counts::Turn), None)),
        ("qwen", vec![chunk(4), chunk(5)], json!({}), (Some(11), Some(Counts::Turn), None)),
        ("new", vec![cost(0.5)], json!({ "usage": usage }), (Some(10), Some(Counts::Turn), Some(0.5))),
    ];
    for (agent, updates, response, (tokens, counts, cost)) in table {
        let mut meter = Meter::default();
        let used = turn(&mut meter, agent, &updates, &response);
        assert_eq!(used.tokens.map(|tokens| tokens.all()), tokens, "{agent}");
        assert_eq!(used.counts, counts, "{agent}");
        assert_eq!(used.cost.map(|cost| cost.amount), cost, "{agent}");
        let totals = meter.totals();
        assert_eq!((totals.tokens.all(), totals.turns), (tokens.unwrap_or(0), 1), "{agent}");
        assert_eq!(totals.tokens_complete, counts == Some(Counts::Turn), "{agent}");
        if agent == "qwen" {
            assert_eq!((totals.tokens.thought, totals.tokens.cached_read), (Some(4), Some(6)));
        }
        if agent == "gemini" {
            assert_eq!(used.models[0].model, "m");
        }
    }
}

#[test]
fn of_a_running_total_only_the_difference_counts() {
    let mut meter = Meter::default();
    let none = json!({});
    assert_eq!(turn(&mut meter, "claude", &[cost(0.5), cost(0.5)], &none).cost.unwrap().amount, 0.5);
    let second = turn(&mut meter, "claude", &[cost(0.75)], &none);
    assert_eq!((second.cost.unwrap().amount, spent(&meter)), (0.25, 0.75));
    // Nothing was reported, so no usage is returned.
    assert_eq!(turn(&mut meter, "claude", &[], &none).cost, None);
}

#[test]
fn a_total_that_begins_again_is_added_and_one_that_continues_is_not() {
    // An agent that counts per process: its next process starts at zero, even if its total is already higher.
    let mut meter = Meter::default();
    turn(&mut meter, "claude", &[cost(0.5)], &json!({}));
    meter.end_process(Rules::of("claude"));
    turn(&mut meter, "claude", &[cost(0.75)], &json!({}));
    assert_eq!(spent(&meter), 1.25);
    // An agent that counts per session continues.
    let mut meter = Meter::default();
    turn(&mut meter, "opencode", &[cost(0.5)], &json!({}));
    meter.end_process(Rules::of("opencode"));
    turn(&mut meter, "opencode", &[cost(0.75)], &json!({}));
    assert_eq!(spent(&meter), 0.75);
    // A smaller total indicates an unnoticed restart.
    turn(&mut meter, "opencode", &[cost(0.1)], &json!({}));
    assert_eq!(spent(&meter), 0.85);
}

#[test]
fn the_first_total_of_a_session_that_was_joined_is_not_the_cost_of_a_turn() {
    // The agent, whether others may use its process, and what the first turn is known to have cost.
    let table = [("opencode", false, None), ("claude", false, Some(0.5)), ("claude", true, None)];
    for (agent, shared, first) in table {
        let mut meter = Meter::default();
        meter.join(Rules::of(agent), shared);
        let used = turn(&mut meter, agent, &[cost(0.5)], &json!({}));
        assert_eq!(used.cost.map(|cost| cost.amount), first, "{agent} {shared}");
        assert_eq!(spent(&meter), 0.5, "the total is what the agent reports");
        let next = turn(&mut meter, agent, &[cost(0.75)], &json!({}));
        assert_eq!(next.cost.map(|cost| cost.amount), Some(0.25), "{agent} {shared}");
        // With a known total, a second load does not make the usage uncertain.
        meter.join(Rules::of(agent), shared);
        assert_eq!(turn(&mut meter, agent, &[cost(1.0)], &json!({})).cost.unwrap().amount, 0.25);
    }
}

#[test]
fn what_is_replayed_or_history_does_not_count_again() {
    let mut meter = Meter::default();
    for origin in [Origin::Replayed, Origin::History] {
        let meta = json!({"usage": {"inputTokens": 5}});
        let chunk = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": ""}, "_meta": meta});
        let usage = json!({"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 3, "currency": "USD"}});
        for old in [chunk, usage] {
            assert!(!meter.observe(&update(old, origin), Rules::default()));
        }
    }
    assert_eq!((meter.totals().tokens.all(), meter.totals().costs), (0, vec![]));
}

#[test]
fn a_cancelled_turn_does_not_repeat_the_call_of_the_turn_before() {
    let mut meter = Meter::default();
    let response = json!({"usage": {"inputTokens": 7, "outputTokens": 3}});
    turn(&mut meter, "opencode", &[], &response);
    meter.begin_turn();
    let used = meter.end_turn(&TurnEnd { cancelled: true, ..end(&response) }, Rules::of("opencode"));
    assert_eq!((used.tokens, meter.totals().tokens.all(), meter.totals().turns), (None, 10, 2));
}

#[test]
fn a_prompt_that_was_not_sent_is_not_a_turn() {
    let mut meter = Meter::default();
    meter.begin_turn();
    meter.end_turn(&TurnEnd { response: None, executed: false, ..end(&json!({})) }, Rules::default());
    assert_eq!(meter.totals().turns, 0);
    assert!(meter.totals().tokens_complete);
}

#[test]
fn a_hostile_agent_makes_no_meter_grow_or_fail() {
    let mut meter = Meter::default();
    for (bytes, counts) in [(63, true), (64, true), (65, false)] {
        let cost = json!({"amount": 1.0, "currency": "C".repeat(bytes)});
        let usage = json!({"sessionUpdate": "usage_update", "used": 1, "size": 1, "cost": cost});
        meter.observe(&update(usage, Origin::Live), Rules::default());
        assert_eq!(meter.totals().cost(&"C".repeat(bytes)).is_some(), counts, "{bytes}");
    }
    for number in 0..10_000 {
        let cost = json!({"amount": 1e308, "currency": format!("C{number}")});
        let usage = json!({"sessionUpdate": "usage_update", "used": u64::MAX, "size": -1, "cost": cost});
        meter.observe(&update(usage, Origin::Live), Rules::default());
        let meta = json!({"usage": {"inputTokens": u64::MAX, "outputTokens": u64::MAX}});
        let chunk = json!({"sessionUpdate": "agent_message_chunk", "content": 1, "_meta": meta});
        meter.observe(&update(chunk, Origin::Live), Rules::default());
    }
    assert!(meter.totals().costs.len() <= 16);
    assert_eq!(meter.totals().tokens.all(), u64::MAX);
    for amount in [json!(-1.0), json!("1"), json!(null), json!({})] {
        let usage = json!({"sessionUpdate": "usage_update", "cost": {"amount": amount, "currency": "X"}});
        meter.observe(&update(usage, Origin::Live), Rules::default());
    }
    assert_eq!(meter.totals().cost("X"), None);
}

#[test]
fn a_budget_warns_once_and_then_is_spent_once() {
    let (mut usage, now) = (UsageTable::default(), Instant::now());
    usage.set_budget(Some("s"), Some(Budget::new().max_cost(1.0, "USD")));
    assert_eq!(usage.refuses("s", now), None);
    usage.begin_turn("s", now);
    usage.observe(&cost(0.5));
    assert_eq!(usage.news("s", now, false), []);
    usage.observe(&cost(0.8));
    fn states(usage: &mut UsageTable, now: Instant) -> Vec<BudgetState> {
        usage.news("s", now, false).iter().map(|news| news.state).collect()
    }
    assert_eq!((states(&mut usage, now), states(&mut usage, now)), (vec![BudgetState::Warning], vec![]));
    assert_eq!(usage.cancels("s", now), None);
    usage.observe(&cost(1.0));
    assert_eq!((states(&mut usage, now), states(&mut usage, now)), (vec![BudgetState::Spent], vec![]));
    assert!(usage.cancels("s", now).is_some() && usage.refuses("s", now).is_some());
    assert_eq!(usage.refuses("other", now), None, "the budget belongs to one session");
}

#[test]
fn a_clients_budget_counts_all_its_sessions() {
    let (mut usage, now) = (UsageTable::default(), Instant::now());
    usage.set_budget(None, Some(Budget::new().max_turns(2)));
    for session in ["a", "b"] {
        assert_eq!(usage.refuses(session, now), None);
        usage.begin_turn(session, now);
        assert_eq!(usage.cancels(session, now), None, "the last turn may run");
    }
    assert_eq!(usage.refuses("c", now).unwrap().session_id, None);
    assert_eq!(usage.of_all().turns, 2);
}

#[test]
fn time_counts_while_turns_run_and_the_next_moment_is_known() {
    let (mut usage, start) = (UsageTable::default(), Instant::now());
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    usage.set_budget(Some("s"), Some(Budget::new().max_time(Duration::from_secs(10)).warn_at(0.5)));
    assert_eq!(usage.next_moment("s", start), None, "no turn runs");
    usage.begin_turn("s", start);
    assert_eq!(usage.next_moment("s", at(1)), Some(Duration::from_secs(4)));
    assert_eq!(usage.news("s", at(5), false)[0].state, BudgetState::Warning);
    assert_eq!(usage.next_moment("s", at(5)), Some(Duration::from_secs(5)));
    assert_eq!(usage.cancels("s", at(9)), None);
    assert!(usage.cancels("s", at(10)).is_some());
    usage.end_turn("s", &TurnEnd { elapsed: Duration::from_secs(6), ..end(&json!({})) });
    assert_eq!(usage.refuses("s", at(1000)), None, "the time between turns does not count");
}

#[test]
fn an_agent_that_never_reports_is_published_once() {
    let (mut usage, now) = (UsageTable::default(), Instant::now());
    usage.set_budget(Some("s"), Some(Budget::new().max_cost(1.0, "USD").max_tokens(100).max_turns(3)));
    usage.begin_turn("s", now);
    assert_eq!(usage.news("s", now, false), [], "the agent may still report");
    usage.end_turn("s", &end(&json!({})));
    let states: Vec<_> = usage.news("s", now, true).iter().map(|news| news.state).collect();
    assert_eq!(states, [BudgetState::NotReported, BudgetState::NotReported]);
    assert_eq!(usage.news("s", now, true), []);
}
