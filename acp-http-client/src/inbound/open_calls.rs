//! The agent's requests that are being answered.

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use futures::FutureExt;
use tokio::sync::oneshot;

use crate::{
    AgentRequest, Error, Event, MessageId, RpcError,
    client::{Core, send_one_way},
    events::peek_session,
    handler::{
        AnyHandler,
        answers::{Answer, cancelled},
    },
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
    answered: HashMap<MessageId, Fingerprint>,
    order: VecDeque<MessageId>,
}

#[derive(Debug)]
struct OpenCall {
    method: Arc<str>,
    session: Option<Arc<str>>,
    print: Fingerprint,
    /// Ends the handler; the receiver hears when the answer is out.
    cancel: oneshot::Sender<oneshot::Sender<()>>,
}

impl OpenCalls {
    /// Makes a place for a request; `None` if it is open or was answered already.
    fn open(&self, id: &MessageId, call: OpenCall) -> Option<usize> {
        let mut calls = self.lock();
        let known = calls.open.get(id).map(|call| call.print).or_else(|| calls.answered.get(id).copied());
        if known == Some(call.print) {
            return None;
        }
        calls.answered.remove(id);
        calls.open.insert(id.clone(), call);
        Some(calls.open.len())
    }

    /// Takes the right to answer; `false` if somebody has it already.
    fn claim(&self, id: &MessageId) -> bool {
        self.lock().settle(id)
    }

    /// Cancels one request: the agent does not want the answer any more.
    pub(crate) fn cancel_one(&self, id: &MessageId) {
        let cancel = self.lock().take_cancel(id);
        if let Some(cancel) = cancel {
            let _ = cancel.send(oneshot::channel().0);
        }
    }

    /// Cancels the open requests of a session, or all of them, and waits until each has its answer out.
    pub(crate) async fn cancel(&self, session: Option<&str>) {
        let mut waits = Vec::new();
        {
            let mut calls = self.lock();
            for id in calls.of_session(session) {
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
        let ids = calls.of_session(session);
        ids.iter().filter(|id| calls.settle(id)).count()
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
        self.lock().open.iter().map(|(id, call)| (id.clone(), call.method.to_string())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    /// The open requests of a session, or all of them.
    fn of_session(&self, session: Option<&str>) -> Vec<MessageId> {
        let calls = self.open.iter();
        let calls = calls.filter(|(_, call)| session.is_none() || call.session.as_deref() == session);
        calls.map(|(id, _)| id.clone()).collect()
    }

    /// Takes a request out of those that are open and remembers it; `false` if it is not open.
    fn settle(&mut self, id: &MessageId) -> bool {
        let Some(call) = self.open.remove(id) else { return false };
        self.answered.insert(id.clone(), call.print);
        self.order.push_back(id.clone());
        if self.order.len() > ANSWERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.answered.remove(&oldest);
        }
        true
    }

    /// Takes the means to cancel a request, leaving the request in its place until it is answered.
    fn take_cancel(&mut self, id: &MessageId) -> Option<oneshot::Sender<oneshot::Sender<()>>> {
        let call = self.open.get_mut(id)?;
        Some(std::mem::replace(&mut call.cancel, oneshot::channel().0))
    }
}

/// Gives a request to the handler, on a task of its own.
pub(super) fn dispatch(core: &Arc<Core>, id: MessageId, method: &str, params: Bytes) {
    let Some(client) = core.client() else { return };
    let method: Arc<str> = method.into();
    let session: Option<Arc<str>> = peek_session(&params).map(Arc::from);
    let (cancel, cancelled_by) = oneshot::channel();
    let print = Fingerprint::of(&params);
    let call = OpenCall { method: method.clone(), session: session.clone(), print, cancel };
    let Some(count) = core.calls.open(&id, call) else {
        tracing::debug!(%id, %method, "a request of the agent came again");
        return;
    };
    let request = AgentRequest::new(id.clone(), method.clone(), params, client);
    let answering = core.clone();
    if count > core.options.limits.open_requests {
        let busy = Err(RpcError::internal("too many requests are open"));
        core.tasks.spawn(async move { deliver(&answering, &id, &method, session, busy).await });
        return;
    }
    let handler = core.options.handler.clone();
    core.tasks.spawn(async move {
        let mut done = None;
        let answer = tokio::select! {
            biased;
            cancel = cancelled_by => {
                match cancel {
                    Ok(waiter) => done = Some(waiter),
                    // The place was cleared: the connection has ended.
                    Err(_) => return,
                }
                Some(cancelled(&method))
            }
            answer = handled(handler, request) => answer,
        };
        match answer {
            Some(answer) => deliver(&answering, &id, &method, session, answer).await,
            // It counts as answered, by somebody else.
            None => drop(answering.calls.claim(&id)),
        }
        drop(done);
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
    id: &MessageId,
    method: &Arc<str>,
    session: Option<Arc<str>>,
    answer: Answer,
) {
    if !core.calls.claim(id) {
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
                let Some(delay) = backoff.next_delay(super::reader::random()) else {
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
