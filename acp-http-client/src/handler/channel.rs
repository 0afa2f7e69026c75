//! Agent requests as a stream.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use agent_client_protocol_schema::v1::CLIENT_METHOD_NAMES;
use bytes::Bytes;
use futures::Stream;
use serde::Serialize;
use tokio::sync::oneshot;

use super::{
    outcome::{Reply, cancelled},
    queue::RequestQueue,
    typed::{AnyHandler, OutcomeFuture},
};
use crate::{AcpHttpClient, Json, MessageId, RpcError, client::Core};

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

    /// Returns the id that the agent assigned to the request.
    pub fn id(&self) -> &MessageId {
        &self.id
    }

    /// Returns the method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Returns the parameters; `null` if there are none.
    pub fn params(&self) -> &Json {
        &self.json
    }

    /// Returns the client that received the request.
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
/// A request is queued here before its [`Event::AgentRequest`](crate::Event::AgentRequest) is published, so a reader
/// of both sees one order.
#[derive(Debug)]
#[must_use = "requests that are not read get no response"]
pub struct AgentRequests {
    queue: Arc<RequestQueue>,
}

impl AgentRequests {
    /// Returns the next request, or `None` when the connection has ended.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn recv(&mut self) -> Option<(AgentRequest, Responder)> {
        poll_fn(|context| self.queue.poll_pop(context)).await
    }

    /// Returns the next request if one is queued, without waiting.
    pub fn try_recv(&mut self) -> Option<(AgentRequest, Responder)> {
        self.queue.try_pop()
    }

    /// Like [`recv`](Self::recv). Callers need not import `StreamExt`.
    pub async fn next(&mut self) -> Option<(AgentRequest, Responder)> {
        self.recv().await
    }
}

impl Stream for AgentRequests {
    type Item = (AgentRequest, Responder);

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.queue.poll_pop(context)
    }
}

impl Drop for AgentRequests {
    fn drop(&mut self) {
        self.queue.abandon();
    }
}

/// Sends the response to one agent request.
///
/// Dropping it also responds: permissions and questions are cancelled, other requests get an error.
#[must_use = "dropping a responder cancels the request"]
pub struct Responder {
    id: MessageId,
    method: Arc<str>,
    core: Weak<Core>,
    sender: Option<oneshot::Sender<Option<Reply>>>,
}

impl Responder {
    /// The responder of a request, and its response.
    fn new(request: &AgentRequest) -> (Self, impl Future<Output = Option<Reply>> + Send + 'static) {
        let (id, method) = (request.id.clone(), request.method.clone());
        let (sender, answered) = oneshot::channel();
        let core = Arc::downgrade(request.client.core());
        let responder = Self { id, method: method.clone(), core, sender: Some(sender) };
        let reply =
            async move { answered.await.unwrap_or_else(|_| Some(Reply::Outcome(cancelled(&method)))) };
        (responder, reply)
    }

    /// Responds with a result. Returns `false` if the request was cancelled.
    ///
    /// The result counts in [`Limits::response_bytes`](crate::Limits#structfield.response_bytes) before it is encoded.
    pub fn respond<T: Serialize>(mut self, result: &T) -> bool {
        let Some(core) = self.core.upgrade().filter(|_| !self.is_closed()) else { return false };
        self.send(Some(Reply::encode(&core, &self.id, result)))
    }

    /// Responds with an error. Returns `false` if the request was cancelled.
    pub fn error(mut self, error: RpcError) -> bool {
        self.send(Some(Reply::Outcome(Err(error))))
    }

    /// Waits until the response is no longer needed.
    ///
    /// This is the case if the turn or the request was cancelled, or if the connection has ended.
    pub async fn closed(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.closed().await;
        }
    }

    /// Returns whether the response is no longer needed.
    pub fn is_closed(&self) -> bool {
        self.sender.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Leaves the request to another client of a shared endpoint.
    ///
    /// Each client of a shared endpoint receives all agent requests, and the first response counts. This client sends
    /// no response, even if the request is repeated. Returns `false` if the request was cancelled.
    pub fn ignore(mut self) -> bool {
        self.send(None)
    }

    fn send(&mut self, reply: Option<Reply>) -> bool {
        self.sender.take().is_some_and(|sender| sender.send(reply).is_ok())
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let outcome = cancelled(&self.method);
        self.send(Some(Reply::Outcome(outcome)));
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").field("method", &self.method).finish_non_exhaustive()
    }
}

/// Passes requests to [`AgentRequests`]. A slow reader blocks nothing else.
pub(crate) struct ChannelHandler {
    queue: Arc<RequestQueue>,
}

impl ChannelHandler {
    pub(crate) fn new() -> (Self, AgentRequests) {
        let queue = Arc::new(RequestQueue::default());
        (Self { queue: queue.clone() }, AgentRequests { queue })
    }
}

impl AnyHandler for ChannelHandler {
    fn handle(self: Arc<Self>, request: AgentRequest) -> OutcomeFuture {
        let (responder, answered) = Responder::new(&request);
        self.queue.push(request, responder);
        Box::pin(answered)
    }

    fn enqueue(self: Arc<Self>, request: AgentRequest) -> Result<OutcomeFuture, Box<AgentRequest>> {
        Ok(self.handle(request))
    }

    fn end(&self) {
        self.queue.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    const RESULT: &str = "result";
    const SIZE: usize = r#"{"jsonrpc":"2.0","id":1,"result":"result"}"#.len();

    #[tokio::test]
    async fn results_count_in_the_limit_before_they_are_encoded_and_until_they_are_dropped() {
        for (limit, fitting) in [(2 * SIZE - 1, 1), (2 * SIZE, 2), (2 * SIZE + 1, 2)] {
            let limits = Limits::default().response_bytes(limit);
            let client = AcpHttpClient::builder("http://server").limits(limits).build().unwrap();
            let counted = || client.core().calls.response_bytes();
            let request =
                AgentRequest::new(MessageId::from_json("1"), "_x/y".into(), Bytes::new(), client.clone());
            // No task of the connection runs between the responses.
            let replies: Vec<_> = (0..2)
                .map(|_| {
                    let (responder, reply) = Responder::new(&request);
                    assert!(responder.respond(&RESULT));
                    reply
                })
                .collect();
            assert_eq!(counted(), fitting * SIZE, "{limit}");
            let replies = futures::future::join_all(replies).await;
            let encoded = replies.iter().flatten().filter(|reply| match reply {
                Reply::Encoded(body, _) => body.len() == SIZE,
                Reply::TooLarge(size) => *size != SIZE,
                Reply::Outcome(_) => false,
            });
            assert_eq!(encoded.count(), fitting, "{limit}");
            drop(replies);
            assert_eq!(counted(), 0);
            // A response that is no longer needed takes no memory.
            let (responder, reply) = Responder::new(&request);
            drop(reply);
            assert!(!responder.respond(&RESULT) && counted() == 0);
        }
    }
}
