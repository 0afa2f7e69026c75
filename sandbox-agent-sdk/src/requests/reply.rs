//! Responses that can be sent once.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use acp_http_client as wire;
use serde_json::Value;
use tokio::sync::oneshot;

use super::agent_request::Response;
use crate::error::RpcError;

/// Where a response goes.
#[derive(Debug)]
pub(crate) enum Responder {
    /// To the agent.
    Agent(wire::Responder),
    /// To the handler that forwarded the request.
    Handler(oneshot::Sender<Response>),
}

impl Responder {
    fn respond(self, result: &Value) -> bool {
        match self {
            Self::Agent(responder) => responder.respond(result),
            Self::Handler(sender) => sender.send(Ok(result.clone())).is_ok(),
        }
    }

    fn error(self, error: RpcError) -> bool {
        match self {
            Self::Agent(responder) => responder.error(error.into_wire()),
            Self::Handler(sender) => sender.send(Err(error)).is_ok(),
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::Agent(responder) => responder.is_closed(),
            Self::Handler(sender) => sender.is_closed(),
        }
    }

    async fn closed(&mut self) {
        match self {
            Self::Agent(responder) => responder.closed().await,
            Self::Handler(sender) => sender.closed().await,
        }
    }
}

impl From<wire::Responder> for Responder {
    fn from(responder: wire::Responder) -> Self {
        Self::Agent(responder)
    }
}

/// Resources of an open request, dropped with the response.
pub(crate) type Held = Box<dyn Any + Send>;

/// The single response to a request. Without a response, dropping it makes the connection respond "cancelled".
pub(super) struct Reply {
    /// Guards the right to respond; held while it is taken.
    open: Mutex<Option<(Responder, Held)>>,
    /// The result that was sent.
    result: OnceLock<Value>,
    waiters: Arc<Waiters>,
}

/// The tasks that wait until a request is closed.
#[derive(Default)]
struct Waiters {
    /// Guards the wakers; held for a look-up or a change.
    wakers: Mutex<Wakers>,
}

#[derive(Default)]
struct Wakers {
    /// Counts the tasks that have waited.
    count: u64,
    /// The wakers of those that wait, by their numbers.
    waiting: Vec<(u64, Waker)>,
}

/// One task that waits. Its waker is removed when it no longer waits.
struct Waiting<'a> {
    waiters: &'a Waiters,
    number: u64,
}

/// The error of responding to an agent request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The request already has a response, or the agent no longer waits for one.
    ///
    /// The agent stops waiting when the turn is cancelled, and when the session or the connection ends.
    #[error("the request already has a response, or the agent no longer waits for one")]
    Stale,
    /// This clone of the request only observes: another reader or a handler decides. The request stays open.
    ///
    /// Clones in [deciding](crate::Events::deciding) subscriptions and in turns can decide.
    #[error("this clone of the request only observes; it cannot respond")]
    OnlyObserves,
    /// The agent does not offer this option. The request stays open.
    #[error("the agent does not offer this response")]
    NotOffered,
    /// The answer does not match the form of the question. The question stays open.
    #[error("invalid answer: {} {reason}", part(.field))]
    #[non_exhaustive]
    Unfit {
        /// The name of the invalid field; empty if the whole answer is invalid.
        field: String,
        /// What is wrong with the field, for example `is missing`.
        reason: &'static str,
    },
}

impl Reply {
    pub(super) fn new(responder: Responder, held: Held) -> Self {
        let open = Mutex::new(Some((responder, held)));
        Self { open, result: OnceLock::new(), waiters: Arc::default() }
    }

    /// Sends a result, if the caller may decide.
    pub(super) fn give_as(&self, decides: bool, result: &Value) -> Result<(), ReplyError> {
        if !decides && self.is_open() {
            return Err(ReplyError::OnlyObserves);
        }
        self.give(result)
    }

    pub(super) fn give(&self, result: &Value) -> Result<(), ReplyError> {
        let (responder, _held) = self.take().ok_or(ReplyError::Stale)?;
        let given = responder.respond(result);
        if given {
            // Only one caller gets the right to respond, so nothing was set before.
            let _ = self.result.set(result.clone());
        }
        self.waiters.wake_all();
        if given { Ok(()) } else { Err(ReplyError::Stale) }
    }

    pub(super) fn refuse(&self, error: RpcError) -> Result<(), ReplyError> {
        let (responder, _held) = self.take().ok_or(ReplyError::Stale)?;
        let given = responder.error(error);
        self.waiters.wake_all();
        if given { Ok(()) } else { Err(ReplyError::Stale) }
    }

    /// Returns the result that was sent, if any.
    pub(super) fn result(&self) -> Option<&Value> {
        self.result.get()
    }

    /// Returns whether the agent still waits for a response.
    pub(super) fn is_open(&self) -> bool {
        self.lock().as_ref().is_some_and(|(responder, _)| !responder.is_closed())
    }

    /// Waits until the agent no longer waits for a response.
    pub(super) async fn closed(&self) {
        let waiting = self.waiters.enter();
        poll_fn(|context| self.poll_closed(&waiting, context)).await;
    }

    fn poll_closed(&self, waiting: &Waiting<'_>, context: &mut Context<'_>) -> Poll<()> {
        waiting.set_waker(context.waker());
        let mut open = self.lock();
        let Some((responder, _)) = open.as_mut() else { return Poll::Ready(()) };
        // The connection wakes one waker only, so it gets a waker that wakes all waiting tasks.
        let all = Waker::from(Arc::clone(&self.waiters));
        pin!(responder.closed()).poll(&mut Context::from_waker(&all))
    }

    fn take(&self) -> Option<(Responder, Held)> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Responder, Held)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiters {
    fn enter(&self) -> Waiting<'_> {
        let mut wakers = self.lock();
        wakers.count += 1;
        Waiting { waiters: self, number: wakers.count }
    }

    fn wake_all(&self) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    fn lock(&self) -> MutexGuard<'_, Wakers> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting<'_> {
    fn set_waker(&self, waker: &Waker) {
        let mut wakers = self.waiters.lock();
        match wakers.waiting.iter_mut().find(|(number, _)| *number == self.number) {
            Some((_, known)) => known.clone_from(waker),
            None => wakers.waiting.push((self.number, waker.clone())),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiters.lock().waiting.retain(|(number, _)| *number != self.number);
    }
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }
}

/// Names the invalid part of an answer.
fn part(field: &str) -> String {
    if field.is_empty() { "the answer".to_owned() } else { format!("field `{field}`") }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("open", &self.is_open()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    use tokio::sync::oneshot;

    use super::{Reply, Responder};

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_task_that_no_longer_waits_leaves_no_waker() {
        let (sender, receiver) = oneshot::channel();
        let reply = Reply::new(Responder::Handler(sender), Box::new(()));
        let (left, waiting) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
        for _ in 0..100 {
            let waker = Waker::from(Arc::clone(&left));
            let closed = std::pin::pin!(reply.closed());
            assert!(closed.poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(Arc::strong_count(&left), 1, "the wakers are dropped");
        let waker = Waker::from(Arc::clone(&waiting));
        let mut closed = std::pin::pin!(reply.closed());
        assert!(closed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(receiver);
        assert_eq!((left.0.load(Ordering::SeqCst), waiting.0.load(Ordering::SeqCst)), (0, 1));
        assert!(closed.poll(&mut Context::from_waker(&waker)).is_ready());
    }
}
