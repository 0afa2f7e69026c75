//! The future of one request.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::{call::Exchange, handle::AcpHttpClient};
use crate::{Error, Json, MessageId, Typed};

/// A request that is sent when it is first awaited.
///
/// Dropping it before its answer frees everything it holds; if it was sent, the agent gets `$/cancel_request`
/// unless that is switched off.
#[must_use = "a request is sent when it is awaited"]
pub struct Request<R> {
    id: Option<MessageId>,
    method: Arc<str>,
    answer: Pin<Box<dyn Future<Output = Result<Bytes, Error>> + Send>>,
    read: fn(&str, Bytes) -> Result<R, Error>,
}

impl<R> Request<R> {
    fn new(
        client: &AcpHttpClient,
        exchange: Result<Exchange, Error>,
        method: &str,
        read: fn(&str, Bytes) -> Result<R, Error>,
    ) -> Self {
        let id = exchange.as_ref().ok().map(Exchange::id);
        // A handle is held, so that a connection lives at least as long as its calls.
        let client = client.clone();
        let answer = Box::pin(async move {
            let answer = exchange?.run().await;
            drop(client);
            answer
        });
        Self { id, method: method.into(), answer, read }
    }

    /// The id under which it is sent; `None` if it cannot be sent at all.
    pub fn id(&self) -> Option<&MessageId> {
        self.id.as_ref()
    }
}

impl<R: DeserializeOwned> Request<R> {
    pub(super) fn typed(client: &AcpHttpClient, exchange: Result<Exchange, Error>, method: &str) -> Self {
        Self::new(client, exchange, method, |method, raw| {
            serde_json::from_slice(&raw).map_err(|source| Error::Decode {
                method: method.to_owned(),
                raw,
                source: Arc::new(source),
            })
        })
    }
}

impl Request<Json> {
    pub(super) fn raw(client: &AcpHttpClient, exchange: Result<Exchange, Error>, method: &str) -> Self {
        Self::new(client, exchange, method, |_, raw| Ok(Json::new(raw)))
    }
}

impl<T: DeserializeOwned> Request<Typed<T>> {
    pub(super) fn lenient(client: &AcpHttpClient, exchange: Result<Exchange, Error>, method: &str) -> Self {
        Self::new(client, exchange, method, |_, raw| Ok(Typed::read(raw)))
    }
}

impl<R> Future for Request<R> {
    type Output = Result<R, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(self.answer.as_mut().poll(context));
        Poll::Ready(answer.and_then(|raw| (self.read)(&self.method, raw)))
    }
}

impl<R> fmt::Debug for Request<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("id", &self.id).field("method", &self.method).finish_non_exhaustive()
    }
}
