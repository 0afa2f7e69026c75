//! Usage reports: context, turn and totals.

use std::time::Duration;

use serde::Serialize;
use serde::de::MapAccess;
use serde_json::Value;

use super::{Cost, Tokens};
use crate::convert::decoded::value_size;
use crate::convert::lenient::{self, Lenient};
use crate::convert::update::skip;

/// What a reported number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Counts {
    /// One model call. A turn may make many.
    Call,
    /// One turn.
    Turn,
    /// Everything since the agent's process started.
    Process,
    /// Everything since the session was created.
    Session,
}

/// The context size and the session's cost, from one `usage_update`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ContextUsage {
    /// The tokens in the context of the last model call. This is not a sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// The capacity of the context in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The running total of the cost, as reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The `_meta` field.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl ContextUsage {
    pub(crate) fn size(&self) -> usize {
        self.meta.as_ref().map_or(0, value_size) + self.cost.as_ref().map_or(0, |cost| cost.currency.len())
    }
}

impl<'de> Lenient<'de> for ContextUsage {
    fn object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        let (mut usage, mut cost) = (Self::default(), None);
        lenient::fields(object, |name, object| {
            match &*name {
                "used" => usage.used = lenient::value(object)?,
                "size" => usage.size = lenient::value(object)?,
                "cost" => cost = lenient::value::<Value, _>(object)?,
                "_meta" => usage.meta = lenient::value(object)?,
                other => skip(other, object)?,
            }
            Ok(())
        })?;
        usage.cost = cost.as_ref().and_then(Cost::read);
        Ok(Some(usage))
    }
}

/// The usage of one turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TurnUsage {
    /// The tokens, if the agent reported any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// What the tokens count: [`Counts::Turn`] or [`Counts::Call`].
    ///
    /// It is [`Counts::Call`] if the agent reports only its last model call. The turn then used at least that many
    /// tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
    /// The increase of the running cost total during the turn.
    ///
    /// Unknown in the first turn of a loaded session if the total includes earlier turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// The tokens in the context of the last model call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_used: Option<u64>,
    /// The capacity of the context in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u64>,
    /// The tokens by model, if the agent reports them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelUsage>,
    /// The object of the response that contains the tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw: Option<Value>,
}

/// The tokens of one model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ModelUsage {
    /// The name of the model.
    pub model: String,
    /// The tokens of the model.
    pub tokens: Tokens,
}

/// The total usage of a session, or of all sessions of a client.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UsageTotals {
    /// The sum of the reported tokens of all turns.
    pub tokens: Tokens,
    /// Whether every turn reported all its tokens. If not, `tokens` is a lower bound.
    pub tokens_complete: bool,
    /// The cost by currency. If the agent reports a running total of the session, this includes the cost from
    /// before this client used the session.
    pub costs: Vec<Cost>,
    /// The number of turns started.
    pub turns: u64,
    /// The total run time of turns.
    pub time: Duration,
}

impl UsageTotals {
    /// Returns the cost in a currency.
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
