//! The agent requests that are being served.

mod answered;
mod serving;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Semaphore, oneshot};

use answered::AnsweredRequests;
pub(crate) use serving::dispatch;

use crate::{EventId, Limits, MessageId, sse::Fingerprint};

/// The capacity that an empty table retains, in requests.
const OPEN: usize = 16;
/// How many refusals are posted at once. They have separate permits, so that they never delay a response.
const REFUSAL_POSTS: usize = 4;

/// The table of agent requests. Each gets one response.
#[derive(Debug)]
pub(crate) struct AgentRequestTable {
    /// Guards the tables and the counts; held for a look-up, and never while code of the application runs.
    requests: Mutex<Requests>,
    max_open: usize,
    max_bytes: usize,
    max_refusals: usize,
    max_response_bytes: usize,
    /// One permit for each response that is being posted.
    response_posts: Semaphore,
    refusal_posts: Semaphore,
}

#[derive(Debug, Default)]
struct Requests {
    open: HashMap<MessageId, OpenRequest>,
    answered: AnsweredRequests,
    /// Counts the requests that were admitted.
    admitted: u64,
    /// How many bytes the parameters of the open requests take.
    bytes: usize,
    /// How many responses are being sent. Their requests count as open.
    responding: usize,
    /// How many bytes these responses take, and those that wait to be sent.
    response_bytes: usize,
    /// How many refusals are being sent.
    refusing: usize,
    /// Whether the last excess request was not even refused.
    dropping: bool,
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
    /// How often a stream had been reopened at that time.
    reopenings: u64,
}

impl Arrival {
    fn is_same_request(&self, other: &Self) -> bool {
        self.print == other.print && self.method == other.method
    }
}

/// What happens to a request.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    /// It is open, under this serial number.
    Open(u64),
    /// It is open or already has a response.
    Repeated,
    /// Too many are open.
    Full,
}

/// What happens to a request that is not admitted.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    Granted,
    /// It gets no response. The flag is true for the first of several such requests in a row.
    Dropped {
        is_first: bool,
    },
}

impl AgentRequestTable {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            requests: Mutex::default(),
            max_open: limits.open_requests,
            max_bytes: limits.open_request_bytes,
            max_refusals: limits.refusals,
            max_response_bytes: limits.response_bytes,
            response_posts: Semaphore::new(limits.response_posts.clamp(1, Semaphore::MAX_PERMITS)),
            refusal_posts: Semaphore::new(REFUSAL_POSTS),
        }
    }

    /// Admits a request.
    fn admit(&self, id: &MessageId, mut request: OpenRequest) -> Admission {
        let mut requests = self.lock();
        // The response to the open request serves both.
        let open = requests.open.get(id).is_some_and(|open| open.arrival.is_same_request(&request.arrival));
        if open || requests.answered.contains(id, &request.arrival) {
            return Admission::Repeated;
        }
        let count = requests.open.len() + requests.responding;
        let bytes = requests.bytes.saturating_add(request.bytes);
        if count >= self.max_open || bytes > self.max_bytes {
            return Admission::Full;
        }
        requests.answered.remove(id);
        requests.dropping = false;
        requests.admitted += 1;
        let serial = requests.admitted;
        request.serial = serial;
        requests.bytes = bytes;
        if let Some(replaced) = requests.open.insert(id.clone(), request) {
            requests.bytes -= replaced.bytes;
        }
        Admission::Open(serial)
    }

    /// Takes the right to refuse a request that was not admitted; unless too many refusals are waiting.
    fn refuse(&self, id: &MessageId, session: Option<&str>, arrival: &Arrival) -> Refusal {
        let mut requests = self.lock();
        if requests.refusing >= self.max_refusals {
            return Refusal::Dropped { is_first: !std::mem::replace(&mut requests.dropping, true) };
        }
        requests.dropping = false;
        requests.refusing += 1;
        requests.answered.insert(id, session, arrival);
        Refusal::Granted
    }

    /// Claims the right to respond; `None` if the request has a response, or another request is open under the id.
    fn claim(&self, id: &MessageId, serial: u64) -> Option<Responding<'_>> {
        let mut requests = self.lock();
        let open = requests.open.get(id).is_some_and(|request| request.serial == serial);
        if !(open && requests.settle(id)) {
            return None;
        }
        requests.responding += 1;
        Some(Responding { table: self, refusal: false, bytes: 0 })
    }

    /// Counts the bytes of a response instead of the `counted` ones. Returns `false`, and counts none, if they do not
    /// fit.
    pub(crate) fn reserve_response(&self, counted: usize, bytes: usize) -> bool {
        let mut requests = self.lock();
        let others = requests.response_bytes.saturating_sub(counted);
        let sum = others.saturating_add(bytes);
        let fits = sum <= self.max_response_bytes;
        requests.response_bytes = if fits { sum } else { others };
        fits
    }

    /// Stops counting the bytes of a response.
    pub(crate) fn release_response(&self, bytes: usize) {
        let mut requests = self.lock();
        // The table may have been cleared in between.
        requests.response_bytes = requests.response_bytes.saturating_sub(bytes);
    }

    /// Cancels one request: the agent no longer needs the response.
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
        requests.answered.mark_ended(session);
        count
    }

    /// Closes the open requests of the sessions that `matches` selects without a response: other clients respond to them.
    pub(crate) fn ignore(&self, matches: impl Fn(Option<&str>) -> bool) {
        // The closure belongs to the application: it may block, panic or call this client.
        let mut selected = self.lock().open_sessions();
        selected.retain(|(_, _, session)| matches(session.as_deref()));
        for (id, serial, _) in selected {
            drop(self.claim(&id, serial));
        }
    }

    /// A session, or all of them, may have another agent from now on, which may send the same requests with the same
    /// ids.
    pub(crate) fn renew(&self, session: Option<&str>) {
        self.lock().answered.mark_ended(session);
    }

    pub(crate) fn clear(&self) {
        let requests = std::mem::take(&mut *self.lock());
        drop(requests);
    }

    /// The server restarted, and its ids may start over.
    pub(crate) fn forget_answered(&self) {
        self.lock().answered.clear();
    }

    pub(crate) fn list(&self) -> Vec<(MessageId, String)> {
        let requests = self.lock();
        requests.open.iter().map(|(id, open)| (id.clone(), open.arrival.method.to_string())).collect()
    }

    /// Returns how many bytes of responses are counted.
    #[cfg(test)]
    pub(crate) fn response_bytes(&self) -> usize {
        self.lock().response_bytes
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

    /// Moves a request from the open ones to those with a response; `false` if it is not open.
    fn settle(&mut self, id: &MessageId) -> bool {
        let Some(OpenRequest { session, arrival, bytes, .. }) = self.open.remove(id) else { return false };
        self.bytes -= bytes;
        if self.open.is_empty() {
            self.open.shrink_to(OPEN);
        }
        self.answered.insert(id, session.as_deref(), &arrival);
        true
    }

    /// Takes the means to cancel a request. The request stays open until it has a response.
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
    /// The size of the response.
    bytes: usize,
}

impl Responding<'_> {
    /// Counts the bytes of the response instead of the earlier ones. Returns `false`, and counts none, if they do not
    /// fit.
    fn reserve(&mut self, bytes: usize) -> bool {
        let fits = self.table.reserve_response(self.bytes, bytes);
        self.bytes = if fits { bytes } else { 0 };
        fits
    }

    fn posts(&self) -> &Semaphore {
        if self.refusal { &self.table.refusal_posts } else { &self.table.response_posts }
    }
}

impl Drop for Responding<'_> {
    fn drop(&mut self) {
        self.table.release_response(self.bytes);
        let mut requests = self.table.lock();
        if self.refusal {
            requests.refusing = requests.refusing.saturating_sub(1);
        } else {
            requests.responding = requests.responding.saturating_sub(1);
        }
    }
}
