//! Code of the application that panics or calls back: it breaks nothing but itself.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use acp_http_client::{
    AcpHttpClient, AgentHandler, AgentRequest, Error, RpcError, Token, TokenError, TokenUse,
    schema::v1::CancelNotification,
};
use mock_server::{Echo, Step};
use sdk_tests::{acp_server, client, eventually, handshake, numbered, prompt, session, texts, within};
use serde_json::{Value, json};

fn ask() -> Vec<Step> {
    vec![Step::Request { method: "_x/y".into(), params: json!({}) }, Step::Say("done".into())]
}

#[tokio::test]
async fn a_tap_that_panics_breaks_nothing_and_subscribers_see_the_end() {
    for echo in [Echo::BodyAndStream, Echo::BodyOnly] {
        let server = acp_server(|_| numbered(3)).echo(echo).start().await;
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let tap = move |_: acp_http_client::Envelope<'_>| {
            counted.fetch_add(1, Ordering::AcqRel);
            panic!("a bug in the tap")
        };
        let client = client(&server).tap(tap).build().unwrap();
        let id = session(&client).await;
        let mut events = client.events();
        within("the prompt", prompt(&client, &id, "go")).await.unwrap();
        assert_eq!(texts(&mut events), ["0", "1", "2"]);
        within("the close", client.close()).await;
        assert!(calls.load(Ordering::Acquire) > 6, "also what waited for an echo until the end");
        within("the end", async { while events.recv().await.is_some() {} }).await;
    }
}

#[tokio::test]
async fn a_token_provider_that_panics_fails_only_its_request() {
    let server = acp_server(|_| numbered(1)).start().await;
    let provider = |_: TokenUse| async {
        if true {
            panic!("a bug in the provider")
        }
        Err::<Token, TokenError>("never".into())
    };
    let client = client(&server).token_provider(provider).build().unwrap();
    let error = within("the handshake", handshake(&client)).await.unwrap_err();
    assert!(matches!(error, Error::Token(_)) && error.is_retryable() && !error.maybe_executed(), "{error:?}");
    assert!(!client.state().is_terminated());
    assert!(server.requests().is_empty());
}

/// A handler whose future panics when it is dropped.
struct PanicsOnDrop;

impl AgentHandler for PanicsOnDrop {
    async fn other(&self, _: AgentRequest) -> Result<Value, RpcError> {
        struct Guard;
        impl Drop for Guard {
            fn drop(&mut self) {
                if !std::thread::panicking() {
                    panic!("a bug in a destructor")
                }
            }
        }
        let _guard = Guard;
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_handler_that_panics_on_cancellation_is_still_cancelled() {
    let server = acp_server(|_| ask()).start().await;
    let client = client(&server).handler(PanicsOnDrop).build().unwrap();
    let id = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &id, "go"));
    eventually("the request", || !client.diagnostics().open_agent_requests.is_empty()).await;
    within("the cancel", client.control().cancel_agent_requests(None)).await;
    within("the turn", turn).await.unwrap().unwrap();
    assert_eq!(server.answers()[0].answer["error"]["code"], RpcError::REQUEST_CANCELLED);
    assert!(client.diagnostics().open_agent_requests.is_empty());
}

/// A handler that never responds.
struct Silent;

impl AgentHandler for Silent {
    async fn other(&self, _: AgentRequest) -> Result<Value, RpcError> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_closure_that_selects_requests_may_call_the_client() {
    let server = acp_server(|_| ask()).start().await;
    let client = client(&server).handler(Silent).build().unwrap();
    let id = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &id, "go"));
    eventually("the request", || !client.diagnostics().open_agent_requests.is_empty()).await;
    let seen = Arc::new(OnceLock::new());
    let (inner, found): (AcpHttpClient, _) = (client.clone(), seen.clone());
    let cancelling = client.control().cancel_agent_requests_where(move |session| {
        // The table is not locked meanwhile.
        found.get_or_init(|| (session.is_some(), inner.diagnostics().open_agent_requests.len()));
        true
    });
    // On a separate thread: a deadlock would block the test's thread.
    let cancelling = tokio::task::spawn_blocking(move || futures::executor::block_on(cancelling));
    within("the cancel", cancelling).await.unwrap();
    assert_eq!(seen.get(), Some(&(true, 1)));
    within("the turn", turn).await.unwrap().unwrap();
    assert_eq!(server.answers()[0].answer["error"]["code"], RpcError::REQUEST_CANCELLED);
}

#[tokio::test]
async fn a_cancel_leaves_open_requests_to_other_clients_if_its_closure_says_so_or_panics() {
    let answers: [fn() -> bool; 2] = [|| false, || panic!("a bug")];
    for answers_requests in answers {
        let server = acp_server(|_| ask()).start().await;
        let client = client(&server).handler(Silent).build().unwrap();
        let id = session(&client).await;
        let turn = tokio::spawn(prompt(&client, &id, "go"));
        eventually("the request", || !client.diagnostics().open_agent_requests.is_empty()).await;
        let notification = || CancelNotification::new(id.clone());
        let cancelling = client.control().cancel_turn_if(notification(), answers_requests);
        within("the cancel", cancelling).await.unwrap();
        assert!(!server.messages("session/cancel").is_empty(), "the turn is cancelled all the same");
        assert_eq!(client.diagnostics().open_agent_requests.len(), 1);
        assert!(server.answers().is_empty());
        within("the cancel", client.cancel(notification())).await.unwrap();
        within("the turn", turn).await.unwrap().unwrap();
        assert!(client.diagnostics().open_agent_requests.is_empty());
    }
}
