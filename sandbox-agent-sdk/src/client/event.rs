//! The events of a client.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::error::AgentUnparsed;
use crate::requests::{PermissionDecided, QuestionRequest, UnclaimedRequest};
#[cfg(feature = "sessions")]
use crate::sessions::{EventsLost, Restored};
use crate::usage::BudgetEvent;
use crate::{ConnectionState, Error, PermissionRequest, TerminationInfo, TurnOutcome, Update};

#[cfg_attr(not(feature = "sessions"), allow(dead_code, reason = "only stored sessions hold events back"))]
mod hold;
mod queue;
#[cfg(test)]
mod queue_tests;
mod serialize;
mod stream;
mod weight;

/// The locks of the queue. `tests/interleavings.rs` replaces them.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, Ordering};

    pub(super) use crate::client::sync::{Mutex, MutexGuard, PoisonError};
}

pub(crate) use hold::Hold;
#[cfg(feature = "sessions")]
pub(crate) use hold::{Fate, Holder};
pub(crate) use queue::Queue;
pub use stream::Events;
pub(crate) use weight::{Class, Weight};

/// An event of the connection, of an agent or of a session.
///
/// Serializes to an object with a `type`, such as `{"type": "update", …}`, for example for a browser.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// An update of a session.
    Update(Update),
    /// A session ended. There is one such event per end, published at its first certain sign.
    SessionEnded(Box<SessionEnded>),
    /// Details about the end of a session that arrived after it was published, such as the last lines of stderr.
    TerminationDetails(Box<SessionEnded>),
    /// A turn of this client ended. Every update of it comes before, and the session is free for the next prompt.
    TurnEnded(Box<TurnEnded>),
    /// The agent printed a line that is not a message.
    #[non_exhaustive]
    AgentUnparsed {
        /// The line.
        unparsed: AgentUnparsed,
        /// Whether the event is live.
        origin: Origin,
    },
    /// The agent requests a permission. Only in a [deciding](Events::deciding) subscription does the event keep the
    /// request open.
    Permission(PermissionRequest),
    /// A permission request was decided by the policy, by the handler, or refused because there is neither.
    PermissionDecided(PermissionDecided),
    /// The agent asks a question. Only in a [deciding](Events::deciding) subscription does the event keep it open.
    Question(QuestionRequest),
    /// On a shared endpoint, an agent request that belongs to no pending call of this client. It is answered only if
    /// the application [claims](UnclaimedRequest::claim) it.
    UnclaimedRequest(UnclaimedRequest),
    /// An agent request was refused because it cannot be decoded, or because too much is open.
    #[non_exhaustive]
    RequestRejected {
        /// The session that it names, if that can be read.
        session_id: Option<String>,
        /// Its method.
        method: String,
        /// Why.
        reason: String,
    },
    /// The user has completed the page of a question.
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
    /// Events are missing here that the server no longer has.
    Gap(Gap),
    /// This subscriber fell behind its budget, and this many events were dropped here. An agent request among them that
    /// no other subscriber received is cancelled.
    Lagged(u64),
    #[cfg(feature = "sessions")]
    /// Events of a stored session could not be stored.
    EventsLost(EventsLost),
    #[cfg(feature = "sessions")]
    /// Another process acquired a stored session, and stores what happens in it. The next prompt from here acquires it
    /// again.
    #[non_exhaustive]
    OwnershipLost {
        /// The id of the stored session.
        session_id: String,
    },
    #[cfg(feature = "sessions")]
    /// This process acquired a stored session.
    #[non_exhaustive]
    Restored {
        /// The id of the stored session.
        session_id: String,
        /// How its agent continues it.
        restored: Restored,
    },
    /// A [budget](crate::usage::Budget) is nearly spent, is spent, or cannot be checked.
    Budget(Box<BudgetEvent>),
    /// A message of the server could not be parsed and was skipped.
    #[non_exhaustive]
    Malformed {
        /// The parse error.
        reason: String,
        /// Its beginning.
        start: String,
        /// Whether a message of the agent is missing because of it, for example one over a limit.
        lost: bool,
    },
    /// The response to an agent request could not be delivered.
    #[non_exhaustive]
    AnswerLost {
        /// The method of the agent request.
        method: String,
        /// The error; [`Error::maybe_executed`] says whether the response may have arrived.
        error: Error,
    },
    /// A notification that this version has no type for.
    #[non_exhaustive]
    Other {
        /// The method.
        method: String,
        /// The parameters.
        params: Value,
        /// Whether the event is live.
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
    /// The session.
    pub session_id: String,
    /// How the session ended.
    pub termination: TerminationInfo,
    /// Whether the event is live.
    pub origin: Origin,
}

/// The end of a turn of this client.
///
/// Serializes to `{"sessionId", "requestId", "outcome"}`. If the turn failed, it has `error` instead of `outcome`: an
/// object with the `message`, `maybeExecuted`, and, if there are any, the agent's `rpc` error and `termination`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TurnEnded {
    /// The session.
    pub session_id: String,
    /// The id of the prompt as JSON text, if it was sent.
    pub request_id: Option<String>,
    /// How the turn ended.
    pub outcome: Result<TurnOutcome, Error>,
}

/// Whether an event is live or old.
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

/// A range of missing events, by the server's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Gap {
    /// The first number that is missing.
    pub from: u64,
    /// The last number that is missing.
    pub to: u64,
}

impl Gap {
    /// Returns the number of missing events.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.to.saturating_sub(self.from).saturating_add(1)
    }
}
