//! Counts messages that a client sends.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use acp_http_client::{HttpSendError, HttpSender, http_client_builder};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::watch;

/// Sends requests as the client does by default, and counts those with a text.
#[derive(Clone)]
pub(crate) struct Sent {
    http: reqwest::Client,
    text: &'static str,
    count: watch::Sender<usize>,
}

impl Sent {
    /// Counts the requests that contain a text.
    pub(crate) fn with(text: &'static str) -> Self {
        let http = http_client_builder().build().expect("an HTTP client");
        Self { http, text, count: watch::Sender::new(0) }
    }

    /// Counts the prompts.
    pub(crate) fn prompts() -> Self {
        Self::with(r#""session/prompt""#)
    }

    /// How many of them the client has handed over to the network.
    pub(crate) fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits until the client has handed over this many.
    pub(crate) async fn reached(&self, count: usize) {
        // The sender lives as long as this value.
        let _ = self.count.subscribe().wait_for(|now| *now >= count).await;
    }
}

impl HttpSender for Sent {
    fn send(
        &self,
        mut request: reqwest::Request,
    ) -> BoxFuture<'static, Result<reqwest::Response, HttpSendError>> {
        if let Some(body) = request.body_mut() {
            let inner = std::mem::take(body);
            *body = reqwest::Body::wrap(Watched { inner, text: self.text, count: self.count.clone() });
        }
        let sending = self.http.execute(request);
        Box::pin(async move { sending.await.map_err(|error| HttpSendError::Lost(Arc::new(error))) })
    }
}

/// The body of a request, which is read when it is sent.
struct Watched {
    inner: reqwest::Body,
    text: &'static str,
    count: watch::Sender<usize>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = reqwest::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, reqwest::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        if data.is_some_and(|data| String::from_utf8_lossy(data).contains(self.text)) {
            self.count.send_modify(|count| *count += 1);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
