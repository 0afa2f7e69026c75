//! How a turn ended.

use serde::Serialize;
use serde_json::Value;

use crate::Error;
use crate::convert::open_enum::open_enum;
use crate::thread::AgentResult;
use crate::update::Missed;
use crate::usage::{BudgetEvent, TurnUsage};

open_enum! {
    /// Why a turn ended.
    pub enum StopReason {
        /// The agent has said what it had to say.
        EndTurn = "end_turn",
        /// The model's limit of tokens was reached.
        MaxTokens = "max_tokens",
        /// The limit of requests in one turn was reached.
        MaxTurnRequests = "max_turn_requests",
        /// The agent refused to go on.
        Refusal = "refusal",
        /// It was cancelled.
        Cancelled = "cancelled",
    }
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TurnOutcome {
    /// Why.
    pub stop_reason: StopReason,
    /// What is missing of the reports, as far as is known: the connection lost them, or they were not read in time.
    pub missing: Vec<Missed>,
    /// The response as it came, or the report that ended the turn where the response says only that the prompt was
    /// accepted. An error
    /// response to a turn that was cancelled is in its member `error`.
    pub raw: Value,
    /// What the turn used, as far as the agent reports it.
    pub usage: Box<TurnUsage>,
    /// The budget that was spent in the turn, if that is why it was cancelled.
    pub budget: Option<Box<BudgetEvent>>,
}

impl TurnOutcome {
    /// Reads the response to a prompt.
    pub(super) fn read(raw: Value, missing: Vec<Missed>) -> Self {
        let reason = raw.get("stopReason").and_then(Value::as_str).unwrap_or_default();
        let stop_reason = StopReason::from(reason);
        Self { stop_reason, missing, raw, usage: Box::default(), budget: None }
    }

    /// The outcome of a turn that this client has cancelled, whatever the response says.
    pub(super) fn cancelled(raw: Value, missing: Vec<Missed>) -> Self {
        Self { stop_reason: StopReason::Cancelled, ..Self::read(raw, missing) }
    }

    /// The member `_meta` of the response.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.raw.get("_meta")
    }

    /// Whether every report of the turn was received.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// What the outcome amounts to as a result, to be classified for a thread.
    #[must_use]
    pub fn to_result(&self) -> AgentResult {
        AgentResult::from_stop_reason(self.stop_reason.as_str())
    }
}

pub(super) type Outcome = Result<TurnOutcome, Error>;
