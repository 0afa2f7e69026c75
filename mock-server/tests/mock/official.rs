use mock_server::{Cut, Fault, MockServer, Script, Step};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::client::{Event, Events, QUIET, SOON, prompt, request};

/// A client of the official transport.
struct Peer {
    http: reqwest::Client,
    url: String,
    connection: Option<String>,
}

impl Peer {
    fn new(server: &MockServer) -> Self {
        let http = crate::http_client::builder().build().unwrap();
        Self { http, url: format!("{}/acp", server.url()), connection: None }
    }

    async fn call(&self, verb: Method, session: Option<&str>, body: Option<String>) -> Response {
        let mut call = self.http.request(verb.clone(), &self.url);
        for (name, value) in [("acp-connection-id", self.connection.as_deref()), ("acp-session-id", session)]
        {
            if let Some(value) = value {
                call = call.header(name, value);
            }
        }
        if verb == Method::GET {
            call = call.header("accept", "text/event-stream");
        }
        if let Some(body) = body {
            call = call.header("content-type", "application/json").body(body);
        }
        tokio::time::timeout(SOON, call.send()).await.unwrap().unwrap()
    }

    async fn post(&self, message: Value) -> u16 {
        self.call(Method::POST, None, Some(message.to_string())).await.status().as_u16()
    }

    async fn stream(&self, session: Option<&str>) -> Events {
        let response = self.call(Method::GET, session, None).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["acp-connection-id"], self.connection.as_deref().unwrap());
        Events::new(response)
    }

    /// Initialises, opens the connection stream and creates a session.
    async fn session(&mut self) -> (Events, String) {
        let response = self.call(Method::POST, None, Some(initialize().to_string())).await;
        assert_eq!(response.status(), 200);
        self.connection = Some(response.headers()["acp-connection-id"].to_str().unwrap().to_owned());
        let mut events = self.stream(None).await;
        let new = request(2, "session/new", json!({ "cwd": "/", "mcpServers": [] }));
        assert_eq!(self.post(new).await, 202);
        let seen = events.until(|message| message["id"] == 2).await;
        let session = seen[0].json()["result"]["sessionId"].as_str().unwrap().to_owned();
        (events, session)
    }
}

fn initialize() -> Value {
    request(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }))
}

#[tokio::test]
async fn a_turn_travels_on_the_stream_of_its_session() {
    let server = MockServer::start().await;
    let mut peer = Peer::new(&server);
    let (_connection, session) = peer.session().await;
    let mut events = peer.stream(Some(&session)).await;
    assert_eq!(peer.post(prompt(3, &session, "hi")).await, 202);
    let seen = events.until(|message| message["id"] == 3).await;
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|event| event.id.is_none()), "there are no ids");
    assert_eq!(seen[2].json()["result"]["stopReason"], "end_turn");
}

#[tokio::test]
async fn a_mailbox_queues_messages_and_continues_with_the_next_reader() {
    let server = MockServer::start().await;
    let mut peer = Peer::new(&server);
    let (_connection, session) = peer.session().await;
    assert_eq!(peer.post(prompt(3, &session, "a b c")).await, 202);
    server.inject(Fault::StreamCutAt { byte: 200, cut: Cut::Clean }.times(1));
    let (first, _) = peer.stream(Some(&session)).await.bytes().await;
    assert_eq!(first.len(), 200);
    let rest = peer.stream(Some(&session)).await.until(|message| message["id"] == 3).await;
    assert!(rest.len() >= 3, "only data in the buffer of the closed socket is lost: {rest:?}");
}

#[tokio::test]
async fn a_stream_has_one_reader_at_a_time() {
    let server = MockServer::start().await;
    let mut peer = Peer::new(&server);
    let (connection, _) = peer.session().await;
    let second = peer.call(Method::GET, None, None).await;
    assert_eq!(second.status(), 409);
    assert_eq!(second.text().await.unwrap(), "outbound stream already has a subscriber");
    drop(connection);
    assert!(server.wait_for_streams(|count| count == 0, SOON).await);
    assert_eq!(peer.call(Method::GET, None, None).await.status(), 200, "the slot is free again");
}

#[tokio::test]
async fn statuses_are_those_of_the_official_server() {
    let server = MockServer::start().await;
    let mut peer = Peer::new(&server);
    assert_eq!(peer.post(prompt(1, "s", "x")).await, 400, "no connection id");
    peer.connection = Some("unknown".into());
    for verb in [Method::POST, Method::GET, Method::DELETE] {
        let body = (verb == Method::POST).then(|| prompt(1, "s", "x").to_string());
        assert_eq!(peer.call(verb, None, body).await.status(), 404);
    }
    let (mut events, session) = peer.session().await;
    let post = async |session: Option<&str>, body: &str| {
        peer.call(Method::POST, session, Some(body.to_owned())).await
    };
    let batch = post(None, "[]").await;
    assert_eq!(
        (batch.status().as_u16(), &batch.headers()["content-type"]),
        (400, &"application/json".parse().unwrap())
    );
    let scoped = r#"{"jsonrpc":"2.0","id":9,"method":"session/prompt","params":{"prompt":[]}}"#;
    assert_eq!(post(None, scoped).await.status(), 400, "a prompt needs a session");
    assert_eq!(post(Some("other"), &prompt(9, &session, "x").to_string()).await.status(), 400);
    assert_eq!(post(None, "{bad").await.status(), 202);
    assert_eq!(events.next().await.unwrap().json()["error"]["code"], -32700);
    assert_eq!(post(None, r#"{"jsonrpc":"2.0","id":1.5,"method":"x"}"#).await.status(), 202);
    assert_eq!(events.next().await.unwrap().json()["error"]["code"], -32600);
    let no_accept = peer.http.get(&peer.url).header("accept", "*/*").send().await.unwrap();
    assert_eq!(no_accept.status(), 406);
    let no_type = peer.http.post(&peer.url).body("{}").send().await.unwrap();
    assert_eq!(no_type.status(), 415);
}

#[tokio::test]
async fn delete_ends_the_connection_and_its_streams() {
    let server = MockServer::start().await;
    let mut peer = Peer::new(&server);
    let (events, session) = peer.session().await;
    assert_eq!(peer.call(Method::DELETE, None, None).await.status(), 202);
    assert!(events.bytes().await.1.is_ok());
    assert_eq!(peer.call(Method::DELETE, None, None).await.status(), 404);
    assert_eq!(peer.post(prompt(3, &session, "x")).await, 404);
}

#[tokio::test]
async fn a_connection_ends_with_its_agent() {
    let server =
        MockServer::builder().agent("mock", Script::steps(vec![Step::crash(1, ["boom"])])).start().await;
    let mut peer = Peer::new(&server);
    let (events, session) = peer.session().await;
    assert_eq!(peer.post(prompt(3, &session, "x")).await, 202);
    assert!(events.bytes().await.1.is_ok());
    assert_eq!(peer.post(prompt(4, &session, "x")).await, 404);
}

#[tokio::test]
async fn an_agent_that_dies_before_its_response_is_an_internal_error() {
    let script = Script::default()
        .on_request(|method, _| (method == "initialize").then(|| vec![Step::crash(1, ["no config"])]));
    let server = MockServer::builder().agent("mock", script).start().await;
    assert_eq!(Peer::new(&server).post(initialize()).await, 500);
}

#[tokio::test]
async fn a_rejected_initialize_leaves_no_connection() {
    let script = Script::default().on_request(|method, _| {
        let refusal = Step::Fail { code: -32000, message: "log in first".into(), data: None };
        (method == "initialize").then(|| vec![refusal])
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let response = Peer::new(&server).call(Method::POST, None, Some(initialize().to_string())).await;
    assert_eq!(response.status(), 200);
    assert!(response.headers().get("acp-connection-id").is_none());
}

#[tokio::test]
async fn streams_of_sessions_that_do_not_exist_yet_are_limited() {
    let server = MockServer::start().await;
    let mut peer = Peer::new(&server);
    let _connection = peer.session().await;
    let mut early = Vec::new();
    for number in 0..16 {
        early.push(peer.stream(Some(&format!("early-{number}"))).await);
    }
    assert_eq!(peer.call(Method::GET, Some("one-too-many"), None).await.status(), 404);
    early.pop();
    assert!(server.wait_for_streams(|count| count == 16, SOON).await);
    let another = peer.call(Method::GET, Some("another"), None).await;
    assert_eq!(another.status(), 200, "a closed stream frees its slot");
}

#[tokio::test]
async fn a_load_streams_its_history_before_its_response_on_the_session_stream() {
    let history = |_: &str| {
        vec![json!({ "sessionUpdate": "user_message_chunk", "content": { "type": "text", "text": "old" } })]
    };
    let server = MockServer::builder().agent("mock", Script::default().history(history)).start().await;
    let mut peer = Peer::new(&server);
    let _connection = peer.session().await;
    let mut events = peer.stream(Some("old-session")).await;
    let load = json!({ "sessionId": "old-session", "cwd": "/", "mcpServers": [] });
    assert_eq!(peer.post(request(5, "session/load", load)).await, 202);
    let seen = events.until(|message| message["id"] == 5).await;
    assert_eq!(seen[0].json()["params"]["update"]["content"]["text"], "old");
    assert_eq!(seen.len(), 2);
}

#[tokio::test]
async fn closing_a_session_responds_on_its_stream_and_removes_it() {
    let server = MockServer::start().await;
    let mut peer = Peer::new(&server);
    let (_connection, session) = peer.session().await;
    let mut events = peer.stream(Some(&session)).await;
    assert_eq!(peer.post(request(5, "session/close", json!({ "sessionId": session }))).await, 202);
    assert_eq!(events.next().await.unwrap().json()["id"], 5);
    assert_eq!(events.next().await, None::<Event>);
}

#[tokio::test]
async fn the_cookie_set_at_initialize_is_required_when_it_is_sticky() {
    let server = MockServer::builder().sticky_cookie(true).start().await;
    let peer = Peer::new(&server);
    let response = peer.call(Method::POST, None, Some(initialize().to_string())).await;
    let cookie = response.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let id = response.headers()["acp-connection-id"].to_str().unwrap().to_owned();
    let get =
        || peer.http.get(&peer.url).header("accept", "text/event-stream").header("acp-connection-id", &id);
    assert_eq!(get().send().await.unwrap().status(), 404);
    assert_eq!(get().header("cookie", cookie).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_strict_server_requires_the_session_header_on_responses() {
    let server = MockServer::builder().strict_session_header(true).start().await;
    let mut peer = Peer::new(&server);
    let (_connection, session) = peer.session().await;
    let mut events = peer.stream(Some(&session)).await;
    peer.post(prompt(3, &session, "permission")).await;
    let seen = events.until(|message| message["method"] == "session/request_permission").await;
    let id = seen.last().unwrap().json()["id"].clone();
    let outcome = json!({ "outcome": { "outcome": "cancelled" } });
    let answer = json!({ "jsonrpc": "2.0", "id": id, "result": outcome });
    assert_eq!(peer.post(answer.clone()).await, 400);
    assert!(tokio::time::timeout(QUIET, events.next()).await.is_err(), "the agent still waits");
    let response = peer.call(Method::POST, Some(&session), Some(answer.to_string())).await;
    assert_eq!(response.status(), 202);
    events.until(|message| message["id"] == 3).await;
}

#[tokio::test]
async fn http_two_with_prior_knowledge_works_on_every_endpoint() {
    let server = MockServer::start().await;
    let http = crate::http_client::builder().http2_prior_knowledge().build().unwrap();
    let mut peer = Peer { http: http.clone(), ..Peer::new(&server) };
    let (_connection, session) = peer.session().await;
    let mut events = peer.stream(Some(&session)).await;
    peer.post(prompt(3, &session, "two")).await;
    events.until(|message| message["id"] == 3).await;
    for path in ["/v1/rpc", "/v1/health"] {
        let get = http.get(format!("{}{path}", server.url())).send().await.unwrap();
        assert_eq!((get.status().as_u16(), get.version()), (200, reqwest::Version::HTTP_2), "{path}");
    }
}

#[tokio::test]
async fn a_body_of_up_to_sixteen_mebibytes_is_accepted() {
    let server = MockServer::builder().default_agent("mock").start().await;
    let peer = Peer::new(&server);
    for (size, status) in [(15 << 20, 200), (17 << 20, 413)] {
        let padding = "x".repeat(size);
        let params =
            json!({ "protocolVersion": 1, "clientCapabilities": {}, "_meta": { "padding": padding } });
        assert_eq!(peer.post(request(1, "initialize", params)).await, status, "{size}");
    }
}
