//! Serving one agent request, from its arrival to its response.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Admission, Arrival, OpenRequest, Refusal, Responding};
use crate::{
    AgentRequest, Error, Event, EventId, MessageId, RpcError,
    client::Core,
    events::peek_session,
    handler::{
        AnyHandler, OutcomeFuture,
        outcome::{Outcome, Reply, cancelled},
    },
    outbound::send_one_way,
    printable::OneLine,
    random::fraction,
    rpc::Outgoing,
    sse::{Backoff, Fingerprint},
    tap::{catch, catch_async},
    transport::PostFailure,
};

/// How often the upload of a large response is repeated after it broke. Then the agent gets a short error instead.
const MAX_UPLOADS: u32 = 3;
/// The name in logs of the application's handler.
const HANDLER: &str = "agent request handler";

/// Passes a request to the handler: to its queue if it has one, otherwise in a separate task.
pub(crate) fn dispatch(
    core: &Arc<Core>,
    event_id: Option<EventId>,
    id: MessageId,
    method: &str,
    params: Bytes,
) {
    let Some(client) = core.client() else { return };
    let method: Arc<str> = method.into();
    let session: Option<Arc<str>> = peek_session(&params).map(Arc::from);
    let (cancel, cancelled_by) = oneshot::channel();
    let reopenings = core.stats.reconnects.load(Ordering::Acquire);
    let arrival = Arrival { method: method.clone(), print: Fingerprint::of(&params), event_id, reopenings };
    let bytes = params.len();
    let open = OpenRequest { serial: 0, session: session.clone(), arrival: arrival.clone(), bytes, cancel };
    let target = Target { id, method, session };
    match core.calls.admit(&target.id, open) {
        Admission::Open(serial) => {
            let request = AgentRequest::new(target.id.clone(), target.method.clone(), params, client);
            let handling = core.options.handler.clone().enqueue(request);
            core.tasks.spawn(serve(core.clone(), target, serial, handling, cancelled_by));
        }
        Admission::Repeated => {
            tracing::debug!(id = ?target.id, method = &*target.method, "repeated agent request");
        }
        Admission::Full if !core.options.refusals.select(params) => {
            tracing::debug!(id = ?target.id, method = &*target.method, "agent request is left to other clients");
        }
        Admission::Full => match core.calls.refuse(&target.id, target.session.as_deref(), &arrival) {
            Refusal::Granted => {
                core.tasks.spawn(refuse(core.clone(), target));
            }
            Refusal::Dropped { is_first } => {
                let error = Error::TooManyRequests { limit: core.options.limits.refusals };
                // An agent can send any number of them.
                if is_first {
                    log_lost(&target, &error);
                }
                report_lost(core, &target, error);
            }
        },
    }
}

/// Where a response goes.
struct Target {
    id: MessageId,
    method: Arc<str>,
    session: Option<Arc<str>>,
}

/// The outcome of a request.
enum Decision {
    /// It gets a response. The caller that cancelled it waits for the sender to be dropped.
    Respond(Reply, Option<oneshot::Sender<()>>),
    /// Another client responds to it.
    Ignore,
    /// The agent or the connection is gone.
    Gone,
}

async fn serve(
    core: Arc<Core>,
    target: Target,
    serial: u64,
    handling: Result<OutcomeFuture, Box<AgentRequest>>,
    mut cancelled_by: oneshot::Receiver<oneshot::Sender<()>>,
) {
    let handler = core.options.handler.clone();
    match decide(handler, handling, &target.method, &mut cancelled_by).await {
        Decision::Respond(reply, waiter) => {
            if let Some(responding) = core.calls.claim(&target.id, serial) {
                deliver(&core, &target, reply, responding).await;
            }
            // Only now, because a cancel that came meanwhile waits for the receiver.
            drop((waiter, cancelled_by));
        }
        Decision::Ignore => drop(core.calls.claim(&target.id, serial)),
        Decision::Gone => {}
    }
}

async fn decide(
    handler: Arc<dyn AnyHandler>,
    handling: Result<OutcomeFuture, Box<AgentRequest>>,
    method: &str,
    cancelled_by: &mut oneshot::Receiver<oneshot::Sender<()>>,
) -> Decision {
    // An agent that gets an error is better off than one that waits forever.
    let panicked = || {
        let error = RpcError::internal("the handler panicked");
        Decision::Respond(Reply::Outcome(Err(error)), None)
    };
    let handling = match handling {
        Ok(handling) => Some(handling),
        Err(request) => catch(HANDLER, || handler.handle(*request)),
    };
    let Some(mut handling) = handling else { return panicked() };
    let decision = tokio::select! {
        biased;
        // A response of the handler counts, even if a cancel came after it.
        reply = catch_async(HANDLER, &mut handling) => match reply {
            Some(Some(reply)) => Decision::Respond(reply, None),
            Some(None) => Decision::Ignore,
            None => panicked(),
        },
        cancel = cancelled_by => match cancel {
            Ok(waiter) => Decision::Respond(Reply::Outcome(cancelled(method)), Some(waiter)),
            Err(_) => Decision::Gone,
        },
    };
    // Destructors may panic too.
    let _ = catch(HANDLER, || drop(handling));
    decision
}

async fn refuse(core: Arc<Core>, target: Target) {
    let responding = Responding { table: &core.calls, refusal: true, bytes: 0 };
    let busy = Err(RpcError::internal("too many requests are open"));
    deliver(&core, &target, Reply::Outcome(busy), responding).await;
}

/// Posts a response. It is repeated only while it is certain that it did not arrive.
async fn deliver(core: &Arc<Core>, target: &Target, reply: Reply, mut responding: Responding<'_>) {
    let Some((mut body, mut replaced)) = prepare(core, target, reply, &mut responding) else { return };
    core.tap_outbound(&body);
    let mut backoff = Backoff::new(core.options.reconnect.clone());
    let mut uploads = 0;
    loop {
        let sent = {
            let Ok(_permit) = responding.posts().acquire().await else { return };
            send_one_way(core, &target.method, body.clone(), target.session.clone()).await
        };
        match sent {
            Ok(()) => return,
            // The server cannot have run it. An agent that gets an error can request less; an agent without a
            // response waits forever.
            Err(PostFailure::NotTaken(error) | PostFailure::Failed(error))
                if !replaced && is_too_large(&error, &mut uploads) =>
            {
                replaced = true;
                let Some(smaller) = encode(target, Err(RpcError::internal(&error))) else { return };
                body = smaller;
                responding.reserve(body.len());
                core.tap_outbound(&body);
                lost(core, target, error);
            }
            Err(PostFailure::NotTaken(error)) if error.is_retryable() => {
                let Some(delay) = backoff.next_delay(fraction()) else {
                    return lost(core, target, error);
                };
                tokio::time::sleep(delay.max(error.retry_after().unwrap_or_default())).await;
            }
            Err(failure) => return lost(core, target, failure.into_error()),
        }
    }
}

/// Returns the message of a response, and whether it is an error that replaces a result without room.
fn prepare(
    core: &Arc<Core>,
    target: &Target,
    reply: Reply,
    responding: &mut Responding<'_>,
) -> Option<(Bytes, bool)> {
    let size = match reply {
        Reply::Encoded(body, room) => {
            responding.bytes = room.take();
            return Some((body, false));
        }
        Reply::Outcome(outcome) => {
            let body = encode(target, outcome)?;
            if responding.reserve(body.len()) {
                return Some((body, false));
            }
            body.len()
        }
        Reply::TooLarge(size) => size,
    };
    // A response that waited for room would take the same memory.
    let error = Error::ResponseTooLarge { size, limit: core.options.limits.response_bytes };
    let body = encode(target, Err(RpcError::internal(&error)))?;
    lost(core, target, error);
    Some((body, true))
}

/// Whether a response is too large: the server said so, or its upload broke several times.
fn is_too_large(error: &Error, uploads: &mut u32) -> bool {
    match error {
        Error::PayloadTooLarge { .. } => true,
        Error::UploadInterrupted { .. } => {
            *uploads += 1;
            *uploads >= MAX_UPLOADS
        }
        _ => false,
    }
}

fn encode(target: &Target, outcome: Outcome) -> Option<Bytes> {
    let body = match outcome {
        Ok(result) => Outgoing::response(&target.id, Ok(&result)),
        Err(error) => Outgoing::response::<()>(&target.id, Err(&error)),
    };
    match body {
        Ok(body) => Some(body),
        Err(error) => {
            tracing::error!(id = ?target.id, method = &*target.method, error = %OneLine(&error), "response cannot be serialized");
            None
        }
    }
}

fn lost(core: &Arc<Core>, target: &Target, error: Error) {
    log_lost(target, &error);
    report_lost(core, target, error);
}

fn log_lost(target: &Target, error: &Error) {
    tracing::warn!(id = ?target.id, method = &*target.method, error = %OneLine(&error), "response to the agent was not delivered");
}

fn report_lost(core: &Arc<Core>, target: &Target, error: Error) {
    core.publish(Event::ResponseLost { id: target.id.clone(), method: target.method.to_string(), error });
}
