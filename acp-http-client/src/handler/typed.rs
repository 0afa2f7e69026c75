//! The handler trait: one method for each agent request of the protocol.

use std::{fmt, future::Future, ops::Deref, pin::Pin, sync::Arc};

use agent_client_protocol_schema::v1 as schema;
use schema::CLIENT_METHOD_NAMES as METHODS;
use serde::de::DeserializeOwned;

use super::{
    channel::AgentRequest,
    outcome::{Reply, refuse_permission, to_outcome, unhandled},
};
use crate::{AcpHttpClient, Json, RpcError, json};

/// One agent request with typed parameters and the client that received it.
#[derive(Debug, Clone)]
pub struct Call<T> {
    /// The parameters.
    pub params: T,
    raw: Json,
    client: AcpHttpClient,
}

impl<T> Call<T> {
    /// Returns the parameters as JSON.
    pub fn raw(&self) -> &Json {
        &self.raw
    }

    /// Returns the client that received the request.
    pub fn client(&self) -> &AcpHttpClient {
        &self.client
    }
}

impl<T> Deref for Call<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.params
    }
}

/// Responds to agent requests.
///
/// Every method has a default: permissions are rejected or cancelled, other requests get "method not found". Each
/// request runs in a separate task, so a handler may run for a long time, may call the client, and may serve many
/// requests at the same time. If the turn is cancelled, the future is dropped and the agent gets the response that
/// the protocol defines. If a handler panics, the agent gets an internal error.
pub trait AgentHandler: Send + Sync + 'static {
    /// Handles `session/request_permission`.
    fn request_permission(
        &self,
        call: Call<schema::RequestPermissionRequest>,
    ) -> impl Future<Output = Result<schema::RequestPermissionResponse, RpcError>> + Send {
        async move {
            let outcome = refuse_permission(call.raw.as_bytes())?;
            serde_json::from_str(outcome.get()).map_err(RpcError::internal)
        }
    }

    /// Handles `fs/read_text_file`.
    fn read_text_file(
        &self,
        call: Call<schema::ReadTextFileRequest>,
    ) -> impl Future<Output = Result<schema::ReadTextFileResponse, RpcError>> + Send {
        not_found(call, METHODS.fs_read_text_file)
    }

    /// Handles `fs/write_text_file`.
    fn write_text_file(
        &self,
        call: Call<schema::WriteTextFileRequest>,
    ) -> impl Future<Output = Result<schema::WriteTextFileResponse, RpcError>> + Send {
        not_found(call, METHODS.fs_write_text_file)
    }

    /// Handles `terminal/create`.
    fn create_terminal(
        &self,
        call: Call<schema::CreateTerminalRequest>,
    ) -> impl Future<Output = Result<schema::CreateTerminalResponse, RpcError>> + Send {
        not_found(call, METHODS.terminal_create)
    }

    /// Handles `terminal/output`.
    fn terminal_output(
        &self,
        call: Call<schema::TerminalOutputRequest>,
    ) -> impl Future<Output = Result<schema::TerminalOutputResponse, RpcError>> + Send {
        not_found(call, METHODS.terminal_output)
    }

    /// Handles `terminal/wait_for_exit`.
    fn wait_for_terminal_exit(
        &self,
        call: Call<schema::WaitForTerminalExitRequest>,
    ) -> impl Future<Output = Result<schema::WaitForTerminalExitResponse, RpcError>> + Send {
        not_found(call, METHODS.terminal_wait_for_exit)
    }

    /// Handles `terminal/kill`.
    fn kill_terminal(
        &self,
        call: Call<schema::KillTerminalRequest>,
    ) -> impl Future<Output = Result<schema::KillTerminalResponse, RpcError>> + Send {
        not_found(call, METHODS.terminal_kill)
    }

    /// Handles `terminal/release`.
    fn release_terminal(
        &self,
        call: Call<schema::ReleaseTerminalRequest>,
    ) -> impl Future<Output = Result<schema::ReleaseTerminalResponse, RpcError>> + Send {
        not_found(call, METHODS.terminal_release)
    }

    /// Handles `elicitation/create`.
    fn create_elicitation(
        &self,
        call: Call<schema::CreateElicitationRequest>,
    ) -> impl Future<Output = Result<schema::CreateElicitationResponse, RpcError>> + Send {
        not_found(call, METHODS.elicitation_create)
    }

    /// Handles all other requests: extension methods, and requests whose parameters do not match their types, such as
    /// a permission option of a new kind. Returns the raw result.
    fn other(
        &self,
        request: AgentRequest,
    ) -> impl Future<Output = Result<serde_json::Value, RpcError>> + Send {
        async move { default_other(&request) }
    }
}

fn default_other(request: &AgentRequest) -> Result<serde_json::Value, RpcError> {
    if request.is_known() && request.method() != METHODS.session_request_permission {
        return Err(RpcError::invalid_params("the parameters do not match the method"));
    }
    let outcome = unhandled(request.method(), request.params_bytes())?;
    serde_json::from_str(outcome.get()).map_err(RpcError::internal)
}

async fn not_found<T, R>(call: Call<T>, method: &'static str) -> Result<R, RpcError> {
    drop(call);
    Err(RpcError::method_not_found(method))
}

/// The response, or `None` if another client responds.
pub(crate) type OutcomeFuture = Pin<Box<dyn Future<Output = Option<Reply>> + Send>>;

/// A handler behind a pointer.
pub(crate) trait AnyHandler: Send + Sync {
    fn handle(self: Arc<Self>, request: AgentRequest) -> OutcomeFuture;

    /// Queues the request, in the order of the wire, before it is reported as an event. It neither waits nor runs code
    /// of the application. `Err` if there is no queue: the request is handled in a separate task.
    fn enqueue(self: Arc<Self>, request: AgentRequest) -> Result<OutcomeFuture, Box<AgentRequest>> {
        Err(Box::new(request))
    }

    /// The connection has ended, and no more requests follow.
    fn end(&self) {}
}

impl fmt::Debug for dyn AnyHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyHandler")
    }
}

/// Reads the parameters and calls the method that fits, or `other`.
macro_rules! dispatch {
    ($handler:ident, $request:ident, { $($name:ident => $method:ident),* $(,)? }) => {
        match $request.method() {
            $(method if method == METHODS.$name => match read(&$request) {
                Some(call) => to_outcome($handler.$method(call).await),
                None => to_outcome($handler.other($request).await),
            },)*
            _ => to_outcome($handler.other($request).await),
        }
    };
}

impl<H: AgentHandler> AnyHandler for H {
    fn handle(self: Arc<Self>, request: AgentRequest) -> OutcomeFuture {
        Box::pin(async move {
            let outcome = dispatch!(self, request, {
                session_request_permission => request_permission,
                fs_read_text_file => read_text_file,
                fs_write_text_file => write_text_file,
                terminal_create => create_terminal,
                terminal_output => terminal_output,
                terminal_wait_for_exit => wait_for_terminal_exit,
                terminal_kill => kill_terminal,
                terminal_release => release_terminal,
                elicitation_create => create_elicitation,
            });
            Some(Reply::Outcome(outcome))
        })
    }
}

fn read<T: DeserializeOwned>(request: &AgentRequest) -> Option<Call<T>> {
    let limit = request.client().core().options.limits.decoded;
    json::check_size(request.params_bytes(), limit).ok()?;
    let params = json::from_slice(request.params_bytes()).ok()?;
    Some(Call { params, raw: request.params().clone(), client: request.client().clone() })
}

/// The handler of a client without one.
#[derive(Debug)]
pub(crate) struct NoHandler;

impl AgentHandler for NoHandler {}
