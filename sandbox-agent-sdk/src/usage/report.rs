//! What is reported: of the context, of a turn, in total.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::{Cost, Tokens};

/// What a number that an agent reports counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Counts {
    /// One call of the model. A turn may have many.
    Call,
    /// One turn.
    Turn,
    /// Everything since the agent's process began.
    Process,
    /// Everything since the session began.
    Session,
}

/// How much of the model's context is used, and what the session has cost: one `usage_update`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ContextUsage {
    /// Tokens in the context of the last model call. It is no sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// Tokens the context has room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The running total of the cost, as it was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The member `_meta`.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl ContextUsage {
    pub(crate) fn read(update: &Value) -> Self {
        let number = |member: &str| update.get(member).and_then(Value::as_u64);
        Self {
            used: number("used"),
            size: number("size"),
            cost: update.get("cost").and_then(Cost::read),
            meta: update.get("_meta").filter(|meta| !meta.is_null()).cloned(),
        }
    }
}

/// What one turn used.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TurnUsage {
    /// The tokens, if the agent reported any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// What the tokens count: [`Counts::Turn`], or [`Counts::Call`] if the agent reports only its last model call, so
    /// that the turn used at least that much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
    /// What the turn added to the running total of the cost. In the first turn of a session that was loaded it is not
    /// known if that total includes earlier turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Tokens in the context of the last model call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_used: Option<u64>,
    /// Tokens the context has room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u64>,
    /// The tokens by model, where the agent reports them so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelUsage>,
    /// The object of the response that the tokens come from, as it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw: Option<Value>,
}

/// The tokens of one model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ModelUsage {
    /// The model.
    pub model: String,
    /// Its tokens.
    pub tokens: Tokens,
}

/// What a session, or all sessions of a client, used so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UsageTotals {
    /// The tokens of all turns that reported any.
    pub tokens: Tokens,
    /// Whether every turn reported all its tokens. If not, the tokens are a lower bound.
    pub tokens_complete: bool,
    /// What it cost, by currency. Where the agent reports the session's running total, this includes what was spent in
    /// the session before this client used it.
    pub costs: Vec<Cost>,
    /// How many turns were started.
    pub turns: u64,
    /// How long turns were running.
    pub time: Duration,
}

impl UsageTotals {
    /// The cost in a currency.
    #[must_use]
    pub fn cost(&self, currency: &str) -> Option<&Cost> {
        self.costs.iter().find(|cost| cost.currency == currency)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.tokens = self.tokens.plus(other.tokens);
        self.tokens_complete &= other.tokens_complete;
        other.costs.iter().for_each(|cost| cost.add_to(&mut self.costs));
        self.turns = self.turns.saturating_add(other.turns);
        self.time = self.time.saturating_add(other.time);
    }
}
