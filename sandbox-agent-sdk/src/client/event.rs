//! The events of a client.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::AgentUnparsed;
use crate::requests::{PermissionDecided, QuestionRequest, UnclaimedRequest};
use crate::usage::BudgetEvent;
use crate::{ConnectionState, Error, PermissionRequest, TerminationInfo, TurnOutcome, Update};

mod events_lost;
mod hold;
mod queue;
#[cfg(test)]
mod queue_tests;
mod restored;
mod serialize;
mod stream;
mod weight;

/// The locks of the queue. `tests/interleavings.rs` replaces them.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, Ordering};

    pub(super) use crate::client::sync::{Mutex, MutexGuard, PoisonError};
}

pub use events_lost::EventsLost;
pub(crate) use hold::Hold;
pub(crate) use queue::Queue;
pub use restored::{Restored, RestoredBy};
pub use stream::Events;
pub(crate) use weight::{Class, Weight, end_size};

/// An event of a connection, an agent or a session.
///
/// Serializes to an object with a `type` field, such as `{"type": "update", …}`, for example to send it to a browser.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// An update of a session.
    Update(Update),
    /// A session ended. Published once per end, as soon as the end is certain.
    SessionEnded(Box<SessionEnded>),
    /// Later details about the end of a session, such as the last lines of stderr.
    ///
    /// They arrive after [`Event::SessionEnded`], possibly minutes later. If the session was opened again meanwhile,
    /// it stays open.
    TerminationDetails(Box<SessionEnded>),
    /// A turn of this client ended. All its updates were published before, and the session accepts the next prompt.
    TurnEnded(Box<TurnEnded>),
    /// The agent printed a line that is not a protocol message.
    #[non_exhaustive]
    AgentUnparsed {
        /// The line and the reason why it is not a message.
        unparsed: AgentUnparsed,
        /// Whether the event is live, replayed or history.
        origin: Origin,
    },
    /// The agent requests a permission. The request stays open only for a [deciding](Events::deciding) subscription.
    Permission(PermissionRequest),
    /// A permission request was decided without a deciding subscription. [`PermissionDecided::by`] names who decided.
    PermissionDecided(PermissionDecided),
    /// The agent asks a question. The question stays open only for a [deciding](Events::deciding) subscription.
    Question(QuestionRequest),
    /// An agent request on a shared endpoint is not addressed to this client. This client responds to it only if the
    /// application [claims](UnclaimedRequest::claim) it.
    UnclaimedRequest(UnclaimedRequest),
    /// An agent request was rejected: it cannot be decoded, or the open requests exceed a limit.
    #[non_exhaustive]
    RequestRejected {
        /// The session of the request, if it could be parsed.
        session_id: Option<String>,
        /// The method of the request.
        method: String,
        /// Why the request was rejected.
        reason: String,
    },
    /// The user has completed the web page of a question.
    #[non_exhaustive]
    QuestionCompleted {
        /// The id of the [question](crate::requests::QuestionKind::Url).
        id: String,
    },
    /// The state of the connection changed.
    Connection(ConnectionState),
    /// A lost event stream was reopened.
    #[non_exhaustive]
    Reconnected {
        /// Whether every missed event was fetched or reported as [`Event::Gap`]. `false` on servers that do not number
        /// their events.
        checked: bool,
    },
    /// The server restarted, or lost its state.
    ServerRestarted,
    /// Events are missing at this point because the server no longer has them.
    Gap(Gap),
    /// This subscriber exceeded its budget, and this many events were dropped at this point. A dropped agent request
    /// is cancelled if no other subscriber received it.
    Lagged(u64),
    /// Events of a stored session could not be stored.
    EventsLost(EventsLost),
    /// Another process acquired a stored session and now stores its events. The next prompt from this process
    /// acquires the session again.
    #[non_exhaustive]
    OwnershipLost {
        /// The id of the stored session.
        session_id: String,
    },
    /// This process acquired a stored session.
    #[non_exhaustive]
    Restored {
        /// The id of the stored session.
        session_id: String,
        /// How the session was restored in the agent.
        restored: Restored,
    },
    /// A [budget](crate::usage::Budget) is nearly spent, is spent, or cannot be checked.
    Budget(Box<BudgetEvent>),
    /// A message of the server could not be parsed and was skipped.
    #[non_exhaustive]
    Malformed {
        /// The parse error.
        reason: String,
        /// The beginning of the message.
        start: String,
        /// Whether a message of the agent was lost, for example because it exceeds a limit.
        lost: bool,
    },
    /// The response to an agent request could not be delivered.
    #[non_exhaustive]
    ResponseLost {
        /// The method of the agent request.
        method: String,
        /// The error. [`Error::maybe_executed`] returns whether the response may have arrived.
        error: Error,
    },
    /// A notification of a kind that this version does not know.
    #[non_exhaustive]
    Other {
        /// The method of the notification.
        method: String,
        /// The parameters of the notification.
        params: Value,
        /// Whether the event is live, replayed or history.
        origin: Origin,
    },
}

impl Event {
    /// Returns whether the event is live, replayed or history.
    #[must_use]
    pub fn origin(&self) -> Origin {
        match self {
            Self::Update(update) => update.origin(),
            Self::SessionEnded(ended) | Self::TerminationDetails(ended) => ended.origin,
            Self::AgentUnparsed { origin, .. } | Self::Other { origin, .. } => *origin,
            _ => Origin::Live,
        }
    }

    /// Copies the event for a subscription. For one that does not decide, requests in it do not stay open.
    pub(crate) fn copy_for(&self, deciding: bool) -> Self {
        match self {
            Self::Permission(request) if !deciding => Self::Permission(request.observed()),
            Self::Question(request) if !deciding => Self::Question(request.observed()),
            other => other.clone(),
        }
    }

    /// Returns the session of the event, if it has one.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        match self {
            Self::Update(update) => Some(update.session_id()),
            Self::SessionEnded(ended) | Self::TerminationDetails(ended) => Some(&ended.session_id),
            Self::TurnEnded(ended) => Some(&ended.session_id),
            Self::Permission(request) => request.session_id(),
            Self::Question(request) => request.session_id(),
            Self::UnclaimedRequest(request) => request.session_id(),
            Self::Budget(budget) => budget.session_id.as_deref(),
            Self::RequestRejected { session_id, .. } => session_id.as_deref(),
            Self::PermissionDecided(decided) => decided.request.session_id(),
            Self::Other { params, .. } => {
                let id = params.get("sessionId").or_else(|| params.get("session_id"));
                id.and_then(Value::as_str)
            }
            _ => None,
        }
    }
}

/// The end of a session.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SessionEnded {
    /// The id of the session.
    pub session_id: String,
    /// How the session ended.
    pub termination: TerminationInfo,
    /// Whether the event is live, replayed or history.
    pub origin: Origin,
}

/// The end of a turn of this client.
///
/// Serializes to `{"sessionId", "requestId", "outcome"}`. If the turn failed, it has `error` instead of `outcome`: an
/// object with the `message`, `maybeExecuted`, and, if there are any, the agent's `rpc` error and `termination`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TurnEnded {
    /// The id of the session.
    pub session_id: String,
    /// The request id of the prompt as JSON text; `None` if the prompt was not sent.
    pub request_id: Option<String>,
    /// How the turn ended.
    pub outcome: Result<TurnOutcome, Error>,
}

/// Whether an event is live, replayed or history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Origin {
    /// The event happened while this client was connected, or was fetched after a reconnect.
    Live,
    /// The event is older than this connection, from the server's replay buffer.
    Replayed,
    /// The event is part of the history of a session that is being loaded.
    History,
}

impl Origin {
    pub(crate) fn from_wire(origin: acp_http_client::Origin) -> Self {
        match origin {
            acp_http_client::Origin::Live => Self::Live,
            acp_http_client::Origin::History => Self::History,
            _ => Self::Replayed,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Live => "live",
            Self::Replayed => "replayed",
            Self::History => "history",
        })
    }
}

/// A range of missing events, given by the server's event numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Gap {
    /// The number of the first missing event.
    pub from: u64,
    /// The number of the last missing event.
    pub to: u64,
}

impl Gap {
    /// Returns the number of missing events.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.to.saturating_sub(self.from).saturating_add(1)
    }
}
