//! The methods of the protocol, typed.

use agent_client_protocol_schema::{ProtocolVersion, v1 as schema};
use futures::future::BoxFuture;
use schema::AGENT_METHOD_NAMES as METHODS;
use serde::Serialize;
use tracing::Instrument;

use super::{handle::AcpHttpClient, request::Request};
use crate::{Error, Json, SessionId, Typed, outbound::cancel};

/// Servers implement `session/set_model`, which is not part of the schema.
const SET_MODEL: &str = "session/set_model";

/// Gives every method the same shape: the request by value, a future that outlives the client's borrow.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($request:ident) -> $response:ident = $method:expr;)*) => {
        impl AcpHttpClient {
            $(
                $(#[$doc])*
                pub fn $name(&self, request: schema::$request) -> Request<schema::$response> {
                    self.request($method, &request)
                }
            )*
        }
    };
}

methods! {
    /// Exchanges versions and capabilities. It must be the first request.
    initialize(InitializeRequest) -> InitializeResponse = METHODS.initialize;
    /// Logs in with one of the methods that `initialize` returned.
    authenticate(AuthenticateRequest) -> AuthenticateResponse = METHODS.authenticate;
    /// Logs out.
    logout(LogoutRequest) -> LogoutResponse = METHODS.logout;
    /// Creates a session.
    new_session(NewSessionRequest) -> NewSessionResponse = METHODS.session_new;
    /// Loads a session. The agent replays its history as updates with [`Origin::History`](crate::Origin::History).
    /// When this returns, all of them have been delivered.
    load_session(LoadSessionRequest) -> LoadSessionResponse = METHODS.session_load;
    /// Resumes a session without replaying its history.
    resume_session(ResumeSessionRequest) -> ResumeSessionResponse = METHODS.session_resume;
    /// Returns one page of the list of sessions.
    list_sessions(ListSessionsRequest) -> ListSessionsResponse = METHODS.session_list;
    /// Forks a session. This method is not a stable part of the protocol.
    fork_session(ForkSessionRequest) -> ForkSessionResponse = METHODS.session_fork;
    /// Closes a session. It can be loaded again.
    close_session(CloseSessionRequest) -> CloseSessionResponse = METHODS.session_close;
    /// Deletes a session.
    delete_session(DeleteSessionRequest) -> DeleteSessionResponse = METHODS.session_delete;
    /// Sets the mode of a session.
    set_session_mode(SetSessionModeRequest) -> SetSessionModeResponse = METHODS.session_set_mode;
    /// Sets a configuration option of a session.
    set_session_config_option(SetSessionConfigOptionRequest) -> SetSessionConfigOptionResponse = METHODS.session_set_config_option;
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SetModel<'a> {
    session_id: &'a SessionId,
    model_id: &'a str,
}

impl AcpHttpClient {
    /// Creates an `initialize` request with this protocol version and no capabilities.
    pub fn initialize_request() -> schema::InitializeRequest {
        schema::InitializeRequest::new(ProtocolVersion::V1)
    }

    /// Runs one turn.
    ///
    /// It returns after every update of the turn was delivered to the subscribers of [`events`](Self::events).
    /// [`SessionHandle::prompt`](crate::SessionHandle::prompt) returns the same turn as a stream of events. If this
    /// version of the crate does not know the stop reason, see [`Typed::raw`].
    ///
    /// After a [`cancel`](Self::cancel) the next prompt of the session waits until the cancelled turn has ended.
    ///
    /// # Errors
    /// [`Error::Withdrawn`] if the prompt was cancelled before it was sent, [`Error::TurnStillRunning`] if a
    /// cancelled turn does not end within [`Timeouts::cancel`](crate::Timeouts#structfield.cancel).
    pub fn prompt(&self, request: schema::PromptRequest) -> Request<Typed<schema::PromptResponse>> {
        Request::lenient(self, METHODS.session_prompt, &request)
    }

    /// Cancels the turn of a session and responds to its open agent requests as cancelled. The prompt returns with its
    /// stop reason.
    ///
    /// A prompt that was not sent yet is withdrawn. Otherwise the cancel is sent after the prompt. A server may still
    /// process the cancel first, so it is repeated while the turn runs (see
    /// [`cancel_repeats`](crate::AcpHttpClientBuilder::cancel_repeats)).
    pub fn cancel(&self, notification: schema::CancelNotification) -> BoxFuture<'static, Result<(), Error>> {
        self.cancel_if(notification, || true)
    }

    /// Cancels the turn of a session. Responds to its open agent requests only if `answers_requests` allows it.
    pub(super) fn cancel_if(
        &self,
        notification: schema::CancelNotification,
        answers_requests: impl FnOnce() -> bool + Send + 'static,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let message = self.encode_notification(METHODS.session_cancel, &notification);
        let client = self.clone();
        let span = client.core().spans.notification(METHODS.session_cancel);
        let session = notification.session_id.0;
        let sending = async move { cancel(client.core(), session, message?.0, answers_requests).await };
        Box::pin(sending.instrument(span))
    }

    /// Sets the model of a session. This method is not a stable part of the protocol.
    pub fn set_session_model(&self, session_id: impl Into<SessionId>, model_id: &str) -> Request<Json> {
        let params = SetModel { session_id: &session_id.into(), model_id };
        self.request_raw(SET_MODEL, &params)
    }
}
