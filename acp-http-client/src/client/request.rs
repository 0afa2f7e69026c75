//! A request, to be configured and awaited.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::oneshot;
use tracing::Instrument;

use super::handle::AcpHttpClient;
use crate::{
    Error, Events, Json, MessageId, Order, RequestOptions, RpcError, Typed, json,
    outbound::{Draft, Exchange},
    printable::safe_error,
    rpc::Outgoing,
};

/// A request, configured with a builder and sent when it is awaited.
///
/// Nothing is sent before the request is first polled. Dropping the future before the response frees everything it
/// holds. If the request was sent, dropping also cancels it on the server with `$/cancel_request`, and a prompt with
/// `session/cancel` as well, unless [`cancel_on_drop`](Self::cancel_on_drop) is off.
#[must_use = "a request is sent when it is awaited"]
pub struct Request<R> {
    client: AcpHttpClient,
    method: Arc<str>,
    draft: Result<Draft, Error>,
    options: RequestOptions,
    read: fn(&str, Bytes, usize) -> Result<R, Error>,
}

/// The future of a [`Request`].
type Response<R> = Pin<Box<dyn Future<Output = Result<R, Error>> + Send>>;

impl<R> Request<R> {
    fn new(
        client: &AcpHttpClient,
        method: &str,
        params: &(impl Serialize + ?Sized),
        read: fn(&str, Bytes, usize) -> Result<R, Error>,
    ) -> Self {
        let ids = &client.core().ids;
        let number = ids.next();
        let name: Arc<str> = method.into();
        let draft = match Outgoing::request(ids, number, method, params) {
            Ok(Outgoing { body, session }) => {
                Ok(Draft { number, method: name.clone(), session, body, subscriber: None })
            }
            Err(source) => Err(Error::Encode { method: method.to_owned(), source: Arc::new(source) }),
        };
        Self { client: client.clone(), method: name, draft, options: RequestOptions::new(), read }
    }

    /// Subscribes to the events of the connection when it is sent.
    pub(super) fn subscribing(mut self) -> (Self, oneshot::Receiver<Events>) {
        let (sender, receiver) = oneshot::channel();
        if let Ok(draft) = &mut self.draft {
            draft.subscriber = Some(sender);
        }
        (self, receiver)
    }

    /// Returns the id of the request; `None` if it cannot be sent.
    pub fn id(&self) -> Option<MessageId> {
        let draft = self.draft.as_ref().ok()?;
        Some(self.client.core().ids.id(draft.number))
    }

    /// Copies the request, with its id.
    ///
    /// Use it to send a request again that certainly did not reach the server, as in [`Error::Unreachable`].
    pub fn copy(&self) -> Self {
        let Self { client, method, draft, options, read } = self;
        let draft = match draft {
            Ok(draft) => Ok(draft.copy()),
            Err(error) => Err(error.clone()),
        };
        Self { client: client.clone(), method: method.clone(), draft, options: options.clone(), read: *read }
    }

    /// Replaces all options.
    pub fn options(mut self, options: RequestOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the timeout of the response.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.options = self.options.timeout(time);
        self
    }

    /// Waits for the response without a timeout.
    pub fn no_timeout(mut self) -> Self {
        self.options = self.options.no_timeout();
        self
    }

    /// Sets whether the request returns after all updates that the server sent before the response.
    ///
    /// See [`RequestOptions::ordered`].
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.options = self.options.ordered(ordered);
        self
    }

    /// Sets whether updates before the response are marked as history. See [`RequestOptions::replays`].
    pub fn replays(mut self, replays: bool) -> Self {
        self.options = self.options.replays(replays);
        self
    }

    /// Sets whether dropping the request before its response cancels it on the server.
    pub fn cancel_on_drop(mut self, cancel: bool) -> Self {
        self.options = self.options.cancel_on_drop(cancel);
        self
    }

    /// Sends the request. Returns the response, and whether its order after the updates was verified.
    ///
    /// # Errors
    /// The errors of awaiting the request.
    pub async fn with_order(self) -> Result<(R, Order), Error> {
        let (response, order) = self.settled().await?;
        Ok((response.map_err(|error| Error::Rpc { error, status: None })?, order))
    }

    /// Sends the request. Returns the response, which may be an error response, and whether its order after the
    /// updates was verified.
    ///
    /// # Errors
    /// The errors of awaiting the request, except error responses.
    pub async fn settled(self) -> Result<(Result<R, RpcError>, Order), Error> {
        let Self { client, method, draft, options, read } = self;
        let draft = draft?;
        // A handle is held, so that a connection lives at least as long as its calls.
        let span = client.core().spans.request(&method, draft.number);
        let settled = Exchange::run(client.core().clone(), draft, options).instrument(span).await?;
        let limit = client.core().options.limits.decoded;
        let response = match settled.outcome {
            Ok(raw) => Ok(read(&method, raw, limit)?),
            Err(error) => Err(error),
        };
        Ok((response, settled.order))
    }
}

impl<R: DeserializeOwned> Request<R> {
    pub(super) fn typed(client: &AcpHttpClient, method: &str, params: &(impl Serialize + ?Sized)) -> Self {
        Self::new(client, method, params, |method, raw, limit| {
            let fits = json::check_size(&raw, limit).map_err(serde::de::Error::custom);
            fits.and_then(|()| json::from_slice(&raw)).map_err(|source| Error::Decode {
                method: method.to_owned(),
                raw,
                source: Arc::new(safe_error(source)),
            })
        })
    }
}

impl Request<Json> {
    pub(super) fn raw(client: &AcpHttpClient, method: &str, params: &(impl Serialize + ?Sized)) -> Self {
        Self::new(client, method, params, |_, raw, _| Ok(Json::new(raw)))
    }
}

impl<T: DeserializeOwned> Request<Typed<T>> {
    pub(super) fn lenient(client: &AcpHttpClient, method: &str, params: &(impl Serialize + ?Sized)) -> Self {
        Self::new(client, method, params, |_, raw, limit| Ok(Typed::read_within(raw, limit)))
    }
}

impl<R: 'static> IntoFuture for Request<R> {
    type Output = Result<R, Error>;
    type IntoFuture = Response<R>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.with_order().await.map(|(value, _)| value) })
    }
}

impl<R> fmt::Debug for Request<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("method", &self.method).finish_non_exhaustive()
    }
}
