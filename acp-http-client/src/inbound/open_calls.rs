//! The agent's requests that are being answered.

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
};

use bytes::Bytes;
use futures::FutureExt;
use tokio::sync::oneshot;

use crate::{
    AgentRequest, Error, Event, EventId, MessageId, RpcError,
    client::Core,
    events::peek_session,
    handler::{
        AnyHandler,
        answers::{Answer, cancelled},
    },
    outbound::send_one_way,
    random::fraction,
    rpc::Outgoing,
    sse::{Backoff, Fingerprint},
    transport::PostFailure,
};

/// How many answered requests are remembered, so that a replay of one is not answered again.
const ANSWERED: usize = 4096;

/// The table of open requests. Each is answered once.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls {
    /// Guards both tables; held for a look-up.
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    open: HashMap<MessageId, OpenCall>,
    /// What was answered under an id: an agent that was started anew may use the id again.
    answered: HashMap<MessageId, Answered>,
    /// The ids in the order of their answers. One that was answered again stands here twice.
    order: VecDeque<(u64, MessageId)>,
    /// Counts the answers.
    count: u64,
    /// Counts the requests that were given a place.
    places: u64,
}

#[derive(Debug)]
struct OpenCall {
    /// Which one it is: an agent that was started anew may ask something else under the same id.
    place: u64,
    session: Option<Arc<str>>,
    arrival: Arrival,
    /// Ends the handler; the receiver hears when the answer is out.
    cancel: oneshot::Sender<oneshot::Sender<()>>,
}

/// How a request came.
#[derive(Debug, Clone)]
struct Arrival {
    method: Arc<str>,
    /// What it asks for.
    print: Fingerprint,
    event_id: Option<EventId>,
    /// How often a stream had been opened again by then.
    reopenings: u64,
}

impl Arrival {
    fn asks_the_same(&self, other: &Self) -> bool {
        self.print == other.print && self.method == other.method
    }
}

/// A request that was answered.
#[derive(Debug)]
struct Answered {
    number: u64,
    session: Option<Arc<str>>,
    arrival: Arrival,
    /// Whether whoever asked may be gone: the agent, or the turn.
    gone: bool,
}

impl Answered {
    /// Whether a request under the same id is this one once more, and not one of an agent that began anew and counts as
    /// its predecessor did.
    ///
    /// The same event is the same request, and as long as whoever asked is there, so is another event: a server may send
    /// again what it takes to be open. Afterwards another event is another request. Where events have no numbers, only
    /// a stream that was not opened again meanwhile can be trusted to repeat nothing.
    fn is_repeated_by(&self, again: &Arrival) -> bool {
        let first = &self.arrival;
        if !first.asks_the_same(again) || !self.gone {
            return first.asks_the_same(again);
        }
        match (&first.event_id, &again.event_id) {
            (Some(first), Some(again)) => first == again,
            _ => first.reopenings != again.reopenings,
        }
    }
}

impl OpenCalls {
    /// Makes a place for a request, and says which and how many there are; `None` if it is open or was answered already.
    fn open(&self, id: &MessageId, mut call: OpenCall) -> Option<(u64, usize)> {
        let mut calls = self.lock();
        // An answer to what is open serves whoever has asked it, the first time or again.
        let open = calls.open.get(id).is_some_and(|open| open.arrival.asks_the_same(&call.arrival));
        if open || calls.answered.get(id).is_some_and(|answered| answered.is_repeated_by(&call.arrival)) {
            return None;
        }
        calls.answered.remove(id);
        calls.places += 1;
        call.place = calls.places;
        calls.open.insert(id.clone(), call);
        Some((calls.places, calls.open.len()))
    }

    /// Takes the right to answer; `false` if somebody has it already, or something else is asked under the id now.
    fn claim(&self, id: &MessageId, place: u64) -> bool {
        let mut calls = self.lock();
        calls.open.get(id).is_some_and(|call| call.place == place) && calls.settle(id)
    }

    /// Cancels one request: the agent does not want the answer any more.
    pub(crate) fn cancel_one(&self, id: &MessageId) {
        let cancel = self.lock().take_cancel(id);
        if let Some(cancel) = cancel {
            let _ = cancel.send(oneshot::channel().0);
        }
    }

    /// Cancels the open requests of the sessions that fit, and waits until each has its answer out.
    pub(crate) async fn cancel(&self, fits: impl Fn(Option<&str>) -> bool) {
        let mut waits = Vec::new();
        {
            let mut calls = self.lock();
            for id in calls.of_sessions(fits) {
                let (done, wait) = oneshot::channel();
                if let Some(cancel) = calls.take_cancel(&id)
                    && cancel.send(done).is_ok()
                {
                    waits.push(wait);
                }
            }
        }
        for wait in waits {
            let _ = wait.await;
        }
    }

    /// Closes the open requests of a session, or all of them, without an answer, and says how many.
    pub(crate) fn forget(&self, session: Option<&str>) -> usize {
        let mut calls = self.lock();
        let ids = calls.of_sessions(|asking| session.is_none() || asking == session);
        let count = ids.iter().filter(|id| calls.settle(id)).count();
        calls.part_with(session);
        count
    }

    /// A session, or all of them, may have another agent from now on, which may ask the same under the same ids.
    pub(crate) fn renew(&self, session: Option<&str>) {
        self.lock().part_with(session);
    }

    pub(crate) fn clear(&self) {
        *self.lock() = Calls::default();
    }

    /// The server began anew, and so may its ids.
    pub(crate) fn forget_answered(&self) {
        let mut calls = self.lock();
        calls.answered.clear();
        calls.order.clear();
    }

    pub(crate) fn list(&self) -> Vec<(MessageId, String)> {
        self.lock().open.iter().map(|(id, call)| (id.clone(), call.arrival.method.to_string())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    /// The open requests of the sessions that fit.
    fn of_sessions(&self, fits: impl Fn(Option<&str>) -> bool) -> Vec<MessageId> {
        let calls = self.open.iter().filter(|(_, call)| fits(call.session.as_deref()));
        calls.map(|(id, _)| id.clone()).collect()
    }

    /// Takes a request out of those that are open and remembers it; `false` if it is not open.
    fn settle(&mut self, id: &MessageId) -> bool {
        let Some(OpenCall { session, arrival, .. }) = self.open.remove(id) else { return false };
        self.count += 1;
        let number = self.count;
        self.answered.insert(id.clone(), Answered { number, session, arrival, gone: false });
        self.order.push_back((number, id.clone()));
        if self.order.len() > ANSWERED
            && let Some((number, oldest)) = self.order.pop_front()
            && self.answered.get(&oldest).is_some_and(|answered| answered.number == number)
        {
            self.answered.remove(&oldest);
        }
        true
    }

    /// Takes note that whoever asked in a session, or in any, is gone.
    fn part_with(&mut self, session: Option<&str>) {
        for answered in self.answered.values_mut() {
            answered.gone |= session.is_none() || answered.session.as_deref() == session;
        }
    }

    /// Takes the means to cancel a request, leaving the request in its place until it is answered.
    fn take_cancel(&mut self, id: &MessageId) -> Option<oneshot::Sender<oneshot::Sender<()>>> {
        let call = self.open.get_mut(id)?;
        Some(std::mem::replace(&mut call.cancel, oneshot::channel().0))
    }
}

/// Gives a request to the handler, on a task of its own.
pub(super) fn dispatch(
    core: &Arc<Core>,
    event_id: Option<EventId>,
    id: MessageId,
    method: &str,
    params: Bytes,
) {
    let Some(client) = core.client() else { return };
    let method: Arc<str> = method.into();
    let session: Option<Arc<str>> = peek_session(&params).map(Arc::from);
    let (cancel, mut cancelled_by) = oneshot::channel();
    let reopenings = core.stats.reconnects.load(Ordering::Acquire);
    let arrival = Arrival { method: method.clone(), print: Fingerprint::of(&params), event_id, reopenings };
    let call = OpenCall { place: 0, session: session.clone(), arrival, cancel };
    let Some((place, count)) = core.calls.open(&id, call) else {
        tracing::debug!(%id, %method, "a request of the agent came again");
        return;
    };
    let request = AgentRequest::new(id.clone(), method.clone(), params, client);
    let answering = core.clone();
    if count > core.options.limits.open_requests {
        let busy = Err(RpcError::internal("too many requests are open"));
        core.tasks.spawn(async move { deliver(&answering, (&id, place), &method, session, busy).await });
        return;
    }
    let handler = core.options.handler.clone();
    core.tasks.spawn(async move {
        let mut done = None;
        let answer = tokio::select! {
            biased;
            // An answer that was given counts, whatever came after it. Whoever cancels waits until it is out, which is
            // when the receiver goes.
            answer = handled(handler, request) => answer,
            cancel = &mut cancelled_by => {
                match cancel {
                    Ok(waiter) => done = Some(waiter),
                    // The place was cleared or given away: whoever asked is gone, or the connection is.
                    Err(_) => return,
                }
                Some(cancelled(&method))
            }
        };
        match answer {
            Some(answer) => deliver(&answering, (&id, place), &method, session, answer).await,
            // It counts as answered, by somebody else.
            None => drop(answering.calls.claim(&id, place)),
        }
        drop((done, cancelled_by));
    });
}

/// A handler that panics answers too: an agent that waits for ever is worse than one that hears of a bug.
async fn handled(handler: Arc<dyn AnyHandler>, request: AgentRequest) -> Option<Answer> {
    let answer = AssertUnwindSafe(async { handler.handle(request).await }).catch_unwind().await;
    answer.unwrap_or_else(|_| Some(Err(RpcError::internal("the handler panicked"))))
}

/// Posts an answer, once. It is tried again only while it is certain that it never arrived.
async fn deliver(
    core: &Arc<Core>,
    (id, place): (&MessageId, u64),
    method: &Arc<str>,
    session: Option<Arc<str>>,
    answer: Answer,
) {
    if !core.calls.claim(id, place) {
        return;
    }
    let Some(mut body) = encode(id, method, &answer) else { return };
    core.tap_outbound(&body);
    let mut backoff = Backoff::new(core.options.reconnect.clone());
    let mut replaced = false;
    loop {
        match send_one_way(core, method, body.clone(), session.clone()).await {
            Ok(()) => return,
            Err(PostFailure::NotTaken(error)) if error.is_retryable() => {
                let Some(delay) = backoff.next_delay(fraction()) else {
                    return lost(core, id, method, error);
                };
                tokio::time::sleep(delay).await;
            }
            // The server did not look at it. An agent that hears why can ask for less; one that hears nothing waits
            // for ever.
            Err(PostFailure::Failed(error @ Error::PayloadTooLarge { .. })) if !replaced => {
                replaced = true;
                let Some(smaller) = encode(id, method, &Err(RpcError::internal(&error))) else { return };
                body = smaller;
                core.tap_outbound(&body);
                lost(core, id, method, error);
            }
            Err(failure) => return lost(core, id, method, failure.into_error()),
        }
    }
}

fn encode(id: &MessageId, method: &str, answer: &Answer) -> Option<Bytes> {
    let body = match answer {
        Ok(result) => Outgoing::response(id, Ok(result)),
        Err(error) => Outgoing::<()>::response(id, Err(error)),
    };
    match body {
        Ok(body) => Some(body),
        Err(error) => {
            tracing::error!(%id, %method, %error, "an answer cannot be written as JSON");
            None
        }
    }
}

fn lost(core: &Arc<Core>, id: &MessageId, method: &str, error: Error) {
    tracing::warn!(%id, %method, %error, "an answer to the agent was not delivered");
    core.publish(Event::AnswerLost { id: id.clone(), method: method.to_owned(), error });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(event: Option<&str>, reopenings: u64) -> Arrival {
        let (method, print) = ("m".into(), Fingerprint::of(b"{}"));
        Arrival { method, print, event_id: event.map(EventId::from), reopenings }
    }

    #[test]
    fn an_answered_request_is_told_from_one_of_an_agent_that_began_anew() {
        // The event and the openings of the stream, when it was asked and when it is asked again; whether the agent
        // that had asked is gone; whether it is the same request.
        let table = [
            ((Some("5"), 0), (Some("5"), 0), false, true),
            ((Some("5"), 0), (Some("5"), 1), true, true),
            ((Some("5"), 0), (Some("9"), 0), false, true),
            ((Some("5"), 0), (Some("9"), 0), true, false),
            ((Some("5"), 0), (Some("9"), 1), false, true),
            ((Some("5"), 0), (Some("9"), 1), true, false),
            ((None, 0), (None, 0), false, true),
            ((None, 0), (None, 0), true, false),
            ((None, 0), (None, 1), false, true),
            ((None, 0), (None, 1), true, true),
        ];
        for (first, again, gone, repeated) in table {
            let answered = Answered { number: 1, session: None, arrival: arrival(first.0, first.1), gone };
            assert_eq!(
                answered.is_repeated_by(&arrival(again.0, again.1)),
                repeated,
                "{first:?} {again:?} {gone}"
            );
            let other = Arrival { print: Fingerprint::of(b"[]"), ..arrival(again.0, again.1) };
            assert!(!answered.is_repeated_by(&other), "it asks something else");
            let other = Arrival { method: "n".into(), ..arrival(again.0, again.1) };
            assert!(!answered.is_repeated_by(&other), "it asks for something else");
        }
    }

    fn call(arrival: Arrival) -> OpenCall {
        OpenCall { place: 0, session: None, arrival, cancel: oneshot::channel().0 }
    }

    #[test]
    fn an_answer_is_never_that_of_another_request_under_its_id() {
        let calls = OpenCalls::default();
        let id: MessageId = serde_json::from_str("0").unwrap();
        let (first, _) = calls.open(&id, call(arrival(Some("1"), 0))).unwrap();
        let other = Arrival { print: Fingerprint::of(b"[]"), ..arrival(Some("2"), 0) };
        let (second, _) = calls.open(&id, call(other)).unwrap();
        assert!(!calls.claim(&id, first), "whoever asked the first is gone");
        assert!(calls.claim(&id, second));
        assert!(!calls.claim(&id, second), "once");
    }

    #[test]
    fn only_so_many_answers_are_remembered_and_the_latest_of_each() {
        let calls = OpenCalls::default();
        let open = |id: usize, event: u64| {
            let call = call(arrival(Some(&event.to_string()), event));
            calls.lock().part_with(None);
            let id: MessageId = serde_json::from_str(&id.to_string()).unwrap();
            let (place, _) = calls.open(&id, call).unwrap();
            assert!(calls.claim(&id, place));
        };
        open(0, 1);
        open(0, 2);
        (1..ANSWERED).for_each(|id| open(id, 3));
        assert_eq!(calls.lock().answered.len(), ANSWERED, "the first answer to 0 has made room for the last");
        open(ANSWERED, 3);
        assert_eq!(calls.lock().answered.len(), ANSWERED);
    }
}
