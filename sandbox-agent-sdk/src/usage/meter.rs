//! Counts the usage of one session.

use std::time::Duration;

use serde_json::Value;

use super::agents::Rules;
use super::{ContextUsage, Cost, Counts, ModelUsage, Tokens, TurnUsage, UsageTotals};
use crate::event::Origin;
use crate::{Update, UpdateKind};

/// How many currencies are counted per session.
const CURRENCIES: usize = 16;
/// The longest name of a currency, in bytes. Costs in others are ignored.
const CURRENCY_BYTES: usize = 64;

/// Counts the usage of one session from its updates and prompt responses, in order.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    tokens: Tokens,
    /// Whether a turn ended without reporting its tokens, or with those of its last call only.
    incomplete: bool,
    costs: Vec<RunningCost>,
    turns: u64,
    time: Duration,
    context: ContextUsage,
    turn: Option<OpenTurn>,
    /// Whether the first reported total includes usage from before this meter started.
    joined: bool,
}

/// A turn that is running.
#[derive(Debug, Default)]
struct OpenTurn {
    /// The tokens of calls that were reported one by one.
    calls: Option<Tokens>,
    costs_before: Vec<Cost>,
}

/// A running total that may restart at zero.
#[derive(Debug)]
struct RunningCost {
    currency: String,
    /// The sum of earlier runs.
    before: f64,
    /// The total of the current run.
    now: f64,
}

impl Meter {
    /// The session was used before. Unless a total is known, the first reported total includes that usage.
    pub(crate) fn join(&mut self, rules: Rules, shared: bool) {
        let lasts = rules.cost == Counts::Session || (shared && rules.cost == Counts::Process);
        self.joined = lasts && self.costs.is_empty();
    }

    /// Begins a turn, before its prompt is sent.
    pub(crate) fn begin_turn(&mut self) {
        self.turns += 1;
        self.turn = Some(OpenTurn { calls: None, costs_before: self.costs() });
    }

    /// Counts an update. Returns whether the totals changed.
    pub(crate) fn observe(&mut self, update: &Update, rules: Rules) -> bool {
        if update.origin() != Origin::Live {
            return false;
        }
        match update.kind() {
            UpdateKind::Usage(context) => {
                if let Some(cost) = &context.cost {
                    self.spend(cost, rules.cost);
                }
                self.context = ContextUsage { cost: None, meta: None, ..context.clone() };
                true
            }
            UpdateKind::Message(chunk) => {
                let usage = chunk.meta.as_ref().and_then(|meta| meta.get("usage"));
                let Some(tokens) = usage.and_then(Tokens::read) else { return false };
                match &mut self.turn {
                    Some(turn) if rules.chunk == Counts::Call => {
                        turn.calls = Some(turn.calls.unwrap_or_default().plus(tokens));
                    }
                    _ => self.tokens = self.tokens.plus(tokens),
                }
                true
            }
            _ => false,
        }
    }

    /// Ends a turn. Without a response, or after a cancellation, the usage may be incomplete.
    pub(crate) fn end_turn(&mut self, end: &TurnEnd<'_>, rules: Rules) -> TurnUsage {
        let turn = self.turn.take().unwrap_or_default();
        self.time = self.time.saturating_add(end.elapsed);
        if !end.executed {
            self.turns = self.turns.saturating_sub(1);
            return TurnUsage::default();
        }
        let mut usage = end.response.map(|response| read_response(response, rules)).unwrap_or_default();
        if usage.counts == Some(Counts::Call) && end.cancelled {
            // An agent that reports its last call repeats the previous turn's report if this turn made no
            // call.
            (usage.tokens, usage.counts) = (None, None);
        }
        if usage.tokens.is_none() && turn.calls.is_some() {
            (usage.tokens, usage.counts) = (turn.calls, Some(Counts::Turn));
        }
        self.tokens = self.tokens.plus(usage.tokens.unwrap_or_default());
        self.incomplete |= usage.counts != Some(Counts::Turn);
        usage.cost = self.costs().into_iter().find_map(|cost| {
            let before = turn.costs_before.iter().find(|before| before.currency == cost.currency);
            let spent = cost.amount - before.map_or(0.0, |before| before.amount);
            let is_known = before.is_some() || !self.joined;
            (is_known && (spent > 0.0 || before.is_none())).then(|| Cost::new(spent, cost.currency.clone()))
        });
        self.joined &= self.costs.is_empty();
        (usage.context_used, usage.context_size) = (self.context.used, self.context.size);
        usage
    }

    /// Records the end of the agent's process: totals of the process restart at zero.
    pub(crate) fn end_process(&mut self, rules: Rules) {
        if rules.cost == Counts::Process {
            self.end_session();
        }
    }

    /// Records that the agent created another session: every running total restarts at zero.
    pub(crate) fn end_session(&mut self) {
        self.costs.iter_mut().for_each(RunningCost::begin_again);
    }

    /// Returns the usage so far, including the reported calls of a running turn.
    pub(crate) fn totals(&self) -> UsageTotals {
        let running = self.turn.as_ref().and_then(|turn| turn.calls).unwrap_or_default();
        UsageTotals {
            tokens: self.tokens.plus(running),
            tokens_complete: !self.incomplete,
            costs: self.costs(),
            turns: self.turns,
            time: self.time,
        }
    }

    fn costs(&self) -> Vec<Cost> {
        let costs = self.costs.iter();
        costs.map(|cost| Cost::new(cost.before + cost.now, cost.currency.clone())).collect()
    }

    fn spend(&mut self, cost: &Cost, counts: Counts) {
        if !self.costs.iter().any(|running| running.currency == cost.currency) {
            if self.costs.len() == CURRENCIES || cost.currency.len() > CURRENCY_BYTES {
                return;
            }
            self.costs.push(RunningCost { currency: cost.currency.clone(), before: 0.0, now: 0.0 });
        }
        let same = self.costs.iter_mut().find(|running| running.currency == cost.currency);
        let Some(running) = same else { return };
        // A smaller total means that the count was restarted. An amount that is not a total counts as a separate run.
        if cost.amount < running.now || matches!(counts, Counts::Call | Counts::Turn) {
            running.begin_again();
        }
        running.now = cost.amount;
    }
}

impl RunningCost {
    fn begin_again(&mut self) {
        self.before += self.now;
        self.now = 0.0;
    }
}

/// How a turn ended, as far as usage is concerned.
#[derive(Debug)]
pub(crate) struct TurnEnd<'a> {
    /// The response, if there was one.
    pub(crate) response: Option<&'a Value>,
    pub(crate) elapsed: Duration,
    /// Whether this client cancelled it.
    pub(crate) cancelled: bool,
    /// Whether the prompt may have reached the agent.
    pub(crate) executed: bool,
}

/// Parses the usage in a response, in any of the known places.
fn read_response(response: &Value, rules: Rules) -> TurnUsage {
    let quota = response.pointer("/_meta/quota");
    let places = [response.get("usage"), quota.and_then(|quota| quota.get("token_count"))];
    let found = places.into_iter().flatten().find_map(|raw| Some((raw, Tokens::read(raw)?)));
    let models = quota.and_then(|quota| quota.get("model_usage")).and_then(Value::as_array);
    let models = models.into_iter().flatten().filter_map(|entry| {
        let tokens = Tokens::read(entry.get("token_count").unwrap_or(entry))?;
        Some(ModelUsage { model: entry.get("model")?.as_str()?.to_owned(), tokens })
    });
    TurnUsage {
        tokens: found.map(|(_, tokens)| tokens),
        counts: found.map(|_| rules.response),
        models: models.collect(),
        raw: found.map(|(raw, _)| raw.clone()),
        ..TurnUsage::default()
    }
}
