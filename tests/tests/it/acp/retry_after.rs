//! Prompts that the server refuses unread and asks to send later, under a paused clock.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
};

use acp_http_client::{
    AcpHttpClient, Dialect, Error, HttpSendError, HttpSender, reqwest, schema::v1::CancelNotification,
    schema::v1::SessionId,
};
use futures::{channel::mpsc, future::BoxFuture};
use sdk_tests::{handshake, prompt};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Duration, Instant},
};

/// How long the server asks to wait.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// By then everything that was to be sent was sent.
const LONG: Duration = Duration::from_secs(120);

/// A server in memory that refuses the first prompt after a while.
#[derive(Clone, Default)]
struct Server(Arc<State>);

#[derive(Default)]
struct State {
    /// The methods of the messages in the order of their arrival.
    received: Mutex<Vec<String>>,
    streams: Mutex<Vec<mpsc::Sender<Result<String, std::io::Error>>>>,
    /// How long the refusal takes.
    delay: Duration,
    prompted: Notify,
}

impl Server {
    fn slow(delay: Duration) -> Self {
        Self(Arc::new(State { delay, ..State::default() }))
    }

    fn count(&self, method: &str) -> usize {
        self.0.received.lock().unwrap().iter().filter(|received| *received == method).count()
    }

    async fn post(&self, body: reqwest::Body) -> http::Response<reqwest::Body> {
        let bytes = reqwest::Response::from(http::Response::new(body)).bytes().await.unwrap();
        let message: Value = serde_json::from_slice(&bytes).unwrap();
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        self.0.received.lock().unwrap().push(method.clone());
        let response = http::Response::builder().header("content-type", "application/json");
        if method == "session/prompt" && self.count(&method) == 1 {
            self.0.prompted.notify_one();
            tokio::time::sleep(self.0.delay).await;
            let response = response.status(503).header("retry-after", RETRY_AFTER.as_secs());
            return response.body("".into()).unwrap();
        }
        if message["id"].is_null() {
            return response.status(202).body("".into()).unwrap();
        }
        let result = json!({"protocolVersion": 1, "stopReason": "end_turn"});
        let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        let response = response.header("x-acp-connection-id", "c").header("acp-connection-id", "c");
        response.body(body.to_string().into()).unwrap()
    }
}

impl HttpSender for Server {
    fn send(
        &self,
        mut request: reqwest::Request,
    ) -> BoxFuture<'static, Result<reqwest::Response, HttpSendError>> {
        let server = self.clone();
        Box::pin(async move {
            if let Some(body) = request.body_mut().take() {
                return Ok(server.post(body).await.into());
            }
            let (sender, receiver) = mpsc::channel(1);
            server.0.streams.lock().unwrap().push(sender);
            let body = reqwest::Body::wrap_stream(receiver);
            Ok(http::Response::builder()
                .header("content-type", "text/event-stream")
                .body(body)
                .unwrap()
                .into())
        })
    }
}

async fn connect(server: &Server, dialect: Dialect) -> AcpHttpClient {
    let builder = AcpHttpClient::builder("http://model").dialect(dialect).http_sender(server.clone());
    let client = builder.build().unwrap();
    handshake(&client).await.unwrap();
    client
}

fn dialects() -> [Dialect; 4] {
    [Dialect::RPC, Dialect::AUTO, Dialect::EARLY, Dialect::OFFICIAL]
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_waits_to_be_sent_again_is_withdrawn_by_a_cancel() {
    for dialect in dialects() {
        let (server, name) = (Server::default(), dialect.name());
        let client = connect(&server, dialect).await;
        let turn = tokio::spawn(prompt(&client, &SessionId::new("s"), "go"));
        server.0.prompted.notified().await;
        tokio::time::sleep(RETRY_AFTER / 2).await;
        let cancelled = Instant::now();
        client.cancel(CancelNotification::new("s")).await.unwrap();
        let error = turn.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Withdrawn { .. }), "{name}: {error:?}");
        assert!(!error.maybe_executed() && cancelled.elapsed() < Duration::from_secs(1), "{name}");
        tokio::time::sleep(LONG).await;
        assert_eq!((server.count("session/prompt"), client.diagnostics().outboxes), (1, 0), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_is_cancelled_before_it_is_refused_is_not_sent_again() {
    for dialect in dialects() {
        let (server, name) = (Server::slow(Duration::from_secs(3)), dialect.name());
        let client = connect(&server, dialect).await;
        let turn = tokio::spawn(prompt(&client, &SessionId::new("s"), "go"));
        server.0.prompted.notified().await;
        client.cancel(CancelNotification::new("s")).await.unwrap();
        let error = turn.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Withdrawn { .. }), "{name}: {error:?}");
        tokio::time::sleep(LONG).await;
        assert_eq!((server.count("session/prompt"), client.diagnostics().outboxes), (1, 0), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_is_dropped_while_it_waits_to_be_sent_again_is_not_sent_again() {
    for dialect in dialects() {
        let (server, name) = (Server::default(), dialect.name());
        let client = connect(&server, dialect).await;
        let turn = prompt(&client, &SessionId::new("s"), "go");
        assert!(tokio::time::timeout(RETRY_AFTER / 2, turn.into_future()).await.is_err(), "{name}");
        assert!(client.diagnostics().pending.is_empty());
        tokio::time::sleep(LONG).await;
        assert_eq!((server.count("session/prompt"), client.diagnostics().outboxes), (1, 0), "{name}");
        assert_eq!(server.count("session/cancel"), 0, "{name}: there is nothing to cancel");
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_is_sent_again_when_the_server_asked_for_it() {
    for dialect in [Dialect::RPC, Dialect::AUTO, Dialect::EARLY] {
        let (server, name) = (Server::default(), dialect.name());
        let client = connect(&server, dialect).await;
        let started = Instant::now();
        prompt(&client, &SessionId::new("s"), "go").await.unwrap();
        assert!(started.elapsed() >= RETRY_AFTER, "{name}");
        assert_eq!((server.count("session/prompt"), client.diagnostics().outboxes), (2, 0), "{name}");
    }
}
