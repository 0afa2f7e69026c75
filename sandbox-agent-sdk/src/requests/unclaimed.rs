//! Agent requests of a shared endpoint that are not addressed to this client.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use acp_http_client::Responder;
use serde::Serialize;
use serde_json::Value;

use super::params::Params;
use super::permission::PermissionRequest;
use super::question::{ELICITATION, QuestionRequest, REQUEST_QUESTION};
use super::reply::{Held, Reply, ReplyError};
use crate::error::RpcError;
use crate::update::ToolCall;

/// The method of permission requests.
pub(crate) const REQUEST_PERMISSION: &str = "session/request_permission";
/// The maximum length of a method and of a session id in a summary.
const SUMMARY_CHARS: usize = 256;

/// An agent request on a shared endpoint that is not addressed to this client.
///
/// Every client of a shared endpoint receives the requests of all agents. A request is addressed to this client only
/// while this client has a pending call for the same session. Every other request arrives as an `UnclaimedRequest`.
/// This client responds to it only if the application [claims](Self::claim) it. Dropping it leaves the request to the
/// client that it belongs to.
///
/// It is cheap to clone. Only one claim succeeds.
#[derive(Clone)]
pub struct UnclaimedRequest {
    inner: Arc<Inner>,
}

struct Inner {
    method: String,
    session_id: Option<String>,
    /// `None` if they cannot be decoded.
    params: Option<Arc<Params>>,
    /// Guards the right to respond; held while it is taken.
    open: Mutex<Option<Open>>,
    claimed: Arc<AtomicBool>,
}

/// Returns the tool call of a permission request as it was reported before.
type Reported = Box<dyn FnOnce(&Params) -> Option<ToolCall> + Send>;

/// The resources that a claim needs.
pub(crate) struct Open {
    pub(crate) responder: Responder,
    /// Creates the resources that are held while the claimed request is open.
    pub(crate) hold: Box<dyn FnOnce() -> Held + Send>,
    /// Returns what was reported about the tool call of a permission request.
    pub(crate) reported: Reported,
}

/// A request that the application has claimed and must respond to.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ClaimedRequest {
    /// A permission request.
    Permission(PermissionRequest),
    /// A question.
    Question(QuestionRequest),
    /// Any other request: files, terminals, extension methods.
    Other(OtherRequest),
}

/// A claimed request that is neither a permission request nor a question.
///
/// It is cheap to clone and accepts one response. If the last clone is dropped without a response, the agent receives
/// an error. `tools::AgentTools::respond` serves requests for files and terminals.
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
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UnclaimedSummary {
    /// The method, truncated if it is long.
    pub method: String,
    /// The session id in the request, truncated if it is long. `None` if it is missing or invalid.
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

    /// Returns the id of the request, unique among the open requests of a connection. `None` if its parameters cannot be
    /// decoded.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.inner.params.as_deref().map(Params::id)
    }

    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.inner.method
    }

    /// Returns the session id in the request; `None` if it is missing, ambiguous or invalid.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.inner.session_id.as_deref()
    }

    /// Returns the parameters as received; `None` if they are nested too deep or too large to decode.
    #[must_use]
    pub fn raw(&self) -> Option<&Value> {
        self.inner.params.as_deref().map(|params| &**params)
    }

    /// Returns whether the request can still be claimed.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.lock().as_ref().is_some_and(|open| !open.responder.is_closed())
    }

    /// Claims the request, so that this client responds to it.
    ///
    /// Another client of the endpoint may respond as well; the server accepts the first response.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it was already claimed, if its session or the connection has ended, or if newer
    /// requests exceeded [`Limits::unclaimed_requests`](crate::client::limits::Limits::unclaimed_requests).
    pub fn claim(&self) -> Result<ClaimedRequest, ReplyError> {
        let open = self.lock().take().filter(|open| !open.responder.is_closed());
        let Open { responder, hold, reported } = open.ok_or(ReplyError::Stale)?;
        self.inner.claimed.store(true, Ordering::Release);
        let Inner { method, session_id, params, .. } = &*self.inner;
        let claimed = match (method.as_str(), params) {
            (REQUEST_PERMISSION, Some(params)) => ClaimedRequest::Permission(PermissionRequest::new(
                Arc::clone(params),
                responder,
                hold(),
                reported(params),
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

    /// Releases the right to claim the request, without a response.
    pub(crate) fn release(&self) {
        self.inner.release();
    }

    pub(crate) fn weight(&self) -> usize {
        self.inner.params.as_ref().map_or(0, |params| params.weight())
    }

    /// Returns the summary for a timeout error, and a flag that is set when the request is claimed.
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
            // An error means that the request was cancelled before.
            let _ = open.responder.ignore();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.release();
    }
}

/// A weak reference to an unclaimed request, which does not keep it open.
#[derive(Clone)]
pub(crate) struct WeakUnclaimed(std::sync::Weak<Inner>);

impl WeakUnclaimed {
    pub(crate) fn upgrade(&self) -> Option<UnclaimedRequest> {
        self.0.upgrade().map(|inner| UnclaimedRequest { inner })
    }
}

impl OtherRequest {
    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.inner.method
    }

    /// Returns the session id in the request, if there is one.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.inner.session_id.as_deref()
    }

    /// Returns the parameters as received; `None` if they are nested too deep or too large to decode.
    #[must_use]
    pub fn raw(&self) -> Option<&Value> {
        self.inner.params.as_deref().map(|params| &**params)
    }

    /// Returns whether the agent still waits for a response.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.inner.reply.is_open()
    }

    /// Responds with this result.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if the request already has a response, or the agent no longer waits for one.
    pub fn respond(&self, result: &Value) -> Result<(), ReplyError> {
        self.inner.reply.give(result)
    }

    /// Responds with an error.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if the request already has a response, or the agent no longer waits for one.
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
