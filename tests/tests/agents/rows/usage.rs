//! Tokens, context and cost.

use sandbox_agent_sdk::{
    PermissionPolicy, Session, TurnOutcome,
    usage::{Counts, TurnUsage, UsageTotals},
};
use sdk_tests::{
    agents::RealAgent,
    model::{INPUT_TOKENS, OUTPUT_TOKENS},
};

use crate::{
    bench::{Bench, ask, chain, in_time},
    cell::{Cell, Seen},
    rows::lifecycle::REMEMBERED,
};

/// All tokens of one call of the model.
const CALL: u64 = INPUT_TOKENS + OUTPUT_TOKENS;

/// What one call of the model costs: by its configuration (opencode) or its built-in prices (claude).
fn price(agent: RealAgent) -> Option<f64> {
    let by_million =
        |input: f64, output: f64| (INPUT_TOKENS as f64 * input + OUTPUT_TOKENS as f64 * output) / 1e6;
    match agent {
        RealAgent::OpenCode => Some(by_million(1.0, 2.0)),
        RealAgent::Claude => Some(by_million(5.0, 25.0)),
        RealAgent::Codex | RealAgent::Gemini | RealAgent::Qwen => None,
    }
}

/// How many calls of the model a cost is, for agents that report costs.
fn calls_paid(agent: RealAgent, amount: Option<f64>) -> Option<u64> {
    let calls = amount? / price(agent).expect("an agent that reports no cost");
    assert!((calls - calls.round()).abs() < 1e-6, "{amount:?} is not the cost of whole calls");
    Some(calls.round() as u64)
}

/// How many calls of the model an agent reports of a turn with this many: tokens, and what they count.
fn calls_reported(agent: RealAgent, made: u64) -> Option<(u64, Counts)> {
    match agent {
        RealAgent::OpenCode => Some((1, Counts::Call)),
        RealAgent::Claude | RealAgent::Gemini | RealAgent::Qwen => Some((made, Counts::Turn)),
        RealAgent::Codex => None,
    }
}

/// Prompts, and gives what the turn used after a look at its tokens.
async fn used(session: &Session, agent: RealAgent, prompt: &str, calls: u64) -> TurnUsage {
    let log = ask(session, prompt).await;
    let TurnOutcome { usage, .. } = log.ended().outcome.as_ref().expect("an outcome");
    let reported = calls_reported(agent, calls);
    assert_eq!(usage.tokens.map(|tokens| tokens.all()), reported.map(|(calls, _)| calls * CALL), "{usage:?}");
    assert_eq!(usage.counts, reported.map(|(_, counts)| counts), "{usage:?}");
    (**usage).clone()
}

/// The tokens and the paid calls of some turns.
fn sums(agent: RealAgent, totals: &UsageTotals) -> (u64, u64, Option<u64>) {
    let cost = totals.cost("USD").map(|cost| cost.amount);
    (totals.turns, totals.tokens.all() / CALL, calls_paid(agent, cost))
}

pub(super) async fn usage_is_reported(cell: Cell) -> Seen {
    let (bench, agent) = (Bench::start(cell).await, cell.agent);
    let session = bench.session().await;
    let paid = |calls: u64| price(agent).map(|_| calls);
    // The second turn calls the model twice: for the tool, and with what the tool said.
    for (prompt, calls) in [("say 3", 1), ("tool echo hi", 2)] {
        let turn = used(&session, agent, prompt, calls).await;
        assert_eq!(calls_paid(agent, turn.cost.as_ref().map(|cost| cost.amount)), paid(calls), "{turn:?}");
        let snapshot = session.snapshot();
        assert_eq!((turn.context_used, turn.context_size), (snapshot.context_used, snapshot.context_size));
        let has_context = matches!(agent, RealAgent::OpenCode | RealAgent::Codex | RealAgent::Claude);
        assert_eq!(
            snapshot.context_used.is_some_and(|used| used >= INPUT_TOKENS),
            has_context,
            "{snapshot:?}"
        );
        assert_eq!(snapshot.context_size.is_some_and(|size| size > CALL), has_context, "{snapshot:?}");
    }
    let totals = session.usage();
    let reported = [1, 2].map(|calls| calls_reported(agent, calls).map_or(0, |(calls, _)| calls));
    assert_eq!(sums(agent, &totals), (2, reported.iter().sum(), paid(3)), "{totals:?}");
    assert_eq!(totals.tokens_complete, matches!(calls_reported(agent, 1), Some((_, Counts::Turn))));
    assert_eq!(session.client().usage(), totals, "it is the only session");
    let cost = session.snapshot().cost.as_ref().map(|cost| cost.amount);
    assert_eq!(calls_paid(agent, cost), paid(3), "the agent reports a running total");
    Seen::note(match agent {
        RealAgent::OpenCode => "tokens of the last model call, context, cost",
        RealAgent::Claude => "tokens of the turn, context, cost",
        RealAgent::Codex => "context; no tokens, no cost",
        RealAgent::Gemini => "tokens of the turn, by model; no context, no cost",
        RealAgent::Qwen => "tokens of the turn; no context, no cost",
    })
}

pub(super) async fn usage_is_counted_once_over_a_load(cell: Cell) -> Seen {
    let (bench, agent) = (Bench::start(cell).await, cell.agent);
    let options = || bench.options().permissions(PermissionPolicy::BypassPermissions);
    let first = bench.connect(options()).await;
    let session = first.session(bench.new_session()).await;
    used(&session, agent, "say 3", 1).await;
    used(&session, agent, "remember this", 1).await;
    let before = session.usage();
    bench.written(REMEMBERED).await;
    let second = if bench.is_released() { bench.connect(options()).await } else { first };
    let loaded = in_time("loading", second.client.load_session(session.id(), bench.open_session())).await;
    let loaded = loaded.unwrap_or_else(|error| panic!("session/load: {}", chain(&error)));
    // The client that counted the earlier usage still has it; another client does not count it.
    let expected = if bench.is_released() { (0, 0, None) } else { sums(agent, &before) };
    assert_eq!(sums(agent, &loaded.usage()), expected, "after the load");
    let turn = used(&loaded, agent, "say 1", 1).await;
    let paid = calls_paid(agent, turn.cost.as_ref().map(|cost| cost.amount));
    let (turns, tokens, _) = expected;
    let reported = calls_reported(agent, 1).map_or(0, |(calls, _)| calls);
    let totals = sums(agent, &loaded.usage());
    assert_eq!((totals.0, totals.1), (turns + 1, tokens + reported));
    match (agent, bench.is_released()) {
        // Its running total is the session's: it does not say which turns of which client it includes.
        (RealAgent::OpenCode, true) => {
            assert_eq!((paid, totals.2), (None, Some(3)));
            Seen::note("the first cost that a new client sees is the session's, not the turn's")
        }
        // Its running total is the process's, which is a new one.
        (RealAgent::Claude, true) => {
            assert_eq!((paid, totals.2), (Some(1), Some(1)));
            Seen::Works
        }
        _ => {
            assert_eq!((paid, totals.2), (price(agent).map(|_| 1), price(agent).map(|_| 3)));
            Seen::Works
        }
    }
}
