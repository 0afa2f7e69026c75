//! Tokens go where they must, and nowhere else.

use std::{
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use acp_http_client::{Error, Token, TokenUse};
use mock_server::{Fault, State};
use sdk_tests::{
    acp_server, client, collect_until, eventually, handshake, numbered, prompt, session, within,
};

const SECRET: &str = "s3cr3t-t0ken-of-the-test";

/// Keeps everything that is traced while it is the default.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_token_is_on_every_request_and_in_no_trace_error_or_debug() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _default = tracing::subscriber::set_default(subscriber);

    let server = acp_server(|_| numbered(3)).token(SECRET).start().await;
    let client = client(&server).token(format!("Bearer {SECRET}")).build().unwrap();
    let mut shown = format!("{client:?}");
    let mut events = client.events();
    let session = session(&client).await;
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    server.inject(Fault::PostStatus { status: 400, execute: false, reply: None }.times(1));
    shown += &format!("{:?}", handshake(&client).await.unwrap_err());
    server.restart(State::Preserved).await;
    collect_until(&mut events, "the reconnect", |event| {
        matches!(event, acp_http_client::Event::Reconnected { .. })
    })
    .await;
    shown += &format!("{:?}", client.diagnostics());
    shown += &serde_json::to_string(&client.diagnostics()).unwrap();
    client.close().await;
    shown += &format!("{:?}", handshake(&client).await.unwrap_err());

    let requests = server.requests();
    for verb in ["POST", "GET", "DELETE"] {
        assert!(requests.iter().any(|request| request.method == verb), "{verb}");
    }
    for request in &requests {
        let expected = format!("Bearer {SECRET}");
        assert_eq!(
            request.header("authorization"),
            Some(expected.as_str()),
            "{} {}",
            request.method,
            request.path
        );
        assert!(!request.path.contains(SECRET) && !request.query.contains(SECRET));
    }
    let traced = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(traced.contains("connection state"), "the traces were caught: {} bytes", traced.len());
    assert!(!traced.contains(SECRET) && !shown.contains(SECRET));
    assert!(!traced.contains("go\""), "no prompt in the traces either");
}

#[tokio::test]
async fn a_token_provider_is_called_for_every_request_and_again_after_a_401() {
    let server = acp_server(|_| numbered(3)).token("first").start().await;
    let (asked, refreshed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, renewals) = (asked.clone(), refreshed.clone());
    let client = client(&server)
        .token_provider(move |reason| {
            count.fetch_add(1, Ordering::SeqCst);
            if reason == TokenUse::Refresh {
                renewals.fetch_add(1, Ordering::SeqCst);
            }
            let token = if renewals.load(Ordering::SeqCst) == 0 { "first" } else { "second" };
            async move { Ok(Token::new(token)?) }
        })
        .build()
        .unwrap();
    server.inject(Fault::TokenExpiresAfter { requests: 3 });
    server.accept_token("second");
    let session = session(&client).await;
    eventually("the stream to open", || server.open_streams() == 1).await;
    assert_eq!(asked.load(Ordering::SeqCst), 3, "two POSTs and a GET");
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(refreshed.load(Ordering::SeqCst), 1);
    assert_eq!(server.answers().len(), 0);
    assert!(!client.state().is_terminated());
}

#[tokio::test]
async fn a_second_401_is_final_for_the_request() {
    let server = acp_server(|_| vec![]).token("right").start().await;
    let client = client(&server).token_provider(|_| async { Ok(Token::new("wrong")?) }).build().unwrap();
    let error = within("initialize", handshake(&client)).await.unwrap_err();
    assert!(error.is_unauthorized() && !error.maybe_executed(), "{error:?}");
    let posts = server.requests_to("POST", "/v1/rpc").len();
    assert_eq!(posts, 2, "one refresh and no more");
}

#[tokio::test]
async fn a_token_provider_that_fails_sends_nothing() {
    let server = acp_server(|_| vec![]).token("right").start().await;
    let client =
        client(&server).token_provider(|_| async { Err("the vault is sealed".into()) }).build().unwrap();
    let error = within("initialize", handshake(&client)).await.unwrap_err();
    assert!(matches!(error, Error::Token(_)) && !error.maybe_executed());
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = acp_server(|_| vec![]).start().await;
    let server = acp_server(|_| vec![]).start().await;
    server.inject(Fault::Redirect { to: format!("{}/v1/rpc?token={SECRET}", elsewhere.url()) });
    let client = client(&server).token(SECRET).build().unwrap();
    let error = within("initialize", handshake(&client)).await.unwrap_err();
    let shown = format!("{error} {error:?}");
    let ended = matches!(&error, Error::Redirected { status: 307, location: Some(_) }) || error.is_terminal();
    assert!(ended, "{error:?}");
    assert!(!shown.contains(SECRET), "a secret in the target is not shown: {shown}");
    assert!(elsewhere.requests().is_empty());
}

#[tokio::test]
async fn a_token_sent_over_plain_http_to_another_host_is_warned_about_once() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::WARN)
        .with_writer(move || writer.clone())
        .finish();
    let _default = tracing::subscriber::set_default(subscriber);
    let server = acp_server(|_| numbered(1)).start().await;
    // The names resolve to this machine, so nothing leaves it.
    let (with, without) = ("acp-with-token.example", "acp-without-token.example");
    let http = acp_http_client::http_client_builder().no_proxy();
    let http = http.resolve(with, server.address()).resolve(without, server.address()).build().unwrap();
    for (host, token) in [("127.0.0.1", true), (without, false), (with, true), (with, true)] {
        let url = format!("http://{host}:{}", server.address().port());
        let mut builder = acp_http_client::AcpHttpClient::builder(&url).http_client(http.clone());
        if token {
            builder = builder.token(SECRET);
        }
        let client = builder.build().unwrap();
        session(&client).await;
    }
    let written = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(written.lines().filter(|line| line.contains("plain http")).count(), 1, "{written}");
    assert!(written.contains(with) && !written.contains(without) && !written.contains(SECRET), "{written}");
}
