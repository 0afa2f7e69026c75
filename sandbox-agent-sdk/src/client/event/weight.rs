//! What events take in the memory of whoever does not read them.

use serde_json::Value;

use crate::convert::decoded::value_size;
use crate::termination::StderrOutput;
use crate::{ConnectionState, Error, Event, TerminationInfo};

/// What the items of a queue have to tell about themselves.
pub(crate) trait Weight {
    /// What it counts for in the budget, in bytes.
    fn weight(&self) -> usize;
    /// Which budget it counts for.
    fn class(&self) -> Class;
    /// The item that stands for so many others which were dropped.
    fn lagged(count: u64) -> Self;
}

/// The kinds of items that do not take each other's place: each has a budget of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// What the agent says. There may be any amount of it.
    Report,
    /// What the agent asks. Somebody waits for the answer.
    Request,
    /// What agents ask of other clients. It must not take the place of what they ask of this one.
    Unclaimed,
    /// What is rare and nobody should miss.
    News,
}

impl Class {
    pub(super) const COUNT: usize = Self::News as usize + 1;
}

/// What any event takes besides its content.
const OVERHEAD: usize = 256;

impl Weight for Event {
    fn weight(&self) -> usize {
        let content = match self {
            Self::Update(update) => update.size(),
            Self::SessionEnded(ended) | Self::TerminationDetails(ended) => {
                ended.session_id.len() + end_size(&ended.termination)
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
            #[cfg(feature = "sessions")]
            Self::EventsLost(lost) => lost.session_id.len(),
            #[cfg(feature = "sessions")]
            Self::OwnershipLost { session_id } | Self::Restored { session_id, .. } => session_id.len(),
            Self::Budget(budget) => budget.session_id.as_ref().map_or(0, String::len),
            Self::Malformed { reason, start, .. } => reason.len() + start.len(),
            Self::AnswerLost { method, error } => method.len() + error_size(error),
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
            Self::Connection(_) | Self::SessionEnded(_) | Self::Budget(_) => Class::News,
            #[cfg(feature = "sessions")]
            Self::EventsLost(_) | Self::OwnershipLost { .. } | Self::Restored { .. } => Class::News,
            _ => Class::Report,
        }
    }

    fn lagged(count: u64) -> Self {
        Self::Lagged(count)
    }
}

fn end_size(info: &TerminationInfo) -> usize {
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
        _ => 0,
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
