//! Busy sessions, bugs of the application and unusual servers: no request hangs and no message is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use acp_http_client::{
    AcpHttpClient, AgentHandler, AgentRequest, CloseOutcome, Dialect, Direction, Error, Event, Limits,
    RequestOptions, RpcError, Timeouts, Verdict, schema::v1::SessionId,
};
use mock_server::{Echo, Fault, MockServer, Reply, State, Step};
use sdk_tests::{
    Collected, acp_server, client, eventually, handshake, numbered, prompt, session, texts, within,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};

fn ask() -> Vec<Step> {
    vec![Step::Request { method: "_x/y".into(), params: json!({}) }, Step::Say("done".into())]
}

/// Another session that says something every 50 ms until it is aborted.
fn chatty(server: &Arc<MockServer>) -> JoinHandle<()> {
    let server = server.clone();
    tokio::spawn(async move {
        let text = json!({"type": "text", "text": "x"});
        let update = json!({"sessionUpdate": "agent_message_chunk", "content": text});
        let message = json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "other", "update": update}});
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        loop {
            ticks.tick().await;
            server.emit(message.clone());
        }
    })
}

#[tokio::test]
async fn updates_of_another_session_do_not_delay_a_response() {
    let server = Arc::new(acp_server(|_| numbered(3)).echo(Echo::BodyOnly).start().await);
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let noise = chatty(&server);
    within("the prompt", prompt(&client, &session, "go")).await.unwrap();
    noise.abort();
}

#[tokio::test]
async fn updates_of_another_session_do_not_extend_an_unconfirmed_request() {
    let server = Arc::new(acp_server(|_| numbered(3)).start().await);
    let mut timeouts = Timeouts::default();
    timeouts.confirmation = Some(Duration::from_millis(500));
    let client = client(&server).timeouts(timeouts).build().unwrap();
    let session = session(&client).await;
    let noise = chatty(&server);
    server.inject(Fault::PostResetAfterRead { execute: false }.on_method("session/prompt").times(1));
    let error = within("the prompt", prompt(&client, &session, "go")).await.unwrap_err();
    assert!(error.is_timeout() && error.maybe_executed());
    noise.abort();
}

#[tokio::test]
async fn a_slow_first_turn_is_complete_on_a_server_that_does_not_echo_responses() {
    let server = acp_server(|_| {
        let say = |n: usize| [Step::Say(n.to_string()), Step::Wait(Duration::from_millis(60))];
        (0..12).flat_map(say).chain([Step::Say("end".into())]).collect()
    })
    .echo(Echo::BodyOnly)
    .start()
    .await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    within("the prompt", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(texts(&mut events).len(), 13);
}

struct Buggy;

impl AgentHandler for Buggy {
    async fn other(&self, _: AgentRequest) -> Result<Value, RpcError> {
        panic!("a bug in the handler")
    }
}

#[tokio::test]
async fn a_handler_that_panics_responds_with_an_error() {
    let server = acp_server(|_| ask()).start().await;
    let client = client(&server).handler(Buggy).build().unwrap();
    let session = session(&client).await;
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(server.answers()[0].answer["error"]["code"], -32603);
    assert!(client.diagnostics().open_agent_requests.is_empty());
}

#[tokio::test]
async fn a_hook_that_panics_lets_every_notification_pass() {
    let server = acp_server(|_| numbered(3)).start().await;
    let client =
        client(&server).on_notification(|_| -> Verdict { panic!("a bug in the hook") }).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    within("the prompt", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(texts(&mut events), ["0", "1", "2"]);
    assert!(!client.state().is_terminated());
}

#[tokio::test]
async fn a_request_accepted_with_202_fails_after_a_restart() {
    let server = acp_server(|_| vec![Step::Hang]).echo(Echo::StreamOnly).start().await;
    let client = client(&server).build().unwrap();
    let old = session(&client).await;
    let hanging = tokio::spawn(prompt(&client, &old, "go"));
    eventually("the prompt to be taken", || {
        client
            .diagnostics()
            .pending
            .iter()
            .any(|pending| pending.method == "session/prompt" && pending.unconfirmed)
    })
    .await;
    server.restart(State::Lost).await;
    // What is sent to the new server meanwhile is answered by the new server.
    session(&client).await;
    let error = within("the prompt", hanging).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::ServerRestarted { .. }), "{error:?}");
}

#[tokio::test]
async fn a_request_that_is_awaited_after_the_end_fails_at_once() {
    let server = acp_server(|_| numbered(3)).start().await;
    let client = client(&server).dialect(Dialect::OFFICIAL).build().unwrap();
    session(&client).await;
    let late = prompt(&client, &SessionId::new("another"), "go");
    client.close().await;
    let outcome = tokio::time::timeout(Duration::from_secs(1), late).await.expect("at once");
    let error = outcome.unwrap_err();
    assert!(error.is_terminal(), "{error:?}");
}

#[tokio::test]
async fn a_close_while_the_first_post_is_open_sends_a_delete() {
    let server = acp_server(|_| vec![]).fault(Fault::PostHangs).echo(Echo::BodyOnly).start().await;
    let client = client(&server).build().unwrap();
    let hello = client.initialize(AcpHttpClient::initialize_request());
    let hello = tokio::spawn(hello.into_future());
    eventually("initialize to arrive", || server.messages("initialize").len() == 1).await;
    let outcome = within("the close", client.close()).await;
    assert!(matches!(outcome, CloseOutcome::Confirmed), "{outcome:?}");
    assert_eq!(server.requests_to("DELETE", "/v1/rpc").len(), 1);
    assert!(within("initialize", hello).await.unwrap().unwrap_err().is_terminal());
}

#[tokio::test]
async fn an_agent_that_reuses_an_id_for_another_request_gets_a_response() {
    let server = acp_server(|_| vec![]).start().await;
    let client = client(&server).build().unwrap();
    session(&client).await;
    let answers = || {
        let answer = |request: &mock_server::RecordedRequest| {
            request.json().is_some_and(|json| json["id"] == 7 && json.get("method").is_none())
        };
        server.requests().iter().filter(|request| answer(request)).count()
    };
    for n in 1..=2 {
        server.emit(json!({"jsonrpc": "2.0", "id": 7, "method": "_x/echo", "params": {"n": n}}));
        eventually("a response", || answers() == n).await;
    }
    // The same request again is a replay, and is not answered again.
    server.emit(json!({"jsonrpc": "2.0", "id": 7, "method": "_x/echo", "params": {"n": 2}}));
    let seen = client.diagnostics().messages;
    eventually("the replay to be read", || client.diagnostics().messages > seen).await;
    handshake(&client).await.unwrap();
    assert_eq!(answers(), 2);
}

#[tokio::test]
async fn a_504_with_a_body_of_json_rpc_is_unknown_too() {
    let server =
        acp_server(|_| vec![Step::Wait(Duration::from_millis(200)), Step::Say("x".into())]).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let body =
        json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "upstream timed out"}});
    let reply =
        Reply { body: body.to_string(), content_type: Some("application/json".into()), ..Reply::default() };
    server.inject(
        Fault::PostStatus { status: 504, execute: true, reply: Some(reply) }.on_method("session/prompt"),
    );
    within("the prompt", prompt(&client, &session, "go")).await.unwrap();
}

#[tokio::test]
async fn a_response_that_is_resent_is_tapped_once() {
    let server = acp_server(|_| ask()).start().await;
    let count = Arc::new(AtomicUsize::new(0));
    let tapped = count.clone();
    let (builder, mut requests) = client(&server)
        .tap(move |envelope| {
            let json: Value = serde_json::from_slice(envelope.raw).unwrap();
            if envelope.direction == Direction::Outbound && json.get("result").is_some() {
                tapped.fetch_add(1, Ordering::SeqCst);
            }
        })
        .agent_requests();
    let client = builder.build().unwrap();
    let session = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &session, "go"));
    let (_, responder) = within("the request", requests.next()).await.unwrap();
    server.inject(Fault::PostStatus { status: 503, execute: false, reply: None }.times(3));
    assert!(responder.respond(&json!({})));
    within("the turn", turn).await.unwrap().unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert_eq!(server.answers().len(), 1);
}

#[tokio::test]
async fn the_bootstrap_query_is_sent_until_a_post_is_accepted() {
    let server = acp_server(|_| vec![]).start().await;
    server.inject(Fault::PostStatus { status: 503, execute: false, reply: None }.times(1));
    let client = client(&server).bootstrap_query("k", "v").build().unwrap();
    handshake(&client).await.unwrap_err();
    eventually("the stream to open", || server.open_streams() == 1).await;
    handshake(&client).await.unwrap();
    handshake(&client).await.unwrap();
    let queries: Vec<_> =
        server.requests_to("POST", "/v1/rpc").iter().map(|post| post.query.clone()).collect();
    assert_eq!(queries, ["k=v", "k=v", ""]);
}

#[tokio::test]
async fn calls_on_sessions_that_do_not_exist_leave_no_streams() {
    let server = acp_server(|_| numbered(3)).start().await;
    let client = client(&server).dialect(Dialect::OFFICIAL).build().unwrap();
    session(&client).await;
    eventually("both streams", || server.open_streams() == 2).await;
    for number in 0..20 {
        let nobody = SessionId::new(format!("nobody-{number}"));
        within("the prompt", prompt(&client, &nobody, "go")).await.unwrap_err();
    }
    eventually("the streams to close", || server.open_streams() == 2).await;
}

#[tokio::test]
async fn a_timeout_beyond_the_clock_is_no_timeout() {
    let server = acp_server(|_| vec![]).start().await;
    let mut timeouts = Timeouts::default().request(Duration::MAX);
    timeouts.stream_idle = Some(Duration::MAX);
    timeouts.order = Duration::MAX;
    timeouts.quiet = Duration::MAX;
    timeouts.confirmation = Some(Duration::MAX);
    let client = client(&server).timeouts(timeouts).build().unwrap();
    handshake(&client).await.unwrap();
    let options = RequestOptions::new().timeout(Duration::MAX);
    within("a call", client.request::<Value>("session/list", &json!({})).options(options)).await.unwrap();
}

#[tokio::test]
async fn a_timeout_begins_when_the_request_is_awaited() {
    let server = acp_server(|_| vec![]).start().await;
    let client = client(&server).build().unwrap();
    handshake(&client).await.unwrap();
    let options = RequestOptions::new().timeout(Duration::from_millis(500));
    let request = client.request::<Value>("session/list", &json!({})).options(options);
    let later = tokio::time::Instant::now() + Duration::from_millis(600);
    eventually("the deadline of a call not yet made", || tokio::time::Instant::now() > later).await;
    within("the call", request).await.unwrap();
}

/// A small server: its response to a GET, and whether it responds to a POST.
async fn raw_server(
    stream: impl Fn(&str) -> String + Send + Sync + 'static,
    post: &'static str,
) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gets = Arc::new(AtomicUsize::new(0));
    let (seen, stream) = (gets.clone(), Arc::new(stream));
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let (seen, stream) = (seen.clone(), stream.clone());
            tokio::spawn(async move {
                let mut buffer = vec![0; 65536];
                let length = socket.read(&mut buffer).await.unwrap_or(0);
                let head = String::from_utf8_lossy(&buffer[..length]).to_lowercase();
                let response = if head.starts_with("get") {
                    seen.fetch_add(1, Ordering::SeqCst);
                    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{}", stream(&head))
                } else {
                    post.to_owned()
                };
                let _ = socket.write_all(response.as_bytes()).await;
                // Held open until the client goes.
                while socket.read(&mut buffer).await.unwrap_or(0) > 0 {}
            });
        }
    });
    (url, gets)
}

#[tokio::test]
async fn an_endless_page_is_a_typed_error() {
    let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>login";
    let (url, _) = raw_server(|_| String::new(), page).await;
    let client = AcpHttpClient::new(url).unwrap();
    let error = within("initialize", handshake(&client)).await.unwrap_err();
    assert!(matches!(&error, Error::UnexpectedBody { start, .. } if start == "<html>login"), "{error:?}");
}

#[tokio::test]
async fn an_event_over_the_limit_with_an_opaque_id_is_not_fetched_again() {
    let events = |head: &str| {
        let small = "data: {\"method\":\"x\"}\nid: a-1\n\n";
        let large = format!("data: {{\"method\":\"{}\"}}\nid: a-2\n\n", "y".repeat(5_000));
        let rest = "data: {\"method\":\"z\"}\nid: a-3\n\n";
        match head {
            head if head.contains("last-event-id: a-3") => String::new(),
            head if head.contains("last-event-id: a-2") => rest.to_owned(),
            head if head.contains("last-event-id: a-1") => large + rest,
            _ => small.to_owned() + &large + rest,
        }
    };
    let (url, gets) = raw_server(events, "").await;
    let mut limits = Limits::default();
    limits.message = 1_000;
    let client = AcpHttpClient::builder(url).limits(limits).build().unwrap();
    let mut events = client.events();
    let hello = tokio::spawn(client.initialize(AcpHttpClient::initialize_request()).into_future());
    let seen = sdk_tests::collect_until(
        &mut events,
        "the event behind it",
        |event| matches!(event, Event::Notification(notification) if notification.method == "z"),
    )
    .await;
    assert_eq!(seen.events.iter().filter(|event| matches!(event, Event::TooLarge { .. })).count(), 1);
    assert!(gets.load(Ordering::SeqCst) <= 2, "{} GETs", gets.load(Ordering::SeqCst));
    hello.abort();
}

#[tokio::test]
async fn numbers_that_are_not_dense_cost_a_few_reconnects_and_every_hole_is_reported() {
    let events = |head: &str| {
        let from: u64 = head
            .split("last-event-id: ")
            .nth(1)
            .and_then(|rest| rest.split("\r\n").next())
            .and_then(|id| id.parse().ok())
            .unwrap_or(0);
        let event = |id: u64| format!("id: {id}\ndata: {{\"method\":\"m{id}\"}}\n\n");
        (1..60).step_by(2).filter(|id| *id > from).map(event).collect()
    };
    let (url, gets) = raw_server(events, "").await;
    let client = AcpHttpClient::builder(url).dialect(Dialect::RPC).build().unwrap();
    let mut events = client.events();
    let hello = tokio::spawn(client.initialize(AcpHttpClient::initialize_request()).into_future());
    eventually("all thirty events", || client.diagnostics().messages == 30).await;
    let mut seen = Collected::default();
    seen.drain(&mut events);
    assert_eq!(seen.events.iter().filter(|event| matches!(event, Event::Gap { .. })).count(), 29);
    assert!(gets.load(Ordering::SeqCst) <= 5, "{} GETs", gets.load(Ordering::SeqCst));
    hello.abort();
}
