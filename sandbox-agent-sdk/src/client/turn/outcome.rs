//! How a turn ended.

use serde::Serialize;
use serde_json::Value;

use crate::Error;
use crate::convert::open_enum::open_enum;
use crate::thread::AgentResult;
use crate::update::Missed;
use crate::usage::{BudgetEvent, TurnUsage};

open_enum! {
    /// The reason why a turn ended.
    pub enum StopReason {
        /// The agent completed the turn.
        EndTurn = "end_turn",
        /// The token limit of the model was reached.
        MaxTokens = "max_tokens",
        /// The maximum number of model requests per turn was reached.
        MaxTurnRequests = "max_turn_requests",
        /// The agent refused to continue.
        Refusal = "refusal",
        /// The turn was cancelled.
        Cancelled = "cancelled",
    }
}

/// The outcome of a turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TurnOutcome {
    /// Why the turn ended.
    pub stop_reason: StopReason,
    /// The updates that are known to be missing: lost in transit, or dropped before they were read.
    ///
    /// Early servers ([`ServerKind::ConnectionId`](crate::ServerKind::ConnectionId)) never prove that every update
    /// before a response has arrived. There, a missing proof does not count as [`Missed::Unverified`].
    pub missing: Vec<Missed>,
    /// The raw response to the prompt. If that response only confirms that the prompt was accepted, this is the
    /// update that ended the turn. If a cancelled turn got an error response, that response is in the field `error`.
    pub raw: Value,
    /// The usage of the turn, as reported by the agent.
    pub usage: Box<TurnUsage>,
    /// The exceeded budget, if the client cancelled the turn because of it.
    pub budget: Option<Box<BudgetEvent>>,
    /// Whether the prompt was sent. A turn may be cancelled before.
    #[serde(skip)]
    pub(crate) sent: bool,
}

impl TurnOutcome {
    /// Parses the response to a prompt.
    pub(crate) fn read(raw: Value, missing: Vec<Missed>) -> Self {
        let reason = raw.get("stopReason").and_then(Value::as_str).unwrap_or_default();
        let stop_reason = StopReason::from(reason);
        Self { stop_reason, missing, raw, usage: Box::default(), budget: None, sent: true }
    }

    /// The outcome of a turn that this client cancelled, for any response.
    pub(super) fn cancelled(raw: Value, missing: Vec<Missed>) -> Self {
        Self { stop_reason: StopReason::Cancelled, ..Self::read(raw, missing) }
    }

    /// The outcome of a turn that this client cancelled before its prompt was sent.
    pub(super) fn withdrawn() -> Self {
        Self { sent: false, ..Self::cancelled(Value::Null, Vec::new()) }
    }

    /// Returns the `_meta` field of the response.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.raw.get("_meta")
    }

    /// Returns whether every update of the turn was received.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Converts the outcome to an [`AgentResult`], which can be classified for a conversation thread.
    ///
    /// The subtype is derived from the stop reason. If the response has the fields `subtype` and `is_error` of a
    /// result, these take precedence. A cancelled turn is always `cancelled`, regardless of the response.
    #[must_use]
    pub fn to_result(&self) -> AgentResult {
        let stopped = AgentResult::from_stop_reason(self.stop_reason.as_str());
        if self.stop_reason == StopReason::Cancelled {
            return stopped;
        }
        let AgentResult { subtype, is_error, .. } = AgentResult::from_value(&self.raw);
        // An error without a subtype is not a success.
        let is_contradicted = |stopped: &String| is_error == Some(true) && stopped == "success";
        let subtype = subtype.or_else(|| stopped.subtype.filter(|stopped| !is_contradicted(stopped)));
        AgentResult { subtype, is_error, body: None }
    }
}

pub(super) type Outcome = Result<TurnOutcome, Error>;
