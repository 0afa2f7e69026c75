//! What happens, as a program hears of it.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::error::AgentUnparsed;
use crate::requests::{PermissionDecided, QuestionRequest, UnclaimedRequest};
#[cfg(feature = "sessions")]
use crate::sessions::{EventsLost, Restored};
use crate::usage::BudgetEvent;
use crate::{ConnectionState, Error, PermissionRequest, TerminationInfo, Update};

mod queue;
#[cfg(test)]
mod queue_tests;
mod serialize;
mod stream;
mod weight;

/// What the queue is locked with. `tests/interleavings.rs` puts its own in their place.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
}

pub(crate) use queue::Queue;
pub use stream::Events;
pub(crate) use weight::{Class, Weight};

/// Something that happened: to the connection, to an agent, in a session.
///
/// New kinds of events appear in new versions; a `match` needs an arm for them.
///
/// An event is serialised as an object with a `type`, such as `{"type": "update", …}`, to be sent to a browser, say.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The agent reported on its work.
    Update(Update),
    /// A session ended. There is one such event for each end, whatever the server tells of it and how often. It is
    /// published at the first sign of the end.
    SessionEnded(Box<SessionEnded>),
    /// More became known about the end of a session after it was published: the last lines of stderr, for example.
    TerminationDetails(Box<SessionEnded>),
    /// The agent printed something that is no message.
    #[non_exhaustive]
    AgentUnparsed {
        /// What it printed.
        unparsed: AgentUnparsed,
        /// Whether it is new.
        origin: Origin,
    },
    /// The agent asks for a permission. The event keeps the request open only in a [deciding](Events::deciding)
    /// subscription.
    Permission(PermissionRequest),
    /// A permission request was decided by the policy, by the handler, or refused because there is neither.
    PermissionDecided(PermissionDecided),
    /// The agent asks a question. The event keeps the question open only in a [deciding](Events::deciding) subscription.
    Question(QuestionRequest),
    /// On a shared endpoint, an agent request that belongs to no pending call of this client. It is answered only if
    /// the application [claims](UnclaimedRequest::claim) it.
    UnclaimedRequest(UnclaimedRequest),
    /// An agent request was refused because it cannot be decoded, or because too much is open.
    RequestRejected {
        /// The session that it names, if that can be read.
        session_id: Option<String>,
        /// Its method.
        method: String,
        /// Why.
        reason: String,
    },
    /// The user is done with what a question has sent them elsewhere for.
    #[non_exhaustive]
    QuestionCompleted {
        /// The id of the [question](crate::requests::QuestionKind::Url).
        id: String,
    },
    /// The connection changed its state.
    Connection(ConnectionState),
    /// A lost event stream is open again.
    #[non_exhaustive]
    Reconnected {
        /// Whether it is known what was missed meanwhile: it was fetched, or is told of as a [`Event::Gap`]. On
        /// servers that do not number their events it is not.
        checked: bool,
    },
    /// The server began anew: it was restarted, or lost what it knew.
    ServerRestarted,
    /// Events that the server no longer has. They would have come before whatever follows.
    Gap(Gap),
    /// This subscriber did not read, its budget was spent, and so many events were dropped here. A request of the agent
    /// among them that nobody else was given is cancelled.
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
    /// The server sent something that cannot be read, and it was skipped.
    #[non_exhaustive]
    Malformed {
        /// What is wrong with it.
        reason: String,
        /// Its beginning.
        start: String,
        /// Whether a message of the agent is missing because of it: one over a limit, say. A line that the agent printed
        /// and that is no message takes nothing away.
        lost: bool,
    },
    /// An answer to a request of the agent could not be delivered.
    #[non_exhaustive]
    AnswerLost {
        /// What the agent had asked.
        method: String,
        /// Why; [`Error::maybe_executed`] says whether it may have arrived all the same.
        error: Error,
    },
    /// A notification that this version has no type for.
    #[non_exhaustive]
    Other {
        /// Its name.
        method: String,
        /// Its content.
        params: Value,
        /// Whether it is new.
        origin: Origin,
    },
}

impl Event {
    /// Whether it is new, or older than this connection.
    #[must_use]
    pub fn origin(&self) -> Origin {
        match self {
            Self::Update(update) => update.origin(),
            Self::SessionEnded(ended) | Self::TerminationDetails(ended) => ended.origin,
            Self::AgentUnparsed { origin, .. } | Self::Other { origin, .. } => *origin,
            _ => Origin::Live,
        }
    }

    /// A copy for a subscription: one that does not decide gets requests that it does not keep open.
    pub(crate) fn copy_for(&self, deciding: bool) -> Self {
        match self {
            Self::Permission(request) if !deciding => Self::Permission(request.observed()),
            Self::Question(request) if !deciding => Self::Question(request.observed()),
            other => other.clone(),
        }
    }

    /// The session it belongs to, if it belongs to one.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        match self {
            Self::Update(update) => Some(update.session_id()),
            Self::SessionEnded(ended) | Self::TerminationDetails(ended) => Some(&ended.session_id),
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

/// A session that ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SessionEnded {
    /// Which.
    pub session_id: String,
    /// How.
    pub termination: TerminationInfo,
    /// Whether it is new.
    pub origin: Origin,
}

/// Whether an event tells of something new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Origin {
    /// It happened while this client was there (or was away for a moment and caught up).
    Live,
    /// It is older than this connection; the server had kept it.
    Replayed,
    /// It is the history of a session that is being loaded.
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

/// Events that are missing, by the numbers the server gave them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Gap {
    /// The first number that is missing.
    pub from: u64,
    /// The last number that is missing.
    pub to: u64,
}

impl Gap {
    /// How many events are missing.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.to.saturating_sub(self.from).saturating_add(1)
    }
}
