//! How much of ignored bodies the client holds in memory.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::header::CONTENT_TYPE;
use http_body::{Body, Frame};
use tokio::sync::Notify;

use crate::{AcpHttpClient, HttpSendError, HttpSender, json};

const POSTS: usize = 3;

/// A server whose responses to notifications have a body of one chunk that never ends.
#[derive(Clone, Default)]
struct Server(Arc<Counts>);

#[derive(Default)]
struct Counts {
    /// The chunks that the client has received and not dropped.
    held: AtomicUsize,
    /// How many bodies were read up to their chunk and polled again, or dropped.
    taken: AtomicUsize,
    changed: Notify,
}

struct Chunk(Arc<Counts>);

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &[b' '; 1024]
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Endless {
    counts: Arc<Counts>,
    chunk: Option<Chunk>,
    is_taken: bool,
}

impl Endless {
    fn body(counts: Arc<Counts>, chunk: Option<Chunk>) -> reqwest::Body {
        reqwest::Body::wrap(Self { counts, chunk, is_taken: false })
    }

    fn take(&mut self) {
        if !std::mem::replace(&mut self.is_taken, true) {
            self.counts.taken.fetch_add(1, Ordering::AcqRel);
            self.counts.changed.notify_one();
        }
    }
}

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(chunk) = self.chunk.take() else {
            self.take();
            return Poll::Pending;
        };
        self.counts.held.fetch_add(1, Ordering::AcqRel);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(chunk)))))
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.take();
    }
}

impl HttpSender for Server {
    fn send(
        &self,
        mut request: reqwest::Request,
    ) -> BoxFuture<'static, Result<reqwest::Response, HttpSendError>> {
        let counts = self.0.clone();
        let is_get = request.method() == http::Method::GET;
        let body = request.body_mut().take();
        async move {
            let message = match body {
                Some(body) => {
                    reqwest::Response::from(http::Response::new(body)).bytes().await.unwrap_or_default()
                }
                None => Bytes::new(),
            };
            let message: serde_json::Value = json::from_slice(&message).unwrap_or_default();
            let response = http::Response::builder();
            let response = if is_get {
                response.header(CONTENT_TYPE, "text/event-stream").body(Endless::body(Arc::default(), None))
            } else if message["id"].is_null() {
                response.body(Endless::body(counts.clone(), Some(Chunk(counts))))
            } else {
                let body =
                    serde_json::json!({"jsonrpc": "2.0", "id": message["id"], "result": {}}).to_string();
                response.header(CONTENT_TYPE, "application/json").body(body.into())
            };
            Ok(response.unwrap().into())
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn the_body_of_a_response_to_a_one_way_message_is_not_held() {
    let server = Server::default();
    let counts = server.0.clone();
    let client = AcpHttpClient::builder("http://server").http_sender(server).build().unwrap();
    let notices = (0..POSTS).map(|_| client.notify("_x/note", &serde_json::json!({})));
    let sending = tokio::spawn(futures::future::join_all(notices));
    while counts.taken.load(Ordering::Acquire) < POSTS {
        counts.changed.notified().await;
    }
    assert_eq!(counts.held.load(Ordering::Acquire), 0);
    sending.abort();
}
