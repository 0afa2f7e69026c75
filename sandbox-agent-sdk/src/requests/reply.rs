//! Responses that can be given once.

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

/// What is held while a request is open, and dropped when it is answered.
pub(crate) type Held = Box<dyn Any + Send>;

/// The one response to a request. If it is dropped without one, the connection responds that it was cancelled.
pub(super) struct Reply {
    /// Guards the right to respond; held to take it.
    open: Mutex<Option<(Responder, Held)>>,
    /// The result that was given.
    result: OnceLock<Value>,
    waiters: Arc<Waiters>,
}

/// The tasks that wait for the end of a request.
#[derive(Default)]
struct Waiters {
    /// Guards the wakers; held for a push or a take.
    wakers: Mutex<Vec<Waker>>,
}

/// Why an answer was not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The request was answered before, or the agent does not wait any more: the turn was cancelled, or the
    /// connection has ended.
    #[error("the request has been answered or taken back")]
    Stale,
    /// The agent does not offer what was answered.
    #[error("the agent does not offer this answer")]
    NotOffered,
    /// The answer does not fit what was asked, and the request stays open.
    #[error("the answer does not fit `{field}`: {reason}")]
    #[non_exhaustive]
    Unfit {
        /// Which part of it; empty if it is the whole.
        field: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl Reply {
    pub(super) fn new(responder: Responder, held: Held) -> Self {
        let open = Mutex::new(Some((responder, held)));
        Self { open, result: OnceLock::new(), waiters: Arc::default() }
    }

    pub(super) fn give(&self, result: &Value) -> Result<(), ReplyError> {
        let (responder, _held) = self.take().ok_or(ReplyError::Stale)?;
        let given = responder.respond(result);
        if given {
            // The right to respond was taken, so that nothing was set before.
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

    /// The result that was given, if one was.
    pub(super) fn result(&self) -> Option<&Value> {
        self.result.get()
    }

    /// Whether a response is still expected.
    pub(super) fn is_open(&self) -> bool {
        self.lock().as_ref().is_some_and(|(responder, _)| !responder.is_closed())
    }

    /// Waits until no response is expected any more.
    pub(super) async fn closed(&self) {
        poll_fn(|context| self.poll_closed(context)).await;
    }

    fn poll_closed(&self, context: &mut Context<'_>) -> Poll<()> {
        self.waiters.add(context.waker());
        let mut open = self.lock();
        let Some((responder, _)) = open.as_mut() else { return Poll::Ready(()) };
        // The connection wakes one waker, so that it is given one that wakes all who wait.
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
    fn add(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    fn wake_all(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("open", &self.is_open()).finish_non_exhaustive()
    }
}
