//! Where a message is delivered.

use std::{
    borrow::Cow,
    sync::{Arc, atomic::Ordering},
};

use agent_client_protocol_schema::v1::{CLIENT_METHOD_NAMES, PROTOCOL_LEVEL_METHOD_NAMES};
use bytes::Bytes;
use serde::Deserialize;

use super::{
    Link, LinkState, agent_requests,
    order::{Effect, Lost, Ordered, Response},
};
use crate::{
    Direction, EndReason, Error, Event, EventId, Inbound, Json, Malformed, MessageId, Meta, Notification,
    Order, Origin, Phase, Timeout, Verdict,
    client::{Core, probe},
    events::{Stored, peek_session},
    outbound::Settled,
    printable::OneLine,
    rpc::{Body, MessageError, RpcOutcome},
};

/// Applies an effect of a stream's ordered core. It never blocks.
pub(super) fn apply(core: &Arc<Core>, link: &Arc<Link>, effect: Effect) {
    match effect {
        Effect::Message(ordered) => route(core, link, ordered),
        Effect::Echo { event_id, number, raw } => {
            core.stats.messages.fetch_add(1, Ordering::Relaxed);
            if core.options.tap.is_none() || core.tap_book.copy(number) {
                core.tap(Direction::Inbound, event_id.as_ref(), &raw);
            }
            if core.pending().get_mut(number).is_none() {
                // It was settled without its echo, and what preceded the echo has arrived only now.
                let (id, raw) = (core.ids.id(number), Json::new(raw));
                core.publish(Event::UnmatchedResponse { id, raw, origin: Origin::Live, event_id });
            }
        }
        Effect::Settle { number, outcome, order, from_stream } => {
            settle(core, link, number, outcome, order, from_stream);
        }
        Effect::Fail { number, why } => fail(core, number, why),
        Effect::Malformed { event_id, data, error } => malformed(core, event_id, &data, &error),
        Effect::Gap { from, to } => {
            core.stats.gaps.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(from, to, stream = %OneLine(link.source()), "events are missing");
            core.publish(Event::Gap { stream: link.source().clone(), from, to });
        }
        Effect::Probe => probe(core),
        Effect::Restarted { lost_at } => {
            core.stats.restarts.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(stream = %OneLine(link.source()), "the server restarted");
            if lost_at.is_some() {
                // The agent that asked is gone with the server: a response would reach another one.
                core.calls.forget(None);
            }
            core.calls.forget_answered();
            core.publish(Event::Restarted { stream: link.source().clone() });
        }
    }
}

/// Delivers one message to subscribers and handlers.
fn route(core: &Arc<Core>, link: &Link, ordered: Ordered) {
    core.stats.messages.fetch_add(1, Ordering::Relaxed);
    let Ordered { event_id, origin, message } = ordered;
    core.tap(Direction::Inbound, event_id.as_ref(), &message.raw);
    match message.body {
        Body::Response { id, .. } => {
            tracing::debug!(?id, ?origin, "a response to another client's request");
            core.publish(Event::UnmatchedResponse { id, raw: Json::new(message.raw), origin, event_id });
        }
        Body::Update { params } => {
            let meta = Meta { event_id, origin, stream: link.source().clone() };
            let verdict = judge(core, CLIENT_METHOD_NAMES.session_update, origin, &params);
            core.hub.publish(Stored::Update { params, meta });
            obey(core, verdict);
        }
        Body::Notification { method, params } => {
            notify(core, method, params, Meta { event_id, origin, stream: link.source().clone() });
        }
        Body::Request { id, method, params } => {
            let session = peek_session(&params);
            let length = session.as_ref().map_or(0, |session| session.len());
            if let Err(error) = MessageError::check_length("the session id", length, &core.options.limits) {
                return report(core, event_id, &message.raw, &error, false);
            }
            let is_served = origin == Origin::Live && core.is_addressed(session.as_deref());
            let meta = Meta { event_id: event_id.clone(), origin, stream: link.source().clone() };
            let request = Notification { method: method.clone(), params: Json::new(params.clone()), meta };
            // A reader of the events finds the request in its queue.
            if is_served {
                agent_requests::dispatch(core, event_id, id.clone(), &method, params);
            }
            core.publish(Event::AgentRequest { id, request });
        }
    }
}

/// Returns a response to its caller. A response that arrived on another stream than the updates of its session is
/// ordered on that session's stream.
fn settle(
    core: &Arc<Core>,
    link: &Arc<Link>,
    number: u64,
    outcome: RpcOutcome,
    order: Order,
    from_stream: bool,
) {
    let session =
        core.pending().get_mut(number).filter(|waiter| waiter.ordered).map(|waiter| waiter.session.clone());
    if from_stream && let Some(session) = session {
        let own = core.links.get(core, session.as_ref());
        if !Arc::ptr_eq(&own, link) && own.state() != LinkState::Ended {
            let next_number = core.ids.peek();
            let response = Response { number, session, outcome, next_number, elsewhere: true };
            return own.input(|core, now| core.response(now, response));
        }
    }
    core.mark_answered();
    // A turn that was abandoned ends with its response too.
    core.outbox.end_turn(number);
    let Some(waiter) = core.pending().take(number) else { return };
    core.on_response(&waiter, &outcome);
    waiter.settle(Ok(Settled { outcome, order }));
}

fn fail(core: &Arc<Core>, number: u64, why: Lost) {
    // The end of an abandoned turn will not be seen.
    core.outbox.end_turn(number);
    let Some(waiter) = core.pending().take(number) else { return };
    let method = waiter.method.to_string();
    let error = match why {
        Lost::Restart => Error::ServerRestarted { method },
        Lost::Silence => Error::Timeout(Box::new(Timeout {
            phase: Phase::Confirmation,
            what: method,
            elapsed: waiter.since.elapsed(),
            last_event_age: core.last_event_age(),
            state: core.state(),
            cause: waiter.lost.clone(),
        })),
        Lost::Post => waiter.lost.as_deref().cloned().unwrap_or(Error::ServerRestarted { method }),
    };
    waiter.settle(Err(error));
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
        core.publish(Event::Notification(Notification { method, params, meta }));
    }
    obey(core, verdict);
}

/// Asks the hook what a notification means for pending calls.
fn judge(core: &Core, method: &str, origin: Origin, params: &Bytes) -> Verdict {
    match &core.options.hook {
        Some(hook) => hook.call(&Inbound { method, params: &Json::new(params.clone()), origin }),
        None => Verdict::Pass,
    }
}

fn obey(core: &Arc<Core>, verdict: Verdict) {
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
fn malformed(core: &Core, event_id: Option<EventId>, data: &Bytes, error: &MessageError) {
    core.tap(Direction::Inbound, event_id.as_ref(), data);
    report(core, event_id, data, error, error.may_hide_message(data));
}

/// Reports an event whose id is over the limit. The event itself is delivered without an id.
pub(super) fn id_too_long(core: &Core, size: usize, start: &[u8]) {
    let limit = core.options.limits.id;
    report(core, None, start, &MessageError::TooLong { what: "the id of the event", size, limit }, false);
}

fn report(core: &Core, event_id: Option<EventId>, data: &[u8], error: &MessageError, lost: bool) {
    core.stats.malformed.fetch_add(1, Ordering::Relaxed);
    // The error itself may quote what the server sent.
    tracing::debug!(?event_id, reason = error.kind(), "malformed event");
    core.publish(match *error {
        MessageError::TooLargeDecoded { limit } => {
            let seen = limit.saturating_add(1);
            Event::TooLarge { error: Error::MessageTooLarge { limit, seen, event_id } }
        }
        _ => Event::Malformed(Malformed::new(event_id, data, error.to_string(), lost)),
    });
}
