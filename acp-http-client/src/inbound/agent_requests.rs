//! The agent requests that are being served.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
};

use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot};

use crate::{
    AgentRequest, Error, Event, EventId, Limits, MessageId, RpcError,
    client::Core,
    events::peek_session,
    handler::{
        AnswerFuture, AnyHandler,
        answers::{Answer, cancelled},
    },
    outbound::send_one_way,
    random::fraction,
    rpc::Outgoing,
    sse::{Backoff, Fingerprint},
    tap::{catch, catch_async},
    transport::PostFailure,
};

/// How many answered requests are remembered, so that a replayed request is not answered again.
const ANSWERED: usize = 4096;
/// How many refusals are posted at once. They have permits of their own, so that they never delay a response.
const REFUSAL_POSTS: usize = 4;
/// How often the upload of a large response is repeated after it broke. Then the agent gets a short error instead.
const MAX_UPLOADS: u32 = 3;

/// The name of the application's code in logs.
const HANDLER: &str = "agent request handler";

/// The table of agent requests. Each gets one response.
#[derive(Debug)]
pub(crate) struct AgentRequestTable {
    /// Guards the tables and the counts; held for a look-up, and never while code of the application runs.
    requests: Mutex<Requests>,
    max_open: usize,
    max_bytes: usize,
    max_refusals: usize,
    /// One permit for each response that is being posted.
    response_posts: Semaphore,
    refusal_posts: Semaphore,
}

#[derive(Debug, Default)]
struct Requests {
    open: HashMap<MessageId, OpenRequest>,
    /// What was answered under an id. A restarted agent may use the id again.
    answered: HashMap<MessageId, Answered>,
    /// The ids in the order of their responses. One that was answered twice is here twice.
    order: VecDeque<(u64, MessageId)>,
    /// Counts the responses.
    responses: u64,
    /// Counts the requests that were admitted.
    admitted: u64,
    /// How many bytes the parameters of the open requests take.
    bytes: usize,
    /// How many responses are being sent. Their requests count as open.
    responding: usize,
    /// How many refusals are being sent.
    refusing: usize,
}

#[derive(Debug)]
struct OpenRequest {
    /// Which request it is: a restarted agent may send another one under the same id.
    serial: u64,
    session: Option<Arc<str>>,
    arrival: Arrival,
    /// The size of the parameters.
    bytes: usize,
    /// Ends the handler. The receiver is notified when the response was sent.
    cancel: oneshot::Sender<oneshot::Sender<()>>,
}

/// How a request arrived.
#[derive(Debug, Clone)]
struct Arrival {
    method: Arc<str>,
    /// The fingerprint of the parameters.
    print: Fingerprint,
    event_id: Option<EventId>,
    /// How often a stream had been reopened by then.
    reopenings: u64,
}

impl Arrival {
    fn is_same_request(&self, other: &Self) -> bool {
        self.print == other.print && self.method == other.method
    }
}

/// A request that was answered.
#[derive(Debug)]
struct Answered {
    number: u64,
    session: Option<Arc<str>>,
    arrival: Arrival,
    /// Whether the agent or the turn that sent the request may have ended.
    ended: bool,
}

impl Answered {
    /// Whether a request under the same id is a repetition of this one, and not a request of a restarted agent whose
    /// ids began again.
    ///
    /// The same event is the same request. So is another event while the agent and the turn run: a server may send
    /// again what it considers open. Afterwards another event is another request. Where events have no ids, only a
    /// stream that was not reopened in between is known to repeat nothing.
    fn is_repeated_by(&self, again: &Arrival) -> bool {
        let first = &self.arrival;
        if !first.is_same_request(again) || !self.ended {
            return first.is_same_request(again);
        }
        match (&first.event_id, &again.event_id) {
            (Some(first), Some(again)) => first == again,
            _ => first.reopenings != again.reopenings,
        }
    }
}

/// What happens to a request.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    /// It is open, under this serial number.
    Open(u64),
    /// It is open or was answered already.
    Repeated,
    /// Too many are open: it gets an error response.
    Refused,
    /// Too many refusals are waiting too: it gets no response.
    Dropped,
}

impl AgentRequestTable {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            requests: Mutex::default(),
            max_open: limits.open_requests,
            max_bytes: limits.open_request_bytes,
            max_refusals: limits.refusals,
            response_posts: Semaphore::new(limits.response_posts.clamp(1, Semaphore::MAX_PERMITS)),
            refusal_posts: Semaphore::new(REFUSAL_POSTS),
        }
    }

    /// Admits a request.
    fn admit(&self, id: &MessageId, mut request: OpenRequest) -> Admission {
        let mut requests = self.lock();
        // The response to the open request serves both.
        let open = requests.open.get(id).is_some_and(|open| open.arrival.is_same_request(&request.arrival));
        let answered = requests.answered.get(id);
        if open || answered.is_some_and(|answered| answered.is_repeated_by(&request.arrival)) {
            return Admission::Repeated;
        }
        let count = requests.open.len() + requests.responding;
        let bytes = requests.bytes.saturating_add(request.bytes);
        if count >= self.max_open || bytes > self.max_bytes {
            if requests.refusing >= self.max_refusals {
                return Admission::Dropped;
            }
            requests.refusing += 1;
            requests.remember(id, request.session, request.arrival);
            return Admission::Refused;
        }
        requests.answered.remove(id);
        requests.admitted += 1;
        let serial = requests.admitted;
        request.serial = serial;
        requests.bytes = bytes;
        if let Some(replaced) = requests.open.insert(id.clone(), request) {
            requests.bytes -= replaced.bytes;
        }
        Admission::Open(serial)
    }

    /// Takes the right to respond; `None` if the request was answered, or another one is open under the id.
    fn claim(&self, id: &MessageId, serial: u64) -> Option<Responding<'_>> {
        let mut requests = self.lock();
        let open = requests.open.get(id).is_some_and(|request| request.serial == serial);
        if !(open && requests.settle(id)) {
            return None;
        }
        requests.responding += 1;
        Some(Responding { table: self, refusal: false })
    }

    /// Cancels one request: the agent does not want the response any more.
    pub(crate) fn cancel_one(&self, id: &MessageId) {
        let cancel = self.lock().take_cancel(id, None);
        if let Some(cancel) = cancel {
            let _ = cancel.send(oneshot::channel().0);
        }
    }

    /// Cancels the open requests of the sessions that `matches` selects, and waits until their responses were sent.
    pub(crate) async fn cancel(&self, matches: impl Fn(Option<&str>) -> bool) {
        // The closure belongs to the application: it may block, panic or call this client.
        let mut selected = self.lock().open_sessions();
        selected.retain(|(_, _, session)| matches(session.as_deref()));
        let mut waits = Vec::new();
        for (id, serial, _) in selected {
            let (done, wait) = oneshot::channel();
            let cancel = self.lock().take_cancel(&id, Some(serial));
            if cancel.is_some_and(|cancel| cancel.send(done).is_ok()) {
                waits.push(wait);
            }
        }
        for wait in waits {
            let _ = wait.await;
        }
    }

    /// Closes the open requests of a session, or all of them, without a response. Returns how many there were.
    pub(crate) fn forget(&self, session: Option<&str>) -> usize {
        let mut requests = self.lock();
        let mut open = requests.open_sessions();
        open.retain(|(_, _, asking)| session.is_none() || asking.as_deref() == session);
        let count = open.iter().filter(|(id, _, _)| requests.settle(id)).count();
        requests.mark_ended(session);
        count
    }

    /// A session, or each of them, may have another agent from now on, which may send the same under the same ids.
    pub(crate) fn renew(&self, session: Option<&str>) {
        self.lock().mark_ended(session);
    }

    pub(crate) fn clear(&self) {
        let requests = std::mem::take(&mut *self.lock());
        drop(requests);
    }

    /// The server restarted, and its ids may begin again.
    pub(crate) fn forget_answered(&self) {
        let mut requests = self.lock();
        requests.answered.clear();
        requests.order.clear();
    }

    pub(crate) fn list(&self) -> Vec<(MessageId, String)> {
        let requests = self.lock();
        requests.open.iter().map(|(id, open)| (id.clone(), open.arrival.method.to_string())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Requests {
    /// The open requests with their serial numbers and sessions.
    fn open_sessions(&self) -> Vec<(MessageId, u64, Option<Arc<str>>)> {
        let open = self.open.iter();
        open.map(|(id, request)| (id.clone(), request.serial, request.session.clone())).collect()
    }

    /// Moves a request from the open ones to the answered ones; `false` if it is not open.
    fn settle(&mut self, id: &MessageId) -> bool {
        let Some(OpenRequest { session, arrival, bytes, .. }) = self.open.remove(id) else { return false };
        self.bytes -= bytes;
        self.remember(id, session, arrival);
        true
    }

    fn remember(&mut self, id: &MessageId, session: Option<Arc<str>>, arrival: Arrival) {
        self.responses += 1;
        let number = self.responses;
        self.answered.insert(id.clone(), Answered { number, session, arrival, ended: false });
        self.order.push_back((number, id.clone()));
        if self.order.len() > ANSWERED
            && let Some((number, oldest)) = self.order.pop_front()
            && self.answered.get(&oldest).is_some_and(|answered| answered.number == number)
        {
            self.answered.remove(&oldest);
        }
    }

    /// Notes that the agent or the turn of a session, or of each, may have ended.
    fn mark_ended(&mut self, session: Option<&str>) {
        for answered in self.answered.values_mut() {
            answered.ended |= session.is_none() || answered.session.as_deref() == session;
        }
    }

    /// Takes the means to cancel a request. The request stays open until it is answered.
    fn take_cancel(
        &mut self,
        id: &MessageId,
        serial: Option<u64>,
    ) -> Option<oneshot::Sender<oneshot::Sender<()>>> {
        let request = self.open.get_mut(id)?;
        if serial.is_some_and(|serial| serial != request.serial) {
            return None;
        }
        Some(std::mem::replace(&mut request.cancel, oneshot::channel().0))
    }
}

/// A response or a refusal that is being sent. It is counted until it is dropped.
struct Responding<'a> {
    table: &'a AgentRequestTable,
    refusal: bool,
}

impl Drop for Responding<'_> {
    fn drop(&mut self) {
        let mut requests = self.table.lock();
        // The table may have been cleared in between.
        if self.refusal {
            requests.refusing = requests.refusing.saturating_sub(1);
        } else {
            requests.responding = requests.responding.saturating_sub(1);
        }
    }
}

/// Passes a request to the handler: to its queue if it has one with room, and else on a task of its own.
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
    let (cancel, cancelled_by) = oneshot::channel();
    let reopenings = core.stats.reconnects.load(Ordering::Acquire);
    let arrival = Arrival { method: method.clone(), print: Fingerprint::of(&params), event_id, reopenings };
    let open = OpenRequest { serial: 0, session: session.clone(), arrival, bytes: params.len(), cancel };
    let target = Target { id, method, session };
    match core.calls.admit(&target.id, open) {
        Admission::Open(serial) => {
            let request = AgentRequest::new(target.id.clone(), target.method.clone(), params, client);
            let handling = core.options.handler.enqueue(request);
            core.tasks.spawn(serve(core.clone(), target, serial, handling, cancelled_by));
        }
        Admission::Refused => {
            core.tasks.spawn(refuse(core.clone(), target));
        }
        Admission::Repeated => {
            tracing::debug!(id = %target.id, method = %target.method, "repeated agent request");
        }
        Admission::Dropped => {
            let limit = core.options.limits.refusals;
            lost(core, &target, Error::TooManyRequests { limit });
        }
    }
}

/// Where a response goes.
struct Target {
    id: MessageId,
    method: Arc<str>,
    session: Option<Arc<str>>,
}

/// What becomes of a request.
enum Decision {
    /// It is answered. The caller that cancelled it waits for the sender to be dropped.
    Respond(Answer, Option<oneshot::Sender<()>>),
    /// Another client answers it.
    Ignore,
    /// The agent or the connection is gone.
    Gone,
}

async fn serve(
    core: Arc<Core>,
    target: Target,
    serial: u64,
    handling: Result<AnswerFuture, Box<AgentRequest>>,
    mut cancelled_by: oneshot::Receiver<oneshot::Sender<()>>,
) {
    let handler = core.options.handler.clone();
    match decide(handler, handling, &target.method, &mut cancelled_by).await {
        Decision::Respond(answer, waiter) => {
            if let Some(_responding) = core.calls.claim(&target.id, serial) {
                deliver(&core, &target, answer, &core.calls.response_posts).await;
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
    handling: Result<AnswerFuture, Box<AgentRequest>>,
    method: &str,
    cancelled_by: &mut oneshot::Receiver<oneshot::Sender<()>>,
) -> Decision {
    // An agent that gets an error is better off than one that waits for ever.
    let panicked = || Decision::Respond(Err(RpcError::internal("the handler panicked")), None);
    let handling = match handling {
        Ok(handling) => Some(handling),
        Err(request) => catch(HANDLER, || handler.handle(*request)),
    };
    let Some(mut handling) = handling else { return panicked() };
    let decision = tokio::select! {
        biased;
        // An answer that was given counts, even if a cancel came after it.
        answer = catch_async(HANDLER, &mut handling) => match answer {
            Some(Some(answer)) => Decision::Respond(answer, None),
            Some(None) => Decision::Ignore,
            None => panicked(),
        },
        cancel = cancelled_by => match cancel {
            Ok(waiter) => Decision::Respond(cancelled(method), Some(waiter)),
            Err(_) => Decision::Gone,
        },
    };
    // Destructors may panic too.
    let _ = catch(HANDLER, || drop(handling));
    decision
}

async fn refuse(core: Arc<Core>, target: Target) {
    let _responding = Responding { table: &core.calls, refusal: true };
    let busy = Err(RpcError::internal("too many requests are open"));
    deliver(&core, &target, busy, &core.calls.refusal_posts).await;
}

/// Posts a response. It is repeated only while it is certain that it did not arrive.
async fn deliver(core: &Arc<Core>, target: &Target, answer: Answer, posts: &Semaphore) {
    let Some(mut body) = encode(target, &answer) else { return };
    core.tap_outbound(&body);
    let mut backoff = Backoff::new(core.options.reconnect.clone());
    let (mut uploads, mut replaced) = (0, false);
    loop {
        let sent = {
            let Ok(_permit) = posts.acquire().await else { return };
            send_one_way(core, &target.method, body.clone(), target.session.clone()).await
        };
        match sent {
            Ok(()) => return,
            // The server cannot have run it. An agent that gets an error can ask for less; one that gets nothing
            // waits for ever.
            Err(PostFailure::NotTaken(error) | PostFailure::Failed(error))
                if !replaced && is_too_large(&error, &mut uploads) =>
            {
                replaced = true;
                let Some(smaller) = encode(target, &Err(RpcError::internal(&error))) else { return };
                body = smaller;
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

fn encode(target: &Target, answer: &Answer) -> Option<Bytes> {
    let body = match answer {
        Ok(result) => Outgoing::response(&target.id, Ok(result)),
        Err(error) => Outgoing::<()>::response(&target.id, Err(error)),
    };
    match body {
        Ok(body) => Some(body),
        Err(error) => {
            tracing::error!(id = %target.id, method = %target.method, %error, "response cannot be serialized");
            None
        }
    }
}

fn lost(core: &Arc<Core>, target: &Target, error: Error) {
    tracing::warn!(id = %target.id, method = %target.method, %error, "response to the agent was not delivered");
    core.publish(Event::AnswerLost { id: target.id.clone(), method: target.method.to_string(), error });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(event: Option<&str>, reopenings: u64) -> Arrival {
        let (method, print) = ("m".into(), Fingerprint::of(b"{}"));
        Arrival { method, print, event_id: event.map(EventId::from), reopenings }
    }

    #[test]
    fn an_answered_request_is_distinguished_from_one_of_a_restarted_agent() {
        // The event and the reopenings of the first and of the second request; whether the first agent or turn has
        // ended; whether it is the same request.
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
        for (first, again, ended, repeated) in table {
            let answered = Answered { number: 1, session: None, arrival: arrival(first.0, first.1), ended };
            assert_eq!(
                answered.is_repeated_by(&arrival(again.0, again.1)),
                repeated,
                "{first:?} {again:?} {ended}"
            );
            let other = Arrival { print: Fingerprint::of(b"[]"), ..arrival(again.0, again.1) };
            assert!(!answered.is_repeated_by(&other), "other parameters");
            let other = Arrival { method: "n".into(), ..arrival(again.0, again.1) };
            assert!(!answered.is_repeated_by(&other), "another method");
        }
    }

    fn request(arrival: Arrival) -> OpenRequest {
        OpenRequest { serial: 0, session: None, arrival, bytes: 2, cancel: oneshot::channel().0 }
    }

    fn table() -> AgentRequestTable {
        AgentRequestTable::new(&Limits::default())
    }

    fn id(number: usize) -> MessageId {
        serde_json::from_str(&number.to_string()).unwrap()
    }

    fn open(table: &AgentRequestTable, id: &MessageId, request: OpenRequest) -> u64 {
        match table.admit(id, request) {
            Admission::Open(serial) => serial,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_response_never_goes_to_another_request_under_its_id() {
        let table = table();
        let first = open(&table, &id(0), request(arrival(Some("1"), 0)));
        let other = Arrival { print: Fingerprint::of(b"[]"), ..arrival(Some("2"), 0) };
        let second = open(&table, &id(0), request(other));
        assert!(table.claim(&id(0), first).is_none(), "the agent that sent the first is gone");
        assert!(table.claim(&id(0), second).is_some());
        assert!(table.claim(&id(0), second).is_none(), "once");
    }

    #[test]
    fn a_bounded_number_of_responses_is_remembered_and_the_latest_of_each() {
        let table = table();
        let answer = |number: usize, event: u64| {
            table.lock().mark_ended(None);
            let serial = open(&table, &id(number), request(arrival(Some(&event.to_string()), event)));
            assert!(table.claim(&id(number), serial).is_some());
        };
        answer(0, 1);
        answer(0, 2);
        (1..ANSWERED).for_each(|number| answer(number, 3));
        assert_eq!(table.lock().answered.len(), ANSWERED, "the first response to 0 was replaced by the last");
        answer(ANSWERED, 3);
        assert_eq!(table.lock().answered.len(), ANSWERED);
    }

    #[test]
    fn requests_are_refused_beyond_the_limit_and_dropped_beyond_that_of_refusals() {
        let table = AgentRequestTable::new(&Limits::default().open_requests(3).refusals(2));
        let admit = |number: usize| table.admit(&id(number), request(arrival(Some("1"), 0)));
        let admitted: Vec<_> = (0..7).map(admit).collect();
        let expected = [
            Admission::Open(1),
            Admission::Open(2),
            Admission::Open(3),
            Admission::Refused,
            Admission::Refused,
            Admission::Dropped,
            Admission::Dropped,
        ];
        assert_eq!(admitted, expected);
        assert_eq!(admit(3), Admission::Repeated, "it was refused already");
        let responding = table.claim(&id(0), 1).unwrap();
        drop(Responding { table: &table, refusal: true });
        assert_eq!(admit(7), Admission::Refused, "a request is open until its response was sent");
        drop(responding);
        assert_eq!(admit(8), Admission::Open(4));
        assert_eq!(admit(9), Admission::Dropped);
    }

    #[test]
    fn the_parameters_of_all_open_requests_have_one_limit() {
        let table = AgentRequestTable::new(&Limits::default().open_request_bytes(10));
        let admit = |number: usize, bytes: usize| {
            table.admit(&id(number), OpenRequest { bytes, ..request(arrival(Some("1"), 0)) })
        };
        assert_eq!(admit(0, 11), Admission::Refused);
        assert_eq!(admit(1, 9), Admission::Open(1));
        assert_eq!(admit(2, 2), Admission::Refused);
        assert_eq!(admit(3, 1), Admission::Open(2));
        assert_eq!(table.forget(None), 2);
        assert_eq!(admit(4, 10), Admission::Open(3));
    }

    #[tokio::test]
    async fn a_closure_that_selects_sessions_may_use_the_table() {
        let table = table();
        open(&table, &id(0), request(arrival(Some("1"), 0)));
        table.cancel(|_| table.list().len() == 1).await;
    }
}
