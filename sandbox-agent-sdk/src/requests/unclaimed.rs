//! Agent requests of a shared endpoint that are not addressed to this client.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use acp_http_client::Responder;
use serde_json::Value;

use super::params::Params;
use super::permission::PermissionRequest;
use super::question::{ELICITATION, QuestionRequest, REQUEST_QUESTION};
use super::reply::{Held, Reply, ReplyError};
use crate::error::RpcError;

/// The method of permission requests.
pub(crate) const REQUEST_PERMISSION: &str = "session/request_permission";
/// How much of a method or a session id a summary keeps.
const SUMMARY_CHARS: usize = 256;

/// An agent request on a shared endpoint that belongs to no pending call of this client.
///
/// Every client of a shared endpoint receives the requests of all agents. A request is addressed to this client only
/// while a call of this client about its session is pending; every other request arrives as this event and is never
/// answered unless the application [claims](Self::claim) it. Dropping it leaves it to the client it belongs to.
///
/// It is cheap to clone; one claim succeeds.
#[derive(Clone)]
pub struct UnclaimedRequest {
    inner: Arc<Inner>,
}

struct Inner {
    method: String,
    session_id: Option<String>,
    /// `None` if they could not be decoded.
    params: Option<Arc<Params>>,
    /// Guards the right to respond; held to take it.
    open: Mutex<Option<Open>>,
    claimed: Arc<AtomicBool>,
}

/// What a claim needs.
pub(crate) struct Open {
    pub(crate) responder: Responder,
    /// Makes what is held while the claimed request is open.
    pub(crate) hold: Box<dyn FnOnce() -> Held + Send>,
}

/// A request that the application has claimed and now answers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ClaimedRequest {
    /// The agent asks for a permission.
    Permission(PermissionRequest),
    /// The agent asks a question.
    Question(QuestionRequest),
    /// Any other request: files, terminals, extension methods.
    Other(OtherRequest),
}

/// A claimed request without a type of its own.
///
/// It is cheap to clone and can be answered once. If the last copy is dropped without a response, the agent receives
/// an error. [`AgentTools::answer`](crate::tools::AgentTools::answer) serves requests for files and terminals.
#[derive(Clone)]
pub struct OtherRequest {
    inner: Arc<Other>,
}

struct Other {
    method: String,
    session_id: Option<String>,
    params: Option<Arc<Params>>,
    reply: Reply,
}

/// The method and the session of an unclaimed request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct UnclaimedSummary {
    /// The method; long ones are cut.
    pub method: String,
    /// The session that the request names, if it names one that can be read; long ids are cut.
    pub session_id: Option<String>,
}

impl UnclaimedRequest {
    pub(crate) fn new(
        method: String,
        session_id: Option<String>,
        params: Option<Arc<Params>>,
        open: Open,
    ) -> Self {
        let inner =
            Inner { method, session_id, params, open: Mutex::new(Some(open)), claimed: Arc::default() };
        Self { inner: Arc::new(inner) }
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.inner.method
    }

    /// The session that the request names; `None` if it names none, two, or one that cannot be read.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.inner.session_id.as_deref()
    }

    /// The parameters as received; `None` if they are nested too deep or too large to decode.
    #[must_use]
    pub fn raw(&self) -> Option<&Value> {
        self.inner.params.as_deref().map(|params| &**params)
    }

    /// Whether the request can still be claimed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.lock().as_ref().is_some_and(|open| !open.responder.is_closed())
    }

    /// Takes responsibility for the request: from now on this client answers it.
    ///
    /// Another client of the endpoint may answer it as well; the server accepts the first response.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it was claimed before, its session or the connection has ended, or too many
    /// unclaimed requests are open ([`Limits::unclaimed_requests`](crate::client::limits::Limits::unclaimed_requests)).
    pub fn claim(&self) -> Result<ClaimedRequest, ReplyError> {
        let open = self.lock().take().filter(|open| !open.responder.is_closed());
        let Open { responder, hold } = open.ok_or(ReplyError::Stale)?;
        self.inner.claimed.store(true, Ordering::Release);
        let Inner { method, session_id, params, .. } = &*self.inner;
        let claimed = match (method.as_str(), params) {
            (REQUEST_PERMISSION, Some(params)) => ClaimedRequest::Permission(PermissionRequest::new(
                Arc::clone(params),
                responder,
                hold(),
                None,
            )),
            (ELICITATION | REQUEST_QUESTION, Some(params)) => {
                ClaimedRequest::Question(QuestionRequest::new(method, Arc::clone(params), responder, hold()))
            }
            _ => {
                let reply = Reply::new(responder.into(), hold());
                let (method, session_id) = (method.clone(), session_id.clone());
                let inner = Other { method, session_id, params: params.clone(), reply };
                ClaimedRequest::Other(OtherRequest { inner: Arc::new(inner) })
            }
        };
        Ok(claimed)
    }

    /// Gives up the right to claim it, without a response.
    pub(crate) fn release(&self) {
        self.inner.release();
    }

    pub(crate) fn weight(&self) -> usize {
        self.inner.params.as_ref().map_or(0, |params| params.weight())
    }

    /// What a timeout says of it, and whether it was claimed by then.
    pub(crate) fn summary(&self) -> (UnclaimedSummary, Arc<AtomicBool>) {
        let cut = |text: &str| text.chars().take(SUMMARY_CHARS).collect();
        let summary = UnclaimedSummary {
            method: cut(&self.inner.method),
            session_id: self.inner.session_id.as_deref().map(cut),
        };
        (summary, Arc::clone(&self.inner.claimed))
    }

    pub(crate) fn downgrade(&self) -> WeakUnclaimed {
        WeakUnclaimed(Arc::downgrade(&self.inner))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Open>> {
        self.inner.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn release(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(open) = open {
            // If it was cancelled before, there is nothing to leave to others.
            let _ = open.responder.ignore();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.release();
    }
}

/// An unclaimed request that is not kept open by this.
#[derive(Clone)]
pub(crate) struct WeakUnclaimed(std::sync::Weak<Inner>);

impl WeakUnclaimed {
    pub(crate) fn upgrade(&self) -> Option<UnclaimedRequest> {
        self.0.upgrade().map(|inner| UnclaimedRequest { inner })
    }
}

impl OtherRequest {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.inner.method
    }

    /// The session that the request names, if it names one.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.inner.session_id.as_deref()
    }

    /// The parameters as received; `None` if they are nested too deep or too large to decode.
    #[must_use]
    pub fn raw(&self) -> Option<&Value> {
        self.inner.params.as_deref().map(|params| &**params)
    }

    /// Whether a response is still expected.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.inner.reply.is_open()
    }

    /// Responds with this result.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it was answered before or the agent no longer waits.
    pub fn respond(&self, result: &Value) -> Result<(), ReplyError> {
        self.inner.reply.give(result)
    }

    /// Responds with an error.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it was answered before or the agent no longer waits.
    pub fn fail(&self, error: RpcError) -> Result<(), ReplyError> {
        self.inner.reply.refuse(error)
    }
}

impl fmt::Debug for UnclaimedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnclaimedRequest")
            .field("method", &self.inner.method)
            .field("session_id", &self.inner.session_id)
            .field("open", &self.is_open())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WeakUnclaimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakUnclaimed")
    }
}

impl fmt::Debug for OtherRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherRequest")
            .field("method", &self.inner.method)
            .field("session_id", &self.inner.session_id)
            .field("reply", &self.inner.reply)
            .finish_non_exhaustive()
    }
}
