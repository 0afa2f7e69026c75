//! Controls for layers above this crate.

use std::{error::Error as StdError, fmt, sync::Arc};

use futures::future::BoxFuture;
use serde_json::Value;

use super::handle::AcpHttpClient;
use crate::{EndReason, Error, MessageId, OpenPosts, inbound::dispatch, schema::v1::CancelNotification};

/// Controls of a connection, for layers that know more about the agent than the protocol reports.
///
/// [`AcpHttpClient::control`] returns it. Sessions are selected by their ids.
pub struct Control<'a>(pub(super) &'a AcpHttpClient);

impl Control<'_> {
    /// Fails the pending requests of one session, or all of them, with a custom reason (see
    /// [`Error::custom`](crate::Error::custom)). Returns the number of failed requests.
    pub fn fail_requests(
        &self,
        session: Option<&str>,
        reason: impl StdError + Send + Sync + 'static,
    ) -> usize {
        self.0.core().interrupt(session, Arc::new(reason))
    }

    /// Ends the connection with a custom reason, without a message to the server.
    pub fn end(&self, reason: impl StdError + Send + Sync + 'static) {
        self.0.core().terminate(EndReason::Custom(Arc::new(reason)));
    }

    /// Ends the connection as [`end`](Self::end) does, and keeps the POSTs of pending requests open.
    ///
    /// A server may report the reason of an agent's end only in the responses to these requests, long after the end is
    /// known. The requests fail at once; the returned value reports how their POSTs fail later.
    pub fn end_keeping_posts(&self, reason: impl StdError + Send + Sync + 'static) -> OpenPosts {
        let core = self.0.core();
        let kept = Arc::default();
        // Only the first end has open POSTs.
        let _ = core.kept_posts.set(Arc::downgrade(&kept));
        core.terminate(EndReason::Custom(Arc::new(reason)));
        OpenPosts::new(kept)
    }

    /// Responds to the open agent requests of one session, or of all sessions, as cancelled. Returns after the
    /// responses were sent.
    pub fn cancel_agent_requests(&self, session: Option<&str>) -> BoxFuture<'static, ()> {
        let session = session.map(str::to_owned);
        self.cancel_agent_requests_where(move |asking| session.is_none() || asking == session.as_deref())
    }

    /// Responds as cancelled to the open agent requests of the sessions that `fits` selects. For a request without a
    /// session, `fits` receives `None`. On a shared endpoint each client also tracks the requests of other clients
    /// until it [ignores them](crate::Responder::ignore). Returns after the responses were sent.
    pub fn cancel_agent_requests_where(
        &self,
        fits: impl Fn(Option<&str>) -> bool + Send + Sync + 'static,
    ) -> BoxFuture<'static, ()> {
        let core = self.0.core().clone();
        Box::pin(async move { core.calls.cancel(fits).await })
    }

    /// Leaves the open agent requests of the sessions that `fits` selects to other clients, as
    /// [`Responder::ignore`](crate::Responder::ignore) does. For a request without a session, `fits` receives `None`.
    ///
    /// Use it on a shared endpoint before the connection is closed, for requests that another client will respond to.
    pub fn ignore_agent_requests_where(&self, fits: impl Fn(Option<&str>) -> bool) {
        self.0.core().calls.ignore(fits);
    }

    /// Cancels the turn of a session as [`AcpHttpClient::cancel`] does, but responds to the open agent requests of the
    /// session only if `answers_requests` returns `true` when the cancel is about to be sent.
    ///
    /// Use it on a shared endpoint with
    /// [`all_agent_requests`](crate::AcpHttpClientBuilder::all_agent_requests): the open requests may be addressed to
    /// another client, which also responds to them when the turn is cancelled.
    pub fn cancel_turn_if(
        &self,
        notification: CancelNotification,
        answers_requests: impl FnOnce() -> bool + Send + 'static,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.0.cancel_if(notification, answers_requests)
    }

    /// Serves an agent request that this client has not received, as if it had arrived now: the handler decides it, and
    /// the response is sent under this id.
    ///
    /// Use it for a request that another client received and left without a response, and that the server no longer
    /// replays. A server or an agent that does not wait for the response ignores it.
    pub fn serve_agent_request(&self, id: MessageId, method: &str, params: &Value) {
        dispatch(self.0.core(), None, id, method, params.to_string().into());
    }

    /// Closes the open agent requests of one session, or of all sessions, without a response. Use it after the agent
    /// has exited: its replacement may send other requests with the same ids. Returns how many requests were open.
    pub fn forget_agent_requests(&self, session: Option<&str>) -> usize {
        self.0.core().calls.forget(session)
    }
}

impl fmt::Debug for Control<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Control")
    }
}
