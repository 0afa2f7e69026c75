//! Limits on the usage of a session or a client.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{Cost, UsageTotals};
use crate::convert::text::printable;

/// The default share of a limit at which a warning is published.
const WARN_AT: f64 = 0.8;

/// Limits on the usage of a session, or of all sessions of a client.
///
/// At 80 % of a limit (see [`warn_at`](Self::warn_at)), the client publishes a warning as
/// [`Event::Budget`](crate::Event::Budget). At the limit, it publishes a second event and cancels the running turn,
/// whose [`TurnOutcome::budget`](crate::TurnOutcome::budget) contains the reason. Later prompts fail
/// with [`Error::BudgetSpent`](crate::Error::BudgetSpent) and are not sent. A limit on the number of turns does not
/// cancel the last turn.
///
/// Costs and tokens can be checked only when the agent reports them. Many agents report them at the end of a turn, so
/// a turn may exceed the limit. If an agent never reports them, these limits have no effect, and
/// the client publishes [`BudgetState::NotReported`] after the first turn. Limits on turns and time always apply.
///
/// ```
/// use std::time::Duration;
/// use sandbox_agent_sdk::usage::Budget;
///
/// let budget = Budget::new().max_cost(2.50, "USD").max_turns(20).max_time(Duration::from_secs(3600));
/// # let _ = budget;
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a budget does nothing until it is set on a session or a client"]
pub struct Budget {
    cost: Option<Cost>,
    tokens: Option<u64>,
    turns: Option<u64>,
    time: Option<Duration>,
    warn_at: f64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { cost: None, tokens: None, turns: None, time: None, warn_at: WARN_AT }
    }
}

impl Budget {
    /// Creates a budget without limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the cost in a currency. Costs in other currencies do not count.
    pub fn max_cost(mut self, amount: f64, currency: impl Into<String>) -> Self {
        self.cost = Some(Cost::new(amount, currency));
        self
    }

    /// Limits the number of tokens, counted by [`Tokens::all`](super::Tokens::all).
    pub fn max_tokens(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Limits the number of turns.
    pub fn max_turns(mut self, turns: u64) -> Self {
        self.turns = Some(turns);
        self
    }

    /// Limits the total run time of turns. The time between turns does not count.
    pub fn max_time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Sets the share of a limit at which a warning is published, from 0 to 1. Default 0.8. NaN counts as 1.
    pub fn warn_at(mut self, share: f64) -> Self {
        self.warn_at = if share.is_nan() { 1.0 } else { share.clamp(0.0, 1.0) };
        self
    }
}

/// The used amount and the limit of one measure.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "measure", rename_all = "camelCase")]
#[non_exhaustive]
pub enum BudgetMeasure {
    /// The cost.
    #[non_exhaustive]
    Cost {
        /// The amount spent.
        used: Cost,
        /// The limit.
        limit: Cost,
    },
    /// The number of tokens.
    #[non_exhaustive]
    Tokens {
        /// The number of tokens used.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The number of turns.
    #[non_exhaustive]
    Turns {
        /// The number of turns started.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The total run time of turns.
    #[non_exhaustive]
    Time {
        /// The time used.
        used: Duration,
        /// The limit.
        limit: Duration,
    },
}

impl fmt::Display for BudgetMeasure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost { used, limit } => write!(f, "{used} of {limit}"),
            Self::Tokens { used, limit } => write!(f, "{used} of {limit} tokens"),
            Self::Turns { used, limit } => write!(f, "{used} of {limit} turns"),
            Self::Time { used, limit } => write!(f, "{used:.1?} of {limit:.1?}"),
        }
    }
}

/// The state of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum BudgetState {
    /// The usage has reached the warning share of the limit.
    Warning,
    /// The limit is reached.
    Spent,
    /// The agent does not report this measure, so the limit has no effect.
    NotReported,
}

/// A change of a budget's state.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct BudgetEvent {
    /// The session that the budget belongs to; `None` for the client's budget.
    pub session_id: Option<String>,
    /// The new state.
    pub state: BudgetState,
    /// The limited measure.
    #[serde(flatten)]
    pub measure: BudgetMeasure,
}

impl fmt::Display for BudgetEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.session_id {
            Some(id) => write!(f, "the budget of session `{}`", printable(id))?,
            None => f.write_str("the budget of the client")?,
        }
        match self.state {
            BudgetState::Warning => write!(f, " is nearly spent: {}", self.measure),
            BudgetState::Spent => write!(f, " is spent: {}", self.measure),
            BudgetState::NotReported => {
                write!(f, " has a limit on usage that the agent does not report: {}", self.measure)
            }
        }
    }
}

/// A budget and the events published about it.
#[derive(Debug)]
pub(super) struct Tracked {
    budget: Budget,
    /// The published states by measure, in the order of [`Tracked::measures`].
    published: [Published; 4],
}

#[derive(Debug, Clone, Copy, Default)]
struct Published {
    warning: bool,
    spent: bool,
    not_reported: bool,
}

/// The usage that a budget is compared with.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) totals: UsageTotals,
    /// How many of the turns are running.
    pub(super) running: u64,
    /// The total run time of the running turns.
    pub(super) running_for: Duration,
}

impl Tracked {
    pub(super) fn new(budget: Budget) -> Self {
        Self { budget, published: [Published::default(); 4] }
    }

    /// Returns each limit with its measure, the used share, and whether the agent reports it.
    fn measures(&self, used: &Used) -> [Option<(BudgetMeasure, f64, bool)>; 4] {
        let Budget { cost, tokens, turns, time, .. } = &self.budget;
        let totals = &used.totals;
        let cost = cost.as_ref().map(|limit| {
            let reported = totals.cost(&limit.currency);
            let spent = reported.cloned().unwrap_or_else(|| Cost::new(0.0, limit.currency.clone()));
            let share = share(spent.amount, limit.amount);
            (BudgetMeasure::Cost { used: spent, limit: limit.clone() }, share, reported.is_some())
        });
        let tokens = tokens.map(|limit| {
            let used = totals.tokens.all();
            let reported = totals.tokens_complete || used > 0;
            (BudgetMeasure::Tokens { used, limit }, share(used as f64, limit as f64), reported)
        });
        let turns = turns.map(|limit| {
            let used = totals.turns.saturating_sub(used.running);
            (BudgetMeasure::Turns { used, limit }, share(used as f64, limit as f64), true)
        });
        let time = time.map(|limit| {
            let used = totals.time.saturating_add(used.running_for);
            let share = share(used.as_secs_f64(), limit.as_secs_f64());
            (BudgetMeasure::Time { used, limit }, share, true)
        });
        [cost, tokens, turns, time]
    }

    /// Returns unpublished events. After a turn they include measures that the agent does not report.
    pub(super) fn news(&mut self, session: Option<&str>, used: &Used, after_turn: bool) -> Vec<BudgetEvent> {
        let mut news = Vec::new();
        let measures = self.measures(used);
        for (published, measure) in self.published.iter_mut().zip(measures) {
            let Some((measure, share, reported)) = measure else { continue };
            let state = if share >= 1.0 && !published.spent {
                (published.spent, published.warning) = (true, true);
                BudgetState::Spent
            } else if share >= self.budget.warn_at && share > 0.0 && !published.warning {
                published.warning = true;
                BudgetState::Warning
            } else if after_turn && !reported && !published.not_reported {
                published.not_reported = true;
                BudgetState::NotReported
            } else {
                continue;
            };
            news.push(BudgetEvent { session_id: session.map(str::to_owned), state, measure });
        }
        news
    }

    /// Returns why the next prompt must not be sent, if so.
    pub(super) fn refuses(&self, session: Option<&str>, used: &Used) -> Option<BudgetEvent> {
        let event = |measure| BudgetEvent {
            session_id: session.map(str::to_owned),
            state: BudgetState::Spent,
            measure,
        };
        let started = used.totals.turns;
        match self.budget.turns {
            Some(limit) if started >= limit => Some(event(BudgetMeasure::Turns { used: started, limit })),
            _ => self.cancels(session, used),
        }
    }

    /// Returns why the running turn must be cancelled, if so.
    pub(super) fn cancels(&self, session: Option<&str>, used: &Used) -> Option<BudgetEvent> {
        let spent = self
            .measures(used)
            .into_iter()
            .flatten()
            .find(|(measure, share, _)| *share >= 1.0 && !matches!(measure, BudgetMeasure::Turns { .. }));
        let (measure, ..) = spent?;
        Some(BudgetEvent { session_id: session.map(str::to_owned), state: BudgetState::Spent, measure })
    }

    /// Returns the time until a time limit, or the warning before it, is reached.
    pub(super) fn next_moment(&self, used: &Used) -> Option<Duration> {
        let limit = self.budget.time?;
        if used.running == 0 {
            return None;
        }
        let [.., published] = self.published;
        let so_far = used.totals.time.saturating_add(used.running_for);
        // The longest time is rounded up to a number that is no time.
        let share = || Duration::try_from_secs_f64(limit.as_secs_f64() * self.budget.warn_at);
        let warning = (!published.warning).then(|| share().unwrap_or(limit));
        let end = (!published.spent).then_some(limit);
        let next = [warning, end].into_iter().flatten().min()?;
        let turns = u32::try_from(used.running).unwrap_or(u32::MAX);
        Some(next.saturating_sub(so_far) / turns)
    }
}

/// Returns the used share of a limit. Any usage exceeds a limit of zero.
fn share(used: f64, limit: f64) -> f64 {
    if limit > 0.0 { used / limit } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Budget, BudgetState, Tracked, Used};
    use crate::usage::UsageTotals;

    #[test]
    fn any_share_and_any_time_give_the_moment_of_the_next_event() {
        let hour = Duration::from_secs(3600);
        let half = hour / 2;
        let shares = [
            (f64::NAN, hour),
            (f64::NEG_INFINITY, Duration::ZERO),
            (-0.0, Duration::ZERO),
            (0.5, half),
            (1.0, hour),
            (f64::INFINITY, hour),
        ];
        let used = Used { totals: UsageTotals::default(), running: 1, running_for: Duration::ZERO };
        for (share, expected) in shares {
            let tracked = Tracked::new(Budget::new().max_time(hour).warn_at(share));
            assert_eq!(tracked.next_moment(&used), Some(expected), "{share}");
            let tracked = Tracked::new(Budget::new().max_time(Duration::MAX).warn_at(share));
            assert!(tracked.next_moment(&used) >= Some(expected.min(half)), "{share}");
        }
    }

    #[test]
    fn a_share_that_is_not_a_number_warns_at_the_limit() {
        let mut tracked = Tracked::new(Budget::new().max_turns(2).warn_at(f64::NAN));
        let used = |turns| Used {
            totals: UsageTotals { turns, ..UsageTotals::default() },
            running: 0,
            running_for: Duration::ZERO,
        };
        assert!(tracked.news(None, &used(1), true).is_empty());
        let states = tracked.news(None, &used(2), true).into_iter().map(|event| event.state);
        assert_eq!(states.collect::<Vec<_>>(), [BudgetState::Spent]);
    }
}
