//! Events in the queue of a subscriber.

use bytes::Bytes;

use super::{Event, Malformed, Meta, Notification, Update, text_chunk};
use crate::{Error, EventId, Typed};

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
        let id = |id: &Option<EventId>| id.as_ref().map_or(0, EventId::size);
        let notification = |notification: &Notification| {
            notification.method.len() + notification.params.as_bytes().len() + id(&notification.meta.event_id)
        };
        let content = match self {
            Self::Update { params, meta } => params.len() + id(&meta.event_id),
            Self::Other(event) => match &**event {
                Event::Update(update) => update.content.raw().as_bytes().len() + id(&update.meta.event_id),
                Event::Notification(received) => notification(received),
                Event::AgentRequest { id, request } => id.as_json().len() + notification(request),
                Event::UnmatchedResponse { id: request, raw, event_id, .. } => {
                    request.as_json().len() + raw.as_bytes().len() + id(event_id)
                }
                Event::Malformed(malformed) => {
                    malformed.start.len() + malformed.reason.len() + id(&malformed.event_id)
                }
                Event::ResponseLost { id, method, error } => {
                    id.as_json().len() + method.len() + body_size(error)
                }
                Event::StreamLost { error, .. } => body_size(error),
                _ => 0,
            },
        };
        OVERHEAD + content
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

/// The size of the response in an error.
fn body_size(error: &Error) -> usize {
    error.http().map_or(0, |http| http.body.len())
}

fn read(params: Bytes, meta: Meta) -> Event {
    let content = Typed::read_with(params, text_chunk::read);
    match content.unreadable() {
        Some(error) => {
            let reason = format!("the parameters of an update cannot be read: {error}");
            Event::Malformed(Malformed::new(meta.event_id, content.raw().as_bytes(), reason, true))
        }
        None => Event::Update(Update { content, meta }),
    }
}
