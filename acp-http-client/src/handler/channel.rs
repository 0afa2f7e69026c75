//! Agent requests as a stream.

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

/// One agent request, untyped.
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

    /// Whether the method is part of the protocol.
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

/// A stream of agent requests, each with a responder, in the order of the wire.
///
/// A request is here before its [`Event::AgentRequest`](crate::Event::AgentRequest) is published, so that a reader of
/// both has one order.
#[derive(Debug)]
#[must_use = "requests that are not read get no response"]
pub struct AgentRequests {
    receiver: mpsc::Receiver<(AgentRequest, Responder)>,
}

impl AgentRequests {
    /// The next request, or `None` when the connection has ended.
    ///
    /// # Cancel safety
    /// No request is lost if the future is dropped.
    pub async fn recv(&mut self) -> Option<(AgentRequest, Responder)> {
        self.receiver.recv().await
    }

    /// The next request if one is queued.
    pub fn try_recv(&mut self) -> Option<(AgentRequest, Responder)> {
        self.receiver.try_recv().ok()
    }

    /// The same as [`recv`](Self::recv), without `StreamExt`.
    pub async fn next(&mut self) -> Option<(AgentRequest, Responder)> {
        self.recv().await
    }
}

impl Stream for AgentRequests {
    type Item = (AgentRequest, Responder);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv(context)
    }
}

/// Sends the response to one agent request.
///
/// Dropping it responds too: permissions and questions are cancelled, everything else gets an error.
#[must_use = "dropping a responder cancels the request"]
pub struct Responder {
    method: Arc<str>,
    sender: Option<oneshot::Sender<Option<Answer>>>,
}

impl Responder {
    /// The responder of a request, and its response.
    fn new(request: &AgentRequest) -> (Self, impl Future<Output = Option<Answer>> + Send + 'static) {
        let method = request.method.clone();
        let (sender, answered) = oneshot::channel();
        let responder = Self { method: method.clone(), sender: Some(sender) };
        (responder, async move { answered.await.unwrap_or_else(|_| Some(cancelled(&method))) })
    }

    /// Responds with a result. Returns `false` if the request was cancelled.
    pub fn respond<T: Serialize>(mut self, result: &T) -> bool {
        self.send(Some(to_answer(Ok(result))))
    }

    /// Responds with an error. Returns `false` if the request was cancelled.
    pub fn error(mut self, error: RpcError) -> bool {
        self.send(Some(Err(error)))
    }

    /// Waits until the response is not needed any more: the turn or the request was cancelled, or the connection has
    /// ended.
    pub async fn closed(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.closed().await;
        }
    }

    /// Whether the response is not needed any more.
    pub fn is_closed(&self) -> bool {
        self.sender.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Leaves the request to another client of a shared endpoint.
    ///
    /// Each client of a shared endpoint receives all agent requests, and the first response counts. No response is
    /// sent, neither now nor when the request is repeated. Returns `false` if the request was cancelled.
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

/// Passes requests to [`AgentRequests`]. While the channel is full, each waits on a task of its own, so a slow reader
/// blocks nothing else.
pub(crate) struct ChannelHandler {
    /// Guards the sender, which is dropped with the connection so that the stream ends.
    sender: Mutex<Option<mpsc::Sender<(AgentRequest, Responder)>>>,
}

impl ChannelHandler {
    pub(crate) fn new(capacity: usize) -> (Self, AgentRequests) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (Self { sender: Mutex::new(Some(sender)) }, AgentRequests { receiver })
    }

    fn sender(&self) -> Option<mpsc::Sender<(AgentRequest, Responder)>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl AnyHandler for ChannelHandler {
    fn handle(self: Arc<Self>, request: AgentRequest) -> AnswerFuture {
        let sender = self.sender();
        Box::pin(async move {
            let (responder, answered) = Responder::new(&request);
            match sender {
                // If the reader is gone, the error contains the responder, which cancels when it is dropped.
                Some(sender) => drop(sender.send((request, responder)).await),
                None => drop(responder),
            }
            answered.await
        })
    }

    fn enqueue(&self, request: AgentRequest) -> Result<AnswerFuture, Box<AgentRequest>> {
        let Some(sender) = self.sender() else { return Err(Box::new(request)) };
        let Ok(slot) = sender.try_reserve() else { return Err(Box::new(request)) };
        let (responder, answered) = Responder::new(&request);
        slot.send((request, responder));
        Ok(Box::pin(answered))
    }

    fn end(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
