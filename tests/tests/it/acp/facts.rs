//! Event ids, cancels, order and restarts are decided by facts.

use std::{
    future::IntoFuture,
    sync::{Arc, Mutex},
    time::Duration,
};

use acp_http_client::{
    AcpHttpClient, Continuity, Dialect, Error, Event, HttpSendError, HttpSender, Order, Origin, Phase,
    ReconnectPolicy, Timeouts, reqwest,
    schema::v1::{
        CancelNotification, ContentBlock, ForkSessionRequest, LoadSessionRequest, NewSessionRequest,
        PromptRequest, SessionId, SetSessionModeRequest, TextContent,
    },
};
use futures::future::BoxFuture;
use mock_server::{Echo, Fault, Reply, Script, State, Step};
use sdk_tests::{
    Collected, acp_server, client, collect_until, eventually, handshake, prompt, session, texts, within,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::raw::{self, RawServer};

fn say(session: &str, text: &str) -> Value {
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}})
}

/// A server whose stream brings these events, and nothing else.
async fn stream_of(events: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let events = Arc::new(events);
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let events = events.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 65536];
                let length = socket.read(&mut buffer).await.unwrap_or(0);
                if buffer[..length].starts_with(b"GET") {
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
                    let _ = socket.write_all(format!("{head}{events}").as_bytes()).await;
                }
                while socket.read(&mut buffer).await.unwrap_or(0) > 0 {}
            });
        }
    });
    url
}

#[tokio::test]
async fn every_legal_event_id_delivers_every_update_once_and_in_order() {
    let ids: [fn(usize) -> String; 8] = [
        |_| "id: 0\n".to_owned(),
        |_| "id: same\n".to_owned(),
        |n| format!("id: {}\n", 1_700_000_000_000_u64 + 37 * n as u64),
        |n| format!("id: {}\n", 100 - n),
        |_| String::new(),
        |n| format!("id: a-{n}\n"),
        |n| format!("id: a\u{200e}{n}\n"),
        |n| format!("id: a\u{7}{n}\n"),
    ];
    for (row, id) in ids.into_iter().enumerate() {
        for dialect in [Dialect::AUTO, Dialect::RPC] {
            // Numbers that are no sequence are what only a server of unknown dialect may send.
            if row == 2 && dialect == Dialect::RPC {
                continue;
            }
            let words: Vec<_> = (0..10).map(|n| format!("w{n}")).collect();
            let event = |n: usize| format!("{}data: {}\n\n", id(n), say("s", &words[n]));
            let url = stream_of((0..10).map(event).collect()).await;
            let client = AcpHttpClient::builder(url).dialect(dialect.clone()).build().unwrap();
            let mut events = client.events();
            let hello = tokio::spawn(client.initialize(AcpHttpClient::initialize_request()).into_future());
            eventually("ten updates", || client.diagnostics().messages >= 10).await;
            let mut seen = Collected::default();
            seen.drain(&mut events);
            assert_eq!(seen.texts(), words, "row {row} {}", dialect.name());
            let invented = |event: &Event| matches!(event, Event::Gap { .. } | Event::Restarted { .. });
            assert!(!seen.events.iter().any(invented), "row {row} {}", dialect.name());
            hello.abort();
        }
    }
}

#[tokio::test]
async fn a_reopening_behind_ids_that_identify_nothing_is_unverified() {
    for (line, expected) in [("id: 0\n", Continuity::Unverified), ("", Continuity::Unverified)] {
        let events = format!("{line}data: {}\n\n{line}data: {}\n\n", say("s", "a"), say("s", "b"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut buffer = vec![0; 65536];
                let length = socket.read(&mut buffer).await.unwrap_or(0);
                if buffer[..length].starts_with(b"GET") {
                    let head =
                        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
                    let _ = socket.write_all(format!("{head}{events}").as_bytes()).await;
                }
            }
        });
        let quick = ReconnectPolicy::default().base(Duration::from_millis(10));
        let client = AcpHttpClient::builder(url).reconnect(quick).build().unwrap();
        let mut events = client.events();
        let hello = tokio::spawn(client.initialize(AcpHttpClient::initialize_request()).into_future());
        let reconnected = |event: &Event| matches!(event, Event::Reconnected { .. });
        let seen = collect_until(&mut events, "a reopening", reconnected).await;
        assert!(
            matches!(seen.events.last(), Some(Event::Reconnected { continuity, .. }) if *continuity == expected)
        );
        hello.abort();
    }
}

/// A server whose streams bring two events under these ids and end; the `Last-Event-ID` of each opening.
async fn streams_that_end(ids: [&'static str; 2]) -> (String, Arc<Mutex<Vec<Option<Vec<u8>>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let opened = Arc::new(Mutex::new(Vec::new()));
    let openings = opened.clone();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 65536];
            let length = socket.read(&mut buffer).await.unwrap_or(0);
            if buffer[..length].starts_with(b"GET") {
                let mut lines = buffer[..length].split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
                let header = lines.find_map(|line| line.strip_prefix(b"last-event-id: ")).map(<[u8]>::to_vec);
                openings.lock().unwrap().push(header);
                let events: String = ids.map(|id| format!("id: {id}\ndata: {}\n\n", say("s", id))).concat();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
                let _ = socket.write_all(format!("{head}{events}").as_bytes()).await;
            }
        }
    });
    (url, opened)
}

#[tokio::test]
async fn the_last_event_id_is_sent_as_it_came_or_the_reopening_is_unverified() {
    let table: [([&str; 2], Option<&str>, Continuity); 4] = [
        (["a\u{200e}1", "a\u{200e}2"], Some("a\u{200e}2"), Continuity::Resumed),
        // No header can carry these.
        (["a1", "a\u{7}"], Some("a1"), Continuity::Unverified),
        (["a\u{7}1", "a\u{7}2"], None, Continuity::Unverified),
        (["a1", "b "], Some("a1"), Continuity::Unverified),
    ];
    for (ids, point, expected) in table {
        let (url, openings) = streams_that_end(ids).await;
        let quick = ReconnectPolicy::default().base(Duration::from_millis(10));
        let client = AcpHttpClient::builder(url).reconnect(quick).build().unwrap();
        let mut events = client.events();
        let hello = tokio::spawn(client.initialize(AcpHttpClient::initialize_request()).into_future());
        let reconnected = |event: &Event| matches!(event, Event::Reconnected { .. });
        let seen = collect_until(&mut events, "a reopening", reconnected).await;
        let Some(Event::Reconnected { continuity, .. }) = seen.events.last() else { panic!("{seen:?}") };
        assert_eq!(*continuity, expected, "{ids:?}");
        let second = openings.lock().unwrap()[1].clone();
        assert_eq!(second.as_deref(), point.map(str::as_bytes), "{ids:?}");
        hello.abort();
    }
}

/// Holds back prompts on their way to the server, after they were handed over whole.
struct SlowPrompts {
    http: reqwest::Client,
    delay: Duration,
}

impl HttpSender for SlowPrompts {
    fn send(
        &self,
        mut request: reqwest::Request,
    ) -> BoxFuture<'static, Result<reqwest::Response, HttpSendError>> {
        let (http, delay) = (self.http.clone(), self.delay);
        Box::pin(async move {
            let lost = |error: reqwest::Error| HttpSendError::Lost(Arc::new(error));
            if let Some(body) = request.body_mut().take() {
                let response = reqwest::Response::from(http::Response::new(body));
                let bytes = response.bytes().await.map_err(lost)?;
                if bytes.windows(16).any(|window| window == b"\"session/prompt\"") {
                    tokio::time::sleep(delay).await;
                }
                *request.body_mut() = Some(bytes.into());
            }
            http.execute(request).await.map_err(lost)
        })
    }
}

#[tokio::test]
async fn a_cancel_that_overtakes_its_prompt_still_ends_the_turn() {
    let server = acp_server(|_| vec![Step::WaitForCancel]).start().await;
    let http = acp_http_client::http_client_builder().build().unwrap();
    let sender = SlowPrompts { http, delay: Duration::from_millis(150) };
    let client = client(&server).http_sender(sender).build().unwrap();
    let session = session(&client).await;
    for _ in 0..5 {
        let turn = tokio::spawn(prompt(&client, &session, "go"));
        eventually("the prompt to be pending", || !client.diagnostics().pending.is_empty()).await;
        client.cancel(CancelNotification::new(session.clone())).await.unwrap();
        let reply = within("the turn", turn).await.unwrap();
        match reply {
            Ok(reply) => assert_eq!(reply.raw().to_value().unwrap()["stopReason"], "cancelled"),
            Err(error) => assert!(matches!(error, Error::Withdrawn { .. }), "{error:?}"),
        }
    }
}

#[tokio::test]
async fn a_prompt_that_is_cancelled_at_once_never_runs_to_its_end() {
    let server = acp_server(|_| vec![Step::WaitForCancel]).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    for _ in 0..50 {
        let turn = prompt(&client, &session, "go");
        let cancel = client.cancel(CancelNotification::new(session.clone()));
        let (reply, cancelled) = within("the turn", async { tokio::join!(turn, cancel) }).await;
        cancelled.unwrap();
        match reply {
            Ok(reply) => assert_eq!(reply.raw().to_value().unwrap()["stopReason"], "cancelled"),
            Err(error) => {
                assert!(matches!(error, Error::Withdrawn { .. }), "{error:?}");
                assert!(!error.maybe_executed());
            }
        }
    }
    assert!(client.diagnostics().pending.is_empty());
}

#[tokio::test]
async fn the_next_prompt_waits_until_the_cancelled_turn_has_ended_and_no_longer_than_the_limit() {
    let server = acp_server(|turn| match turn.text.as_str() {
        "hang" => vec![Step::Hang],
        _ => vec![Step::Say("new".into())],
    })
    .start()
    .await;
    let mut timeouts = Timeouts::default();
    timeouts.cancel = Duration::from_millis(300);
    let client = client(&server).timeouts(timeouts).build().unwrap();
    let session = session(&client).await;
    let hanging = tokio::spawn(prompt(&client, &session, "hang"));
    eventually("the prompt", || server.messages("session/prompt").len() == 1).await;
    client.cancel(CancelNotification::new(session.clone())).await.unwrap();
    let error = within("the next prompt", prompt(&client, &session, "next")).await.unwrap_err();
    assert!(matches!(error, Error::TurnStillRunning { .. }), "{error:?}");
    assert!(!error.maybe_executed());
    assert_eq!(server.messages("session/prompt").len(), 1, "it was not sent");
    hanging.abort();
}

#[tokio::test]
async fn a_report_that_was_sent_before_a_response_arrives_before_it() {
    let script = Script::new(|_| vec![]).on_request(|method, _| {
        (method == "session/set_mode").then(|| {
            let update = json!({"sessionUpdate": "current_mode_update", "currentModeId": "code"});
            vec![Step::Update(update), Step::Finish(json!({}))]
        })
    });
    let server = mock_server::MockServer::builder().agent("mock", script).default_agent("mock").start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    server
        .inject(Fault::BodyBeforeUpdates { delay: Duration::from_millis(50) }.on_method("session/set_mode"));
    for _ in 0..20 {
        let mut events = client.events();
        let request = client.set_session_mode(SetSessionModeRequest::new(session.clone(), "code"));
        let (_, order) = within("set_mode", request.with_order()).await.unwrap();
        assert_eq!(order, Order::Verified);
        let mut seen = Collected::default();
        seen.drain(&mut events);
        assert_eq!(seen.events.iter().filter(|event| matches!(event, Event::Update(_))).count(), 1);
    }
}

#[tokio::test]
async fn the_history_of_a_fork_arrives_before_the_fork_returns() {
    let script = Script::new(|_| vec![Step::Say("live".into())]).on_request(|method, _| {
        (method == "session/fork")
            .then(|| vec![Step::Raw(say("fork-1", "old")), Step::Finish(json!({"sessionId": "fork-1"}))])
    });
    let server = mock_server::MockServer::builder().agent("mock", script).default_agent("mock").start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    server.inject(Fault::BodyBeforeUpdates { delay: Duration::from_millis(100) }.on_method("session/fork"));
    let mut events = client.events();
    let fork = client.fork_session(ForkSessionRequest::new(session, "/"));
    within("the fork", fork).await.unwrap();
    assert_eq!(texts(&mut events), ["old"]);
}

#[tokio::test]
async fn updates_behind_a_load_response_are_live_even_in_the_same_chunk() {
    let script = Script::new(|_| vec![])
        .history(|_| {
            vec![json!({"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "q"}})]
        })
        .on_request(|method, _| {
            (method == "session/load").then(|| {
                let chunk = |text: &str| {
                    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
                };
                vec![Step::Update(chunk("old")), Step::Answer("end_turn".into()), Step::Update(chunk("new"))]
            })
        });
    let server = mock_server::MockServer::builder().agent("mock", script).default_agent("mock").start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    server.inject(Fault::BodyBeforeUpdates { delay: Duration::from_millis(100) }.on_method("session/load"));
    let mut events = client.events();
    let _ = within("the load", client.load_session(LoadSessionRequest::new(session, "/"))).await;
    let is_new =
        |event: &Event| matches!(event, Event::Update(update) if update.message_text() == Some("new"));
    let seen = collect_until(&mut events, "the live update", is_new).await;
    let origins: Vec<_> = seen
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Update(update) => Some((update.message_text()?.to_owned(), update.meta.origin)),
            _ => None,
        })
        .collect();
    assert_eq!(origins, [("old".to_owned(), Origin::History), ("new".to_owned(), Origin::Live)]);
}

#[tokio::test]
async fn a_deferred_response_ends_on_a_session_that_is_never_silent() {
    // The dialect promises echoes, and the server sends none.
    let server = Arc::new(acp_server(|_| vec![]).echo(Echo::BodyOnly).start().await);
    let mut timeouts = Timeouts::default();
    (timeouts.order, timeouts.order_limit) = (Duration::from_millis(200), Duration::from_secs(1));
    let client = client(&server).timeouts(timeouts).build().unwrap();
    let session = session(&client).await;
    let (noisy, id) = (server.clone(), session.clone());
    let noise = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(20));
        loop {
            ticks.tick().await;
            noisy.emit(say(&id.0, "x"));
        }
    });
    let text = ContentBlock::Text(TextContent::new("go"));
    let request = client.prompt(PromptRequest::new(session, vec![text]));
    let (_, order) = within("the prompt", request.with_order()).await.unwrap();
    assert_eq!(order, Order::Unverified);
    noise.abort();
}

#[tokio::test]
async fn an_accepted_prompt_whose_response_lies_in_a_gap_fails_when_its_session_stays_silent() {
    let server = acp_server(|_| vec![Step::Hang]).echo(Echo::StreamOnly).replay_buffer(8).start().await;
    let mut timeouts = Timeouts::default();
    timeouts.confirmation = Some(Duration::from_millis(500));
    let client = client(&server).timeouts(timeouts).build().unwrap();
    let session = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &session, "go"));
    eventually("the prompt to be accepted", || {
        client.diagnostics().pending.iter().any(|pending| pending.unconfirmed)
    })
    .await;
    server.inject(Fault::Hole { id: server.last_event_id() + 1 });
    server.emit(say("another session", "lost"));
    server.inject(Fault::ReplayBufferOverflow);
    let error = within("the prompt", turn).await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::Timeout(timeout) if timeout.phase == Phase::Confirmation), "{error:?}");
    assert!(error.maybe_executed());
}

#[tokio::test]
async fn a_restart_behind_a_silent_stream_is_known_by_a_probe() {
    let server = acp_server(|_| vec![Step::Hang]).start().await;
    let quick = ReconnectPolicy::default().base(Duration::from_millis(20));
    let client = client(&server).reconnect(quick).probe("session/list", json!({})).build().unwrap();
    let id = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &id, "go"));
    eventually("the prompt", || server.messages("session/prompt").len() == 1).await;
    server.restart(State::Lost).await;
    let error = within("the prompt", turn).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::ServerRestarted { .. }), "{error:?}");
    assert!(error.maybe_executed());
}

#[tokio::test]
async fn a_request_that_is_sent_after_a_restart_does_not_fail_by_it() {
    let server = acp_server(|_| vec![]).start().await;
    let quick = ReconnectPolicy::default().base(Duration::from_millis(20));
    let client = client(&server).reconnect(quick).probe("session/list", json!({})).build().unwrap();
    session(&client).await;
    // It was made before the restart, and the server asks to send it later.
    let reply = Reply { headers: vec![("retry-after".into(), "3".into())], ..Reply::default() };
    let busy = Fault::PostStatus { status: 503, execute: false, reply: Some(reply) };
    server.inject(busy.on_method("session/new").times(1));
    server.inject(Fault::ResponseOnStreamOnly.on_method("session/new"));
    let mut events = client.events();
    let request = tokio::spawn(client.new_session(NewSessionRequest::new("/")).into_future());
    eventually("the refusal", || server.fired("PostStatus") == 1).await;
    server.restart(State::Lost).await;
    collect_until(&mut events, "the restart", |event| matches!(event, Event::Restarted { .. })).await;
    within("the request", request).await.unwrap().unwrap();
    assert_eq!(server.fired("ResponseOnStreamOnly"), 1);
}

#[tokio::test]
async fn a_failed_call_does_not_close_the_session_stream_of_another() {
    let server = RawServer::start(|method, body| match (method, body["method"].as_str()) {
        ("GET", _) => raw::Reply::Stream,
        (_, Some("session/prompt")) => raw::Reply::status(202),
        (_, Some("session/set_mode")) => raw::Reply::status(400),
        _ => raw::Reply::result(body, raw::result(body)).header("acp-connection-id", "c"),
    })
    .await;
    let client = AcpHttpClient::builder(&server.url).dialect(Dialect::OFFICIAL).build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    // This client has not made the session: its stream is open only while calls use it.
    let session = SessionId::new("s");
    let turn = tokio::spawn(prompt(&client, &session, "wait"));
    let accepted = || client.diagnostics().pending.iter().any(|pending| pending.unconfirmed);
    eventually("the prompt to be accepted", accepted).await;
    let mode = SetSessionModeRequest::new(session, "code");
    let error = within("the failing call", client.set_session_mode(mode)).await.unwrap_err();
    assert_eq!(error.http().map(|http| http.status), Some(400), "{error:?}");
    let streams = || client.diagnostics().streams.len();
    assert_eq!(streams(), 2, "the turn still uses the stream");
    let prompt = server.received().into_iter().find(|one| one.body["method"] == "session/prompt").unwrap();
    server.event(&say("s", "done"));
    let result = json!({"stopReason": "end_turn"});
    server.event(&json!({"jsonrpc": "2.0", "id": prompt.body["id"], "result": result}));
    within("the turn", turn).await.unwrap().unwrap();
    assert_eq!(streams(), 2, "the session exists");
    // A call about a session that does not exist leaves no stream behind.
    let mode = SetSessionModeRequest::new("nobody", "code");
    within("a call to nobody", client.set_session_mode(mode)).await.unwrap_err();
    eventually("the stream to be closed", || streams() == 2).await;
}

#[tokio::test]
async fn a_message_that_the_server_asks_to_send_later_is_sent_later() {
    let server = acp_server(|_| vec![Step::Say("ok".into())]).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let reply = Reply { headers: vec![("retry-after".into(), "1".into())], ..Reply::default() };
    let busy = Fault::PostStatus { status: 503, execute: false, reply: Some(reply) };
    server.inject(busy.on_method("session/prompt").times(1));
    let mut events = client.events();
    within("the prompt", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(texts(&mut events), ["ok"]);
    assert_eq!(server.messages("session/prompt").len(), 2);
}
