//! A server that restarts and then sends nothing, under a paused clock.

use std::sync::{Arc, Mutex};

use acp_http_client::{
    AcpHttpClient, Dialect, Error, Event, HttpSendError, HttpSender, reqwest, schema::v1::SessionId,
};
use futures::{SinkExt, channel::mpsc, future::BoxFuture};
use sdk_tests::{handshake, prompt};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Duration, Instant},
};

/// How many chunks a stream holds.
const CHUNKS: usize = 16;

/// A server in memory that never completes a prompt.
#[derive(Clone, Default)]
struct Server(Arc<State>);

#[derive(Default)]
struct Log {
    last_id: u64,
    streams: Vec<mpsc::Sender<Result<String, std::io::Error>>>,
}

#[derive(Default)]
struct State {
    log: Mutex<Log>,
    prompted: Notify,
    stopped: Notify,
}

impl Server {
    /// Another incarnation without memory takes its place.
    fn restart(&self) {
        *self.0.log.lock().unwrap() = Default::default();
        self.0.stopped.notify_waiters();
    }

    fn open(&self) -> reqwest::Body {
        let (sender, receiver) = mpsc::channel(CHUNKS);
        self.0.log.lock().unwrap().streams.push(sender);
        reqwest::Body::wrap_stream(receiver)
    }

    async fn post(&self, body: reqwest::Body) -> Result<String, HttpSendError> {
        let bytes = reqwest::Response::from(http::Response::new(body)).bytes().await.unwrap();
        let message: Value = serde_json::from_slice(&bytes).unwrap();
        if message["method"] == "session/prompt" {
            let stopped = self.0.stopped.notified();
            self.0.prompted.notify_one();
            stopped.await;
            return Err(HttpSendError::Lost(Arc::new(std::io::Error::from(
                std::io::ErrorKind::ConnectionReset,
            ))));
        }
        let response = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": 1}});
        self.emit(&response).await;
        Ok(response.to_string())
    }

    async fn emit(&self, message: &Value) {
        let (event, streams) = {
            let mut log = self.0.log.lock().unwrap();
            log.last_id += 1;
            (format!("id: {}\ndata: {message}\n\n", log.last_id), log.streams.clone())
        };
        for mut stream in streams {
            let _ = stream.send(Ok(event.clone())).await;
        }
    }
}

impl HttpSender for Server {
    fn send(
        &self,
        mut request: reqwest::Request,
    ) -> BoxFuture<'static, Result<reqwest::Response, HttpSendError>> {
        let server = self.clone();
        Box::pin(async move {
            let (kind, body) = match request.body_mut().take() {
                Some(body) => ("application/json", server.post(body).await?.into()),
                None => ("text/event-stream", server.open()),
            };
            Ok(http::Response::builder().header("content-type", kind).body(body).unwrap().into())
        })
    }
}

/// Restarts a server behind an event of this size, while a prompt runs.
async fn restart_behind(last_event: usize) {
    let server = Server::default();
    let builder = AcpHttpClient::builder("http://model").dialect(Dialect::RPC).http_sender(server.clone());
    let client = builder.probe("_ping", json!({})).build().unwrap();
    let mut events = client.events();
    handshake(&client).await.unwrap();
    while client.last_event_id().is_none() {
        // The first response may precede the stream.
        handshake(&client).await.unwrap();
        tokio::task::yield_now().await;
    }
    let turn = tokio::spawn(prompt(&client, &SessionId::new("s"), "go"));
    server.0.prompted.notified().await;
    server
        .emit(&json!({"jsonrpc": "2.0", "method": "_x/last", "params": {"text": "x".repeat(last_event)}}))
        .await;
    while !matches!(events.recv().await, Some(Event::Notification(last)) if last.method == "_x/last") {}
    server.restart();
    let restarted = Instant::now();
    let error = turn.await.unwrap().unwrap_err();
    assert!(restarted.elapsed() < Duration::from_secs(5), "{:?}", restarted.elapsed());
    assert!(matches!(error, Error::ServerRestarted { .. }), "{error:?}");
    assert!(error.maybe_executed());
    while !matches!(events.recv().await, Some(Event::Restarted { .. })) {}
}

#[tokio::test(start_paused = true)]
async fn a_restart_behind_a_silent_stream_is_known_within_five_seconds() {
    restart_behind(10).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_behind_an_event_that_is_too_large_to_be_fetched_again_is_known_within_five_seconds() {
    restart_behind(300 * 1024).await;
}
