//! The weight of events in the budget of a subscriber.

use serde_json::Value;

use crate::convert::decoded::value_size;
use crate::termination::StderrOutput;
use crate::update::Missed;
use crate::{ConnectionState, Error, Event, TerminationInfo, Update, UpdateKind};

/// The weight of a queue's item.
pub(crate) trait Weight {
    /// Returns the bytes that it counts in the budget.
    fn weight(&self) -> usize;
    /// Returns the class whose budget it uses.
    fn class(&self) -> Class;
    /// Creates the item that replaces this many dropped ones.
    fn lagged(count: u64) -> Self;
}

/// The classes of items. Each has its own budget, so that they do not displace each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Updates, of which there may be any number.
    Report,
    /// Agent requests, which wait for a response.
    Request,
    /// Agent requests to other clients. They must not displace those to this one.
    Unclaimed,
    /// Rare events that no subscriber should miss.
    News,
}

impl Class {
    pub(super) const COUNT: usize = Self::News as usize + 1;
}

/// The size of an event or an update besides its content.
const OVERHEAD: usize = 256;

impl Weight for Event {
    fn weight(&self) -> usize {
        let content = match self {
            Self::Update(update) => update.size(),
            Self::SessionEnded(ended) | Self::TerminationDetails(ended) => {
                ended.session_id.len() + end_size(&ended.termination)
            }
            Self::TurnEnded(ended) => {
                ended.session_id.len()
                    + match &ended.outcome {
                        Ok(outcome) => value_size(&outcome.raw),
                        Err(error) => error_size(error),
                    }
            }
            Self::AgentUnparsed { unparsed, .. } => unparsed.raw.len() + unparsed.error.len(),
            Self::Permission(request) => request.size(),
            Self::Question(request) => request.size(),
            Self::UnclaimedRequest(request) => request.weight(),
            Self::PermissionDecided(decided) => decided.request.size(),
            Self::QuestionCompleted { id } => id.len(),
            Self::RequestRejected { session_id, method, reason } => {
                session_id.as_ref().map_or(0, String::len) + method.len() + reason.len()
            }
            Self::Connection(ConnectionState::AgentEnded(info)) => end_size(info),
            Self::EventsLost(lost) => lost.session_id.len(),
            Self::OwnershipLost { session_id } | Self::Restored { session_id, .. } => session_id.len(),
            Self::Budget(budget) => budget.session_id.as_ref().map_or(0, String::len),
            Self::Malformed { reason, start, .. } => reason.len() + start.len(),
            Self::ResponseLost { method, error } => method.len() + error_size(error),
            Self::Other { method, params, .. } => method.len() + value_size(params),
            Self::Connection(_)
            | Self::Reconnected { .. }
            | Self::ServerRestarted
            | Self::Gap(_)
            | Self::Lagged(_) => 0,
        };
        OVERHEAD + content
    }

    fn class(&self) -> Class {
        match self {
            Self::Permission(_) | Self::Question(_) => Class::Request,
            Self::UnclaimedRequest(_) => Class::Unclaimed,
            Self::Connection(_)
            | Self::SessionEnded(_)
            | Self::TurnEnded(_)
            | Self::Budget(_)
            | Self::EventsLost(_)
            | Self::OwnershipLost { .. }
            | Self::Restored { .. } => Class::News,
            _ => Class::Report,
        }
    }

    fn lagged(count: u64) -> Self {
        Self::Lagged(count)
    }
}

impl Weight for Update {
    fn weight(&self) -> usize {
        OVERHEAD + self.size()
    }

    fn class(&self) -> Class {
        match self.kind() {
            UpdateKind::Missed(_) => Class::News,
            _ => Class::Report,
        }
    }

    fn lagged(count: u64) -> Self {
        Self::missed("", Missed::Lagged(count))
    }
}

pub(crate) fn end_size(info: &TerminationInfo) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let members = |members: &serde_json::Map<String, Value>| -> usize {
        members.iter().map(|(name, value)| name.len() + value_size(value)).sum()
    };
    let stderr = |stderr: &StderrOutput| text(&stderr.head) + text(&stderr.tail) + members(&stderr.other);
    text(&info.message) + text(&info.signal) + info.stderr.as_ref().map_or(0, stderr) + members(&info.other)
}

fn error_size(error: &Error) -> usize {
    match error {
        Error::Http(http) => http.body.len(),
        Error::Rpc { error, .. } => error.message.len() + error.data.as_ref().map_or(0, value_size),
        error => error.termination().map_or(0, end_size),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Class, OVERHEAD, Weight};
    use crate::event::{Origin, SessionEnded};
    use crate::termination::{EndReason, TerminatedBy};
    use crate::{ConnectionState, Event, TerminationInfo};

    #[test]
    fn whatever_an_event_holds_counts() {
        let long = "x".repeat(10_000);
        let mut info = TerminationInfo::new(EndReason::Error, TerminatedBy::Agent);
        info.message = Some(long.clone());
        let ended = SessionEnded { session_id: "s".into(), termination: info.clone(), origin: Origin::Live };
        let events = [
            Event::Other { method: "m".into(), params: json!({"a": [long]}), origin: Origin::Live },
            Event::Other { method: "m".into(), params: json!({ long.as_str(): 1 }), origin: Origin::Live },
            Event::Malformed { reason: long.clone(), start: String::new(), lost: false },
            Event::QuestionCompleted { id: long.clone() },
            Event::SessionEnded(Box::new(ended)),
            Event::Connection(ConnectionState::AgentEnded(Box::new(info))),
        ];
        for event in events {
            assert!(event.weight() >= OVERHEAD + long.len(), "{event:?}");
        }
        assert_eq!(Event::ServerRestarted.weight(), OVERHEAD);
        assert_eq!(Event::ServerRestarted.class(), Class::Report);
    }
}
