//! Calls that do not reach the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mock_server::MockServer;
use sandbox_agent_sdk::connection::{Token, TokenError, TokenUse, http_client_builder};
use sandbox_agent_sdk::{Error, SandboxAgentClient, ServerKind};

use super::support::{KINDS, session, timeouts, within};

/// Resolves the server's name, except once when the test makes it fail.
#[derive(Debug, Default)]
struct FailingOnce {
    fails: Arc<AtomicBool>,
    failed: Arc<AtomicUsize>,
}

impl reqwest::dns::Resolve for FailingOnce {
    fn resolve(&self, _name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let fails = self.fails.swap(false, Ordering::SeqCst);
        if fails {
            self.failed.fetch_add(1, Ordering::SeqCst);
        }
        Box::pin(async move {
            if fails {
                return Err("no such host".into());
            }
            let addresses = std::iter::once(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
            Ok(Box::new(addresses) as reqwest::dns::Addrs)
        })
    }
}

#[tokio::test]
async fn a_call_that_did_not_reach_the_server_is_repeated_once_and_a_prompt_is_not() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let resolver = FailingOnce::default();
        let (fails, failed) = (Arc::clone(&resolver.fails), Arc::clone(&resolver.failed));
        // Every request opens a new connection.
        let http = http_client_builder().pool_max_idle_per_host(0).dns_resolver(Arc::new(resolver)).build();
        let url = server.url().replace("127.0.0.1", "server.test");
        let client = SandboxAgentClient::builder(url).agent("mock").server(kind).timeouts(timeouts());
        let client = client.http_client(http.unwrap()).auto_connect(false).build().unwrap();
        within(client.connect()).await.unwrap();

        fails.store(true, Ordering::SeqCst);
        let session = session(&client).await;
        assert_eq!((failed.load(Ordering::SeqCst), server.messages("session/new").len()), (1, 1), "{kind}");

        fails.store(true, Ordering::SeqCst);
        let error = within(session.prompt("one").text()).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)), "{kind}: {error:?}");
        assert!(server.messages("session/prompt").is_empty(), "{kind}");
        assert_eq!(within(session.prompt("two").text()).await.unwrap(), "mock: two");
        within(client.disconnect()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn connecting_fails_in_time_if_the_token_provider_hangs() {
    let server = MockServer::start().await;
    for kind in [None, Some(ServerKind::Shared)] {
        let hangs = |_: TokenUse| std::future::pending::<Result<Token, TokenError>>();
        let mut options = SandboxAgentClient::builder(server.url()).agent("mock").token_provider(hangs);
        options = options.auto_connect(false);
        if let Some(kind) = kind {
            options = options.server(kind);
        }
        let client = options.build().unwrap();
        let connected = tokio::time::timeout(Duration::from_secs(3600), client.connect()).await;
        let error = connected.expect("it hangs").unwrap_err();
        assert!(matches!(error, Error::Timeout(_)), "{kind:?}: {error:?}");
    }
    assert!(server.requests().is_empty());
}
