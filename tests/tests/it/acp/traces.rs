//! Tracing: a span for each connection and for each call, without content.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use acp_http_client::{AcpHttpClient, Dialect, Event, Limits, Timeouts};
use sdk_tests::{eventually, handshake, prompt, session, within};
use serde_json::json;
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt, registry::LookupSpan};

use super::raw::{RawServer, Reply, result};

const TOKEN: &str = "t0ken-of-the-traces";
const PROMPT: &str = "words-of-the-prompt";
const REPLY: &str = "words-of-the-agent";

/// Records the spans and events of the crate while it is the default.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    spans: Vec<(&'static str, Fields)>,
    /// Each event with the names of the spans around it.
    events: Vec<(Fields, Vec<&'static str>)>,
}

#[derive(Default, Clone)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        if attributes.metadata().target().starts_with("acp_http_client") {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            self.0.lock().unwrap().spans.push((attributes.metadata().name(), fields));
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        if event.metadata().target().starts_with("acp_http_client") {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let around = context.event_scope(event).into_iter().flatten().map(|span| span.name()).collect();
            self.0.lock().unwrap().events.push((fields, around));
        }
    }
}

#[tokio::test]
async fn a_connection_and_each_call_have_a_span_with_the_connection_and_no_content() {
    let recorder = Recorder::default();
    let subscriber = tracing_subscriber::registry().with(recorder.clone());
    let _default = tracing::subscriber::set_default(subscriber);

    let server = RawServer::obliging().await;
    // This server echoes no response.
    let timeouts = Timeouts::default().order(Duration::from_millis(20));
    let builder =
        AcpHttpClient::builder(&server.url).all_agent_requests(true).dialect(Dialect::RPC).token(TOKEN);
    let client = builder.timeouts(timeouts).build().unwrap();
    let mut events = client.events();
    let session = session(&client).await;
    let update = json!({"sessionId": session, "update": {
        "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": REPLY}}});
    server.event(&json!({"jsonrpc": "2.0", "method": "session/update", "params": update}));
    // Events that are not messages are reported with what they say; the traces do not repeat it.
    server.send(format!("data: \"{REPLY}\"\n\ndata: [\"{REPLY}\"]\n\ndata: {{\"id\":1,\"{REPLY}\":2}}\n\n"));
    within("the prompt", prompt(&client, &session, PROMPT)).await.unwrap();
    within("the notification", client.notify("_x/note", &json!({"text": PROMPT}))).await.unwrap();
    within("the cancel", client.session(&session).cancel()).await.unwrap();
    let request = client.request::<u8>("_x/typed", &json!({"text": PROMPT}));
    within("the call", request.into_future()).await.unwrap_err();
    eventually("the malformed events", || client.diagnostics().malformed == 3).await;
    let connection = client.diagnostics().connection;
    within("the close", client.close()).await;
    handshake(&client).await.unwrap_err();
    while let Some(event) = events.recv().await {
        assert!(!matches!(event, Event::Lagged(_)));
    }

    let recorded = recorder.0.lock().unwrap();
    let spans = |name: &str| -> Vec<_> {
        recorded.spans.iter().filter(|span| span.0 == name).map(|span| &span.1.0).collect()
    };
    let [span] = &spans("acp_connection")[..] else { panic!("one connection") };
    assert_eq!(**span, BTreeMap::from([("connection", connection.to_string()), ("dialect", "rpc".into())]));
    let requests = spans("acp_request");
    let methods: Vec<_> = requests.iter().map(|span| span["method"].as_str()).collect();
    assert_eq!(methods, ["initialize", "session/new", "session/prompt", "_x/typed", "initialize"]);
    let ids: Vec<u64> = requests.iter().map(|span| span["id"].parse().unwrap()).collect();
    assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    let notifications = spans("acp_notification");
    let methods: Vec<_> = notifications.iter().map(|span| span["method"].as_str()).collect();
    assert_eq!(methods, ["_x/note", "session/cancel"]);
    assert_eq!(recorded.spans.len(), 1 + requests.len() + notifications.len(), "no other spans");
    for span in requests.iter().chain(&notifications) {
        assert_eq!(span["connection"], connection.to_string());
    }

    let messages: Vec<_> = recorded.events.iter().map(|(fields, _)| fields.0["message"].as_str()).collect();
    for expected in ["connection state", "malformed event", "connection ended"] {
        assert!(messages.contains(&expected), "{expected} is traced: {messages:?}");
    }
    for (fields, around) in &recorded.events {
        assert!(around.iter().any(|name| name.starts_with("acp_")), "{:?} in {around:?}", fields.0);
    }
    let fields =
        recorded.spans.iter().map(|span| &span.1).chain(recorded.events.iter().map(|event| &event.0));
    for value in fields.flat_map(|fields| fields.0.values()) {
        for content in [TOKEN, PROMPT, REPLY] {
            assert!(!value.contains(content), "{content} is traced: {value}");
        }
    }
}

/// The output of a subscriber that writes text, as most programs have one.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_hostile_agent_and_server_write_no_escapes_and_no_lines_of_their_own() {
    const HOSTILE: &str = "x\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}\nERROR forged: all is lost\r";
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _default = tracing::subscriber::set_default(subscriber);

    let problem =
        json!({"type": "about:blank", "status": 400, "title": HOSTILE, "detail": HOSTILE}).to_string();
    let server = RawServer::start(move |method, body| match method {
        "GET" => Reply::Stream,
        "POST" if body["method"] == "_x/refused" => {
            let error = json!({"code": -1, "message": HOSTILE, "data": HOSTILE});
            Reply::Response(
                200,
                vec![("content-type".into(), "application/json".into())],
                json!({"jsonrpc": "2.0", "id": body["id"], "error": error}).to_string(),
            )
        }
        "POST" if body["method"].is_string() => Reply::result(body, result(body)),
        _ => Reply::Response(
            400,
            vec![("content-type".into(), "application/problem+json".into())],
            problem.clone(),
        ),
    })
    .await;
    let limits = Limits::default().open_requests(2).refusals(0);
    let client = AcpHttpClient::builder(&server.url).all_agent_requests(true).limits(limits).build().unwrap();
    let mut events = client.events();
    session(&client).await;
    let ask = |id: usize| {
        let id = format!("{HOSTILE}{id}");
        server
            .event(&json!({"jsonrpc": "2.0", "id": id, "method": HOSTILE, "params": {"sessionId": HOSTILE}}));
    };
    // The first are answered, which the server refuses; then one is repeated.
    (0..2).chain([0]).for_each(ask);
    // An id that consists of several lines, more often than requests are open.
    for _ in 0..4 {
        server.send(
            "data: {\"jsonrpc\":\"2.0\",\"id\":[1,\ndata: 2,\ndata: \"ERROR forged\"],\"method\":\"x\"}\n\n",
        );
    }
    let mut lost = 0;
    while lost < 2 {
        let event = within("a lost response", events.recv()).await.unwrap();
        lost += usize::from(matches!(event, Event::ResponseLost { .. }));
    }
    server.event(&json!({"jsonrpc": "2.0", "id": HOSTILE, "result": HOSTILE}));
    server.event(&json!({"jsonrpc": "2.0", "method": HOSTILE, "params": HOSTILE}));
    server.send(format!("id: {}\ndata: {{\n\n", HOSTILE.replace(['\n', '\r'], "")));
    within("the error", client.request::<serde_json::Value>("_x/refused", &json!({})).into_future())
        .await
        .unwrap_err();
    within("the close", client.close()).await;

    let written = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    assert!(written.contains("response to the agent was not delivered"), "{written}");
    for line in written.lines() {
        assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
        assert!(!line.starts_with("ERROR forged") && !line.starts_with("\"ERROR forged"), "{written}");
    }
}

#[tokio::test]
async fn requests_that_are_dropped_are_logged_once_in_a_row() {
    let recorder = Recorder::default();
    let subscriber = tracing_subscriber::registry().with(recorder.clone());
    let _default = tracing::subscriber::set_default(subscriber);
    let server = RawServer::obliging().await;
    let limits = Limits::default().open_requests(0).refusals(0);
    let client = AcpHttpClient::builder(&server.url).all_agent_requests(true).limits(limits).build().unwrap();
    let mut events = client.events();
    session(&client).await;
    for id in 0..100 {
        server.event(&json!({"jsonrpc": "2.0", "id": id, "method": "_x/y", "params": {"n": id}}));
    }
    let mut lost = 0;
    while lost < 100 {
        let event = within("a lost response", events.recv()).await.unwrap();
        lost += usize::from(matches!(event, Event::ResponseLost { .. }));
    }
    let is_warning = |event: &&(Fields, Vec<&str>)| event.0.0.contains_key("error");
    let warnings = recorder.0.lock().unwrap().events.iter().filter(is_warning).count();
    assert_eq!(warnings, 1);
}
