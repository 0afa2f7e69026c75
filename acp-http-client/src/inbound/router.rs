//! Where a message goes.

use std::{
    borrow::Cow,
    sync::{Arc, atomic::Ordering},
};

use agent_client_protocol_schema::v1::{CLIENT_METHOD_NAMES, PROTOCOL_LEVEL_METHOD_NAMES};
use bytes::Bytes;
use serde::Deserialize;

use super::{Link, agent_requests};
use crate::{
    Direction, EndReason, Event, EventId, EventSource, Inbound, Json, Malformed, MessageId, Meta,
    Notification, Origin, RpcError, Verdict,
    client::{Core, Echo, Settled},
    events::{Stored, peek_session},
    rpc::{Body, Message, MessageError},
};

/// Gives one message to whoever it is for. Nothing here waits.
pub(super) fn route(
    core: &Arc<Core>,
    link: &Link,
    event_id: Option<EventId>,
    origin: Origin,
    message: Message,
) {
    core.stats.messages.fetch_add(1, Ordering::Relaxed);
    match message.body {
        Body::Response { id, outcome } => {
            respond(core, link.source(), event_id.as_ref(), origin, &id, outcome, message.raw);
        }
        Body::Update { params } => {
            core.session_spoke(&params, link.last_message());
            core.tap(Direction::Inbound, event_id.as_ref(), &message.raw);
            let origin = history(core, origin, &params);
            let meta = Meta { event_id, origin, stream: link.source().clone() };
            let verdict = judge(core, CLIENT_METHOD_NAMES.session_update, origin, &params);
            core.hub.publish(Stored::Update { params, meta });
            obey(core, verdict);
        }
        Body::Notification { method, params } => {
            core.session_spoke(&params, link.last_message());
            core.tap(Direction::Inbound, event_id.as_ref(), &message.raw);
            let update = method == CLIENT_METHOD_NAMES.session_update;
            let origin = if update { history(core, origin, &params) } else { origin };
            notify(core, method, params, Meta { event_id, origin, stream: link.source().clone() });
        }
        Body::Request { id, method, params } => {
            let session = peek_session(&params).map_or(0, |session| session.len());
            if let Err(error) = MessageError::check_length("the session id", session, &core.options.limits) {
                return malformed(core, event_id, &message.raw, &error);
            }
            core.session_spoke(&params, link.last_message());
            core.tap(Direction::Inbound, event_id.as_ref(), &message.raw);
            let meta = Meta { event_id: event_id.clone(), origin, stream: link.source().clone() };
            let request =
                Notification { method: method.to_string(), params: Json::new(params.clone()), meta };
            core.publish(Event::AgentRequest { id: id.clone(), request });
            if origin == Origin::Live {
                agent_requests::dispatch(core, event_id, id, &method, params);
            }
        }
    }
}

/// Updates of a session that is being loaded are its history.
fn history(core: &Core, origin: Origin, params: &[u8]) -> Origin {
    if origin == Origin::Live && core.is_replayed(params) { Origin::History } else { origin }
}

fn respond(
    core: &Arc<Core>,
    source: &EventSource,
    event_id: Option<&EventId>,
    origin: Origin,
    id: &MessageId,
    outcome: Result<Bytes, RpcError>,
    raw: Bytes,
) {
    let number = core.ids.number(id.as_json());
    if number.is_some() {
        core.learn_echo(Echo::Copies);
    }
    let waiter = number.and_then(|number| core.pending().take(number));
    if number.is_none_or(|number| core.options.tap.is_none() || core.tap_book.copy(number)) {
        core.tap(Direction::Inbound, event_id, &raw);
    }
    match waiter {
        Some(waiter) => {
            core.on_answer(&waiter, &outcome);
            waiter.settle(Ok(Settled { outcome, via: Some(source.clone()) }));
        }
        // The body was quicker, or the caller went away.
        None if number.is_some() => {}
        None => {
            tracing::debug!(%id, ?origin, "an answer to somebody else's request");
            core.publish(Event::UnmatchedResponse { id: id.clone(), raw: Json::new(raw), origin });
        }
    }
}

fn notify(core: &Arc<Core>, method: Cow<'static, str>, params: Bytes, meta: Meta) {
    if method == PROTOCOL_LEVEL_METHOD_NAMES.cancel_request {
        cancel_call(core, &params);
    }
    let verdict = judge(core, &method, meta.origin, &params);
    if method == CLIENT_METHOD_NAMES.session_update {
        core.hub.publish(Stored::Update { params, meta });
    } else {
        let params = Json::new(params);
        core.publish(Event::Notification(Notification { method: method.into_owned(), params, meta }));
    }
    obey(core, verdict);
}

/// Asks the layer above what a notification means for the calls that are pending.
fn judge(core: &Core, method: &str, origin: Origin, params: &Bytes) -> Verdict {
    match &core.options.hook {
        Some(hook) => hook.call(&Inbound { method, params: &Json::new(params.clone()), origin }),
        None => Verdict::Pass,
    }
}

fn obey(core: &Core, verdict: Verdict) {
    match verdict {
        Verdict::Pass => {}
        Verdict::FailCalls { session, reason } => {
            core.interrupt(session.as_deref(), reason);
        }
        Verdict::End(reason) => {
            core.terminate(EndReason::Custom(reason));
        }
    }
}

fn cancel_call(core: &Core, params: &Bytes) {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Cancel {
        request_id: MessageId,
    }
    if let Ok(cancel) = serde_json::from_slice::<Cancel>(params) {
        core.calls.cancel_one(&cancel.request_id);
    }
}

/// Reports an event that is not a message.
pub(super) fn malformed(core: &Core, event_id: Option<EventId>, data: &Bytes, error: &MessageError) {
    core.tap(Direction::Inbound, event_id.as_ref(), data);
    report(core, event_id, data, error);
}

/// Reports an event whose id is over the limit. The event itself is delivered without an id.
pub(super) fn id_too_long(core: &Core, size: usize, start: &[u8]) {
    let limit = core.options.limits.id;
    report(core, None, start, &MessageError::TooLong { what: "the id of the event", size, limit });
}

fn report(core: &Core, event_id: Option<EventId>, data: &[u8], error: &MessageError) {
    core.stats.malformed.fetch_add(1, Ordering::Relaxed);
    tracing::debug!(?event_id, %error, "malformed event");
    core.publish(Event::Malformed(Malformed::new(event_id, data, error.to_string())));
}
