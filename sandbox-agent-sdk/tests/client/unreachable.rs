//! Calls that do not reach the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mock_server::MockServer;
use sandbox_agent_sdk::connection::{Token, TokenError, TokenUse, http_client_builder};
use sandbox_agent_sdk::{Error, SandboxAgentClient, ServerKind};

use super::support::{KINDS, session, timeouts, within};

/// Resolves the server's name, except as often as the test makes it fail.
#[derive(Debug, Default)]
struct Failing {
    fails: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
}

impl reqwest::dns::Resolve for Failing {
    fn resolve(&self, _name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let left = self.fails.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        let fails = left.is_ok();
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
async fn a_call_or_prompt_that_did_not_reach_the_server_is_repeated_once() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let resolver = Failing::default();
        let (fails, failed) = (Arc::clone(&resolver.fails), Arc::clone(&resolver.failed));
        // Every request opens a new connection.
        let http = http_client_builder().pool_max_idle_per_host(0).dns_resolver(Arc::new(resolver)).build();
        let url = server.url().replace("127.0.0.1", "server.test");
        let client = SandboxAgentClient::builder(url).agent("mock").server(kind).timeouts(timeouts());
        let client = client.http_client(http.unwrap()).auto_connect(false).build().unwrap();
        within(client.connect()).await.unwrap();

        fails.store(1, Ordering::SeqCst);
        let session = session(&client).await;
        assert_eq!((failed.load(Ordering::SeqCst), server.messages("session/new").len()), (1, 1), "{kind}");

        fails.store(2, Ordering::SeqCst);
        let error = within(session.prompt("zero").text()).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable(_)) && !error.maybe_executed(), "{kind}: {error:?}");
        assert!(server.messages("session/prompt").is_empty(), "{kind}");

        fails.store(1, Ordering::SeqCst);
        let (announce, announced) = tokio::sync::oneshot::channel();
        let turn = session.prompt_after("one", |id| async move {
            announce.send(id).unwrap();
            Ok(())
        });
        assert_eq!(within(turn.text()).await.unwrap(), "mock: one", "{kind}");
        let prompts = server.messages("session/prompt");
        let id = prompts[0]["id"].as_str().map(str::to_owned);
        assert_eq!((prompts.len(), id), (1, Some(within(announced).await.unwrap())), "{kind}");
        assert_eq!(failed.load(Ordering::SeqCst), 4, "{kind}");
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
