//! Closing the connection to a released server, which ends its agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use mock_server::{Fault, MockServer};
use sandbox_agent_sdk::connection::{Token, TokenUse};
use sandbox_agent_sdk::requests::{AgentRequest, RequestHandler, Response};
use sandbox_agent_sdk::{ClientOptions, ServerKind};
use tokio::sync::{Notify, mpsc};

use super::support::{LIMIT, options, session, timeouts, within};

/// How many requests the server received that end an agent.
fn deletes(server: &MockServer) -> usize {
    server.requests().iter().filter(|request| request.method == "DELETE").count()
}

/// A token provider that waits while it is slow.
struct Tokens {
    is_slow: Arc<AtomicBool>,
    /// Whether the server rejects the first token.
    is_stale: Arc<AtomicBool>,
    entered: mpsc::Receiver<()>,
    release: Arc<Notify>,
}

impl Tokens {
    /// Makes it the provider of a client.
    fn provide(options: ClientOptions) -> (ClientOptions, Self) {
        let (is_slow, is_stale) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (entered, receiver) = mpsc::channel(4);
        let release = Arc::new(Notify::new());
        let tokens = Self { is_slow, is_stale, entered: receiver, release };
        let (is_slow, is_stale, release) =
            (Arc::clone(&tokens.is_slow), Arc::clone(&tokens.is_stale), Arc::clone(&tokens.release));
        let provider = move |reason: TokenUse| {
            let (is_slow, entered, release) = (Arc::clone(&is_slow), entered.clone(), Arc::clone(&release));
            let is_stale = is_stale.load(Ordering::SeqCst) && reason == TokenUse::Request;
            async move {
                if is_slow.load(Ordering::SeqCst) {
                    entered.send(()).await.unwrap();
                    release.notified().await;
                }
                Token::new(if is_stale { "stale" } else { "fresh" }).map_err(Into::into)
            }
        };
        (options.token_provider(provider), tokens)
    }
}

#[tokio::test]
async fn closing_a_connection_to_a_released_server_does_not_wait_for_the_response() {
    let server = MockServer::builder().fault(Fault::DeleteHangs).start().await;
    let times = timeouts().disconnect(Duration::from_secs(3600));
    let client = options(&server, ServerKind::PerAgent).timeouts(times).build().unwrap();
    session(&client).await;
    let disconnecting = tokio::spawn(client.disconnect());
    assert!(server.wait_for(|_| deletes(&server) > 0, LIMIT).await);
    // From here on the clock advances only while everything waits: to the time limit of the request, or by this second.
    tokio::time::pause();
    let disconnected = tokio::time::timeout(Duration::from_secs(1), disconnecting).await;
    disconnected.expect("it waits for the response").unwrap().unwrap();
}

#[tokio::test]
async fn closing_a_connection_to_a_released_server_waits_for_the_token_and_is_then_sent() {
    let server = MockServer::builder().token("fresh").start().await;
    let times = timeouts().disconnect(Duration::from_secs(3600));
    // With a token that the server rejects, the provider is asked twice.
    for stale in [false, true] {
        let options = options(&server, ServerKind::PerAgent).timeouts(times.clone());
        let (options, mut tokens) = Tokens::provide(options);
        let client = options.build().unwrap();
        session(&client).await;
        tokens.is_slow.store(true, Ordering::SeqCst);
        tokens.is_stale.store(stale, Ordering::SeqCst);
        server.forget_requests();
        if !stale {
            server.inject(Fault::DeleteHangs);
        }
        let disconnecting = tokio::spawn(client.disconnect());
        for _ in 0..=usize::from(stale) {
            within(tokens.entered.recv()).await.unwrap();
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(10)).await;
            tokio::time::resume();
            tokens.release.notify_one();
        }
        within(disconnecting).await.unwrap().unwrap();
        assert_eq!(deletes(&server), 1 + usize::from(stale));
        server.clear_faults();
    }
}

/// A handler that needs longer than the application waits.
struct Stuck(mpsc::Sender<()>);

impl RequestHandler for Stuck {
    fn handle(&self, _: AgentRequest) -> BoxFuture<'static, Response> {
        Box::pin(std::future::pending())
    }

    fn connection_ended(&self) -> BoxFuture<'static, ()> {
        self.0.try_send(()).unwrap();
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_connection_to_a_released_server_is_closed_after_the_time_to_disconnect_is_used_up() {
    let server = MockServer::builder().token("fresh").start().await;
    let limit = Duration::from_secs(30);
    let options = options(&server, ServerKind::PerAgent).timeouts(timeouts().disconnect(limit));
    let (options, mut tokens) = Tokens::provide(options);
    let client = options.auto_connect(false).build().unwrap();
    let (stuck, mut ending) = mpsc::channel(1);
    client.requests().register(|_| true, Stuck(stuck)).detach();
    within(client.connect()).await.unwrap();
    tokens.is_slow.store(true, Ordering::SeqCst);
    let disconnecting = tokio::spawn(client.disconnect());
    within(ending.recv()).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(limit).await;
    tokio::time::resume();
    within(disconnecting).await.unwrap().unwrap();
    assert_eq!(deletes(&server), 0);
    within(tokens.entered.recv()).await.unwrap();
    tokens.release.notify_one();
    assert!(server.wait_for(|_| deletes(&server) > 0, LIMIT).await);
}
