//! Tokens are sent with every request and appear nowhere else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use acp_http_client::{Token, TokenError, TokenUse};
use futures::future::BoxFuture;
use futures::{TryFutureExt, stream};
use mock_server::MockServer;
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::{ControlPlane, ControlTimeouts, HealthWait, Upload};
use tracing_subscriber::filter::LevelFilter;

use crate::every_call::{CALLS, every_call};
use crate::support::LIMIT;
use crate::written_log::WrittenLog;

const TOKEN: &str = "t0p-s3cret";

#[tokio::test]
async fn the_token_is_sent_with_every_request_and_never_in_a_url() {
    let server = MockServer::builder().token(TOKEN).start().await;
    for given in [TOKEN.to_owned(), format!("Bearer {TOKEN}")] {
        server.forget_requests();
        let plane = ControlPlane::builder(server.url()).token(given).header("x-tenant", "7").build().unwrap();
        let failed = every_call(&plane).await;
        assert!(failed.is_empty(), "{failed:?}");
        let requests = server.requests();
        assert_eq!(requests.len(), CALLS);
        for request in requests {
            let bearer = format!("Bearer {TOKEN}");
            assert_eq!(request.header("authorization"), Some(bearer.as_str()), "{}", request.path);
            assert_eq!(request.headers.get_all("authorization").iter().count(), 1);
            assert_eq!(request.header("x-tenant"), Some("7"), "{}", request.path);
            assert!(!request.path.contains(TOKEN) && !request.query.contains(TOKEN));
        }
    }
}

#[tokio::test]
async fn a_wrong_token_is_rejected_on_every_route() {
    let server = MockServer::builder().token("another").start().await;
    let plane = ControlPlane::builder(server.url()).token(TOKEN).build().unwrap();
    let failed = every_call(&plane).await;
    assert_eq!(failed.len(), CALLS);
    for error in failed {
        assert!(error.is_unauthorized(), "{error:?}");
        assert_eq!(error.problem().unwrap().short_kind(), "token_invalid");
        assert!(!error.maybe_executed());
        assert!(!format!("{error:?} {error}").contains(TOKEN));
    }
    assert_eq!(server.requests().len(), CALLS, "a fixed token is not retried");
}

#[test]
fn a_token_is_hidden_from_debug() {
    let builder = ControlPlane::builder("http://h").token(TOKEN).header("x-api-key", "hidden-header");
    let mut shown = format!("{builder:?}");
    let plane = builder.build().unwrap();
    let rejected = ControlPlane::builder("http://user:t0p-s3cret@h?key=hidden-header");
    shown += &format!("{rejected:?} {plane:?} {:?} {:?}", plane.files(), plane.agents());
    shown += &format!("{:?} {:?} {:?}", plane.config(), plane.health(), plane.agents().install("mock"));
    assert!(!shown.contains(TOKEN) && !shown.contains("hidden-header"), "{shown}");
}

/// A provider that returns `stale` until it is asked to refresh. It counts both kinds of calls.
fn provider(fresh: &'static str) -> (ControlPlaneWith, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (asked, refreshed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (asks, refreshes) = (Arc::clone(&asked), Arc::clone(&refreshed));
    let with: ControlPlaneWith = Box::new(move |url| {
        let provider = move |reason: TokenUse| {
            let token = match reason {
                TokenUse::Refresh => {
                    refreshes.fetch_add(1, Ordering::SeqCst);
                    fresh
                }
                _ => {
                    asks.fetch_add(1, Ordering::SeqCst);
                    if refreshes.load(Ordering::SeqCst) > 0 { fresh } else { "stale" }
                }
            };
            async move { Token::new(token).map_err(Into::into) }
        };
        ControlPlane::builder(url).token_provider(provider).build().unwrap()
    });
    (with, asked, refreshed)
}

type ControlPlaneWith = Box<dyn FnOnce(&str) -> ControlPlane>;

#[tokio::test]
async fn a_rejected_token_is_refreshed_once() {
    let server = MockServer::builder().token(TOKEN).start().await;
    let (with, asked, refreshed) = provider(TOKEN);
    let plane = with(&server.url());
    plane.files().write("/x", "sent twice").await.unwrap();
    assert_eq!((asked.load(Ordering::SeqCst), refreshed.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(plane.files().read("/x").await.unwrap(), "sent twice");
    assert_eq!((asked.load(Ordering::SeqCst), refreshed.load(Ordering::SeqCst)), (2, 1));
    assert!(every_call(&plane).await.is_empty());
}

#[tokio::test]
async fn a_second_rejection_is_final() {
    let server = MockServer::builder().token(TOKEN).start().await;
    let (with, _, refreshed) = provider("wrong too");
    let error = with(&server.url()).agents().list().await.unwrap_err();
    assert!(error.is_unauthorized());
    assert_eq!((refreshed.load(Ordering::SeqCst), server.requests().len()), (1, 2));
}

#[tokio::test]
async fn a_stream_is_not_sent_twice() {
    let server = MockServer::builder().token(TOKEN).start().await;
    let (with, _, refreshed) = provider(TOKEN);
    let files = with(&server.url()).files();
    let once = Upload::stream(stream::iter([Ok::<_, std::io::Error>("y")]));
    assert!(files.write("/x", once).await.unwrap_err().is_unauthorized());
    assert_eq!((refreshed.load(Ordering::SeqCst), server.requests().len()), (0, 1));
}

#[tokio::test]
async fn a_token_provider_that_fails_sends_nothing() {
    let server = MockServer::start().await;
    let broken = |_: TokenUse| async { Err("the vault is sealed".into()) };
    let plane = ControlPlane::builder(server.url()).token_provider(broken).build().unwrap();
    for error in [
        plane.files().read("/x").await.unwrap_err(),
        plane.health().wait(HealthWait::default()).await.unwrap_err(),
    ] {
        let Error::Token(source) = &error else { panic!("{error:?}") };
        assert_eq!(source.to_string(), "the vault is sealed");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_token_provider_that_hangs_fails_every_call_in_time() {
    let server = MockServer::start().await;
    let hangs = |_: TokenUse| std::future::pending::<Result<Token, TokenError>>();
    let limit = Duration::from_millis(50);
    let mut timeouts = ControlTimeouts::default();
    (timeouts.response, timeouts.install) = (limit, None);
    let plane = ControlPlane::builder(server.url()).token_provider(hangs).timeouts(timeouts).build().unwrap();
    let files = plane.files();
    let calls: [BoxFuture<'static, Result<(), Error>>; 4] = [
        Box::pin(files.read("/x").map_ok(drop)),
        Box::pin(files.write("/x", "y").map_ok(drop)),
        Box::pin(plane.health().check().map_ok(drop)),
        // Its response has no limit, but its token has.
        Box::pin(plane.agents().install("mock").into_future().map_ok(drop)),
    ];
    for call in calls {
        let error = tokio::time::timeout(LIMIT, call).await.expect("it hangs").unwrap_err();
        let Error::Timeout(timeout) = &error else { panic!("{error:?}") };
        assert_eq!(timeout.elapsed, limit, "{error}");
        assert!(!error.maybe_executed(), "{error}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_token_sent_over_plain_http_to_another_host_is_warned_about_once() {
    let (traces, subscriber) = WrittenLog::at(LevelFilter::WARN);
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = MockServer::builder().start().await;
    // The names resolve to this machine, so nothing leaves it.
    let hosts = ["with-token.example", "without-token.example"];
    let mut http = sandbox_agent_sdk::connection::http_client_builder().no_proxy();
    for host in hosts {
        http = http.resolve(host, server.address());
    }
    let http = http.build().unwrap();
    let check = async |host: &str, token: Option<&str>| {
        let url = format!("http://{host}:{}", server.address().port());
        let mut builder = ControlPlane::builder(url).http_client(http.clone());
        if let Some(token) = token {
            builder = builder.token(token);
        }
        let control = builder.build().unwrap();
        for _ in 0..2 {
            control.health().check().await.unwrap();
        }
    };
    check("127.0.0.1", Some("hush")).await;
    check("localhost", Some("hush")).await;
    check(hosts[1], None).await;
    let written = || traces.text();
    assert_eq!(written(), "");
    check(hosts[0], Some("hush")).await;
    check(hosts[0], Some("hush")).await;
    assert_eq!(written().lines().count(), 1, "{}", written());
    assert!(written().contains(hosts[0]) && !written().contains("hush"), "{}", written());
}
