//! Events in the queue of a subscriber.

use bytes::Bytes;

use super::{Event, Malformed, Meta, Update, text_chunk};
use crate::Typed;

/// An event in the queue of a subscriber. Updates are parsed on the task of the subscriber.
#[derive(Debug)]
pub(crate) enum Stored {
    /// The parameters of an update.
    Update {
        params: Bytes,
        meta: Meta,
    },
    Other(Box<Event>),
}

impl Stored {
    /// How much the event counts in the budget of a subscriber.
    pub(crate) fn weight(&self) -> usize {
        const OVERHEAD: usize = 128;
        let payload = match self {
            Self::Update { params, .. } => params.len(),
            Self::Other(event) => match &**event {
                Event::Update(update) => update.content.raw().as_bytes().len(),
                Event::Notification(notification) | Event::AgentRequest { request: notification, .. } => {
                    notification.params.as_bytes().len()
                }
                Event::UnmatchedResponse { raw, .. } => raw.as_bytes().len(),
                Event::Malformed(malformed) => malformed.start.len() + malformed.reason.len(),
                Event::AnswerLost { error, .. } | Event::StreamLost { error, .. } => {
                    error.http().map_or(0, |http| http.body.len())
                }
                _ => 0,
            },
        };
        OVERHEAD + payload
    }

    pub(crate) fn is_the_end(&self) -> bool {
        matches!(self, Self::Other(event) if matches!(&**event, Event::State(state) if state.is_terminated()))
    }

    pub(crate) fn to_event(&self) -> Event {
        match self {
            Self::Update { params, meta } => read(params.clone(), meta.clone()),
            Self::Other(event) => (**event).clone(),
        }
    }

    pub(crate) fn into_event(self) -> Event {
        match self {
            Self::Update { params, meta } => read(params, meta),
            Self::Other(event) => *event,
        }
    }
}

fn read(params: Bytes, meta: Meta) -> Event {
    let content = Typed::read_with(params, text_chunk::read);
    match content.unreadable() {
        Some(error) => {
            let reason = format!("the parameters of an update cannot be read: {error}");
            Event::Malformed(Malformed::new(meta.event_id, content.raw().as_bytes(), reason))
        }
        None => Event::Update(Update { content, meta }),
    }
}
