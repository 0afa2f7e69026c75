//! Requests of the agent as a stream, for programs that would rather pull.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use agent_client_protocol_schema::v1::CLIENT_METHOD_NAMES;
use bytes::Bytes;
use futures::Stream;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::{
    answers::{Answer, cancelled, to_answer},
    typed::{AnswerFuture, AnyHandler},
};
use crate::{AcpHttpClient, Json, MessageId, RpcError};

/// One request of the agent, untyped.
#[derive(Debug, Clone)]
pub struct AgentRequest {
    id: MessageId,
    method: Arc<str>,
    params: Bytes,
    json: Json,
    client: AcpHttpClient,
}

impl AgentRequest {
    pub(crate) fn new(id: MessageId, method: Arc<str>, params: Bytes, client: AcpHttpClient) -> Self {
        Self { id, method, json: Json::new(params.clone()), params, client }
    }

    /// The id the agent gave it.
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// The method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The parameters, `null` if there were none.
    pub fn params(&self) -> &Json {
        &self.json
    }

    /// The client that received the request.
    pub fn client(&self) -> &AcpHttpClient {
        &self.client
    }

    pub(crate) fn params_bytes(&self) -> &Bytes {
        &self.params
    }

    /// Whether the protocol knows the method.
    pub(crate) fn is_known(&self) -> bool {
        let names = CLIENT_METHOD_NAMES;
        [
            names.session_request_permission,
            names.fs_read_text_file,
            names.fs_write_text_file,
            names.terminal_create,
            names.terminal_output,
            names.terminal_wait_for_exit,
            names.terminal_kill,
            names.terminal_release,
            names.elicitation_create,
        ]
        .contains(&self.method())
    }
}

/// The requests of the agent, each with the means to answer it.
#[derive(Debug)]
#[must_use = "requests that are not read are never answered"]
pub struct AgentRequests {
    receiver: mpsc::Receiver<(AgentRequest, Responder)>,
}

impl AgentRequests {
    /// The next request, or `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<(AgentRequest, Responder)> {
        self.receiver.recv().await
    }
}

impl Stream for AgentRequests {
    type Item = (AgentRequest, Responder);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(context)
    }
}

/// Answers one request, once. Dropping it answers too: permissions and questions are cancelled, everything
/// else gets an error.
#[must_use = "dropping a responder cancels the request"]
pub struct Responder {
    method: Arc<str>,
    sender: Option<oneshot::Sender<Option<Answer>>>,
}

impl Responder {
    /// Answers with a result. `false` means that nobody waits for it any more: the request was cancelled.
    pub fn respond<T: Serialize>(mut self, result: &T) -> bool {
        self.send(Some(to_answer(Ok(result))))
    }

    /// Answers with an error. `false` means that nobody waits for it any more: the request was cancelled.
    pub fn error(mut self, error: RpcError) -> bool {
        self.send(Some(Err(error)))
    }

    /// Waits until nobody wants the answer any more: the turn was cancelled, the agent took the request back, or the
    /// connection has ended.
    pub async fn closed(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.closed().await;
        }
    }

    /// Whether nobody wants the answer any more.
    pub fn is_closed(&self) -> bool {
        self.sender.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Leaves the request to somebody else: where several clients share an endpoint, each sees what the agent asks
    /// of one of them, and the first answer counts. No answer is sent, now or when the request comes again, and
    /// the request is not open here any more. `false` means that it was cancelled before.
    pub fn ignore(mut self) -> bool {
        self.send(None)
    }

    fn send(&mut self, answer: Option<Answer>) -> bool {
        self.sender.take().is_some_and(|sender| sender.send(answer).is_ok())
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let answer = cancelled(&self.method);
        self.send(Some(answer));
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").field("method", &self.method).finish_non_exhaustive()
    }
}

/// Passes requests on to [`AgentRequests`]; each waits on its own task, so a slow reader blocks nobody.
pub(crate) struct ChannelHandler {
    /// Guards the sender, which is dropped with the connection so that the stream ends.
    sender: Mutex<Option<mpsc::Sender<(AgentRequest, Responder)>>>,
}

impl ChannelHandler {
    pub(crate) fn new(capacity: usize) -> (Self, AgentRequests) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (Self { sender: Mutex::new(Some(sender)) }, AgentRequests { receiver })
    }
}

impl AnyHandler for ChannelHandler {
    fn handle(self: Arc<Self>, request: AgentRequest) -> AnswerFuture {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async move {
            let method = request.method.clone();
            let (answer, answered) = oneshot::channel();
            let responder = Responder { method: method.clone(), sender: Some(answer) };
            match sender {
                // If the reader is gone, the responder comes back in the error and cancels as it drops.
                Some(sender) => drop(sender.send((request, responder)).await),
                None => drop(responder),
            }
            answered.await.unwrap_or_else(|_| Some(cancelled(&method)))
        })
    }

    fn end(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
