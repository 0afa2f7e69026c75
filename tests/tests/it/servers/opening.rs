//! Handshake, sessions, tokens, and several clients at once.

use std::time::Duration;

use acp_http_client::http_client_builder;
use sdk_tests::{Proxy, within};
use serde_json::{Value, json};

use super::{
    Row,
    peer::{Knobs, Peer},
    server::{Kind, Layout, Server, Setup},
};

pub(super) async fn a_handshake_names_the_agent(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::any_agent()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    if !server.obeys() {
        // The agent of an external server may have any name, or none.
        return;
    }
    let expected = if row.kind.agent_is_no_process() { "official-agent" } else { "stub-agent" };
    assert_eq!(peer.agent_name(), expected);
}

pub(super) async fn every_session_has_its_own_id(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::any_agent()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let (one, two) = (peer.session().await, peer.session().await);
    assert_ne!(one, two);
    for (session, text) in [(&one, "one"), (&two, "two"), (&one, "three")] {
        let reply = peer.prompt(session, &format!("say {text}")).await;
        server.said(&reply, &[text]);
    }
}

pub(super) async fn a_wrong_token_is_rejected_with_a_typed_error(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::token("right")).await else { return };
    let knobs = Knobs { token: Some("wrong"), ..Knobs::default() };
    let refused = Peer::try_connect(&server, row.via, knobs).await;
    let has_tokens = if row.kind == Kind::Given { server.token().is_some() } else { row.kind.has_tokens() };
    if has_tokens {
        let failure = refused.expect_err("a wrong token is rejected");
        assert!(failure.is_unauthorized(), "{failure:?}");
        assert_eq!(failure.http_status(), Some(401));
        assert!(!failure.maybe_executed(), "{failure:?}");
    } else {
        refused.expect("this server checks no token");
    }
    Peer::connect(&server, row.via).await.session().await;
}

pub(super) async fn two_clients_of_one_server_do_not_disturb_each_other(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::any_agent()).await else { return };
    let one = Peer::connect(&server, row.via).await;
    let first = one.session().await;
    let knobs = Knobs { server_id: Some("another"), ..Knobs::default() };
    let two = Peer::try_connect(&server, row.via, knobs).await.expect("a second client connects");
    let second = two.session().await;
    let turns = (one.prompt(&first, "say a; delay 50; say b"), two.prompt(&second, "say c; delay 50; say d"));
    let (left, right) = tokio::join!(turns.0, turns.1);
    server.said(&left, &["a", "b"]);
    server.said(&right, &["c", "d"]);
    // A client that disconnects does not affect the other.
    two.close().await;
    let reply = one.prompt(&first, "say still here").await;
    server.said(&reply, &["still here"]);
}

/// Only the protocol client supports the official transport. The SDK's client reports an unknown kind of server and
/// sends nothing to an agent.
pub(super) async fn the_sdk_rejects_a_server_of_another_kind(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let failure =
        Peer::try_connect(&server, row.via, Knobs::default()).await.expect_err("it is another kind");
    assert_eq!(failure.http_status(), Some(404), "{failure:?}");
    assert!(!failure.maybe_executed() && !failure.is_unauthorized(), "{failure:?}");
}

/// Another client on the same endpoint counts its request ids from 1, as many clients do, and uses one id twice at the
/// same time. The released server then does not respond to the first request in its body.
pub(super) async fn a_client_that_reuses_ids_does_not_disturb_another(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let (peer, proxy) = Peer::recorded(&server, row.via).await;
    let session = peer.session().await;
    let foreign = Foreign::beside(&server, proxy.as_ref()).await;
    let mut watch = peer.watch();
    let turn = peer.prompt(&session, "say begun; delay 700; say over");
    watch.text("begun").await;
    let other = foreign.session().await;
    let prompt = |text: &str| json!({ "sessionId": other, "prompt": [{ "type": "text", "text": text }] });
    // Lists with its id arrive while the prompt runs. Their results do not matter to our client.
    let lists = async {
        loop {
            foreign.post(1, "session/list", json!({})).await;
        }
    };
    let body = tokio::select! {
        body = foreign.post(1, "session/prompt", prompt("say foreign; delay 200")) => body,
        () = lists => unreachable!("the lists do not end"),
    };
    if row.kind.is_released() || row.kind == Kind::Adapter {
        // The second request evicts the first, whose body has the response to the second or none.
        assert!(
            body["result"]["stopReason"].is_null(),
            "the body of a prompt whose id was used again: {body}"
        );
    }
    let reply = turn.await;
    reply.ended("end_turn");
    assert_eq!(reply.texts, ["begun", "over"]);
    let next = peer.prompt(&session, "say next").await;
    next.ended("end_turn");
    assert_eq!(next.texts, ["next"]);
}

/// A client that counts request ids from 1 and reads no stream.
struct Foreign {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
    connection: Option<String>,
}

impl Foreign {
    /// Creates a client on the same endpoint, or with its own connection if each client has one.
    async fn beside(server: &Server, proxy: Option<&Proxy>) -> Self {
        let http = http_client_builder().timeout(Duration::from_secs(2)).build().expect("an HTTP client");
        // The path that our client uses.
        let path = proxy.map_or(Some("/acp".to_owned()), Proxy::endpoint).expect("our client has posted");
        let mut foreign = Self { http, url: server.url() + &path, token: server.token(), connection: None };
        if server.layout() == Layout::Official {
            let hello = json!({ "protocolVersion": 1, "clientCapabilities": {} });
            let answer = foreign.send(1, "initialize", hello).await.expect("a connection of its own");
            let id = answer.headers().get("acp-connection-id").expect("a connection id");
            foreign.connection = Some(id.to_str().expect("text").to_owned());
        }
        foreign
    }

    async fn session(&self) -> String {
        let params = json!({ "cwd": "/", "mcpServers": [] });
        let body = self.post(1, "session/new", params).await;
        body["result"]["sessionId"].as_str().unwrap_or("unknown").to_owned()
    }

    /// Returns the body of the response, or null without one.
    async fn post(&self, id: u64, method: &str, params: Value) -> Value {
        let Ok(answer) = self.send(id, method, params).await else { return Value::Null };
        let Ok(body) = answer.bytes().await else { return Value::Null };
        serde_json::from_slice(&body).unwrap_or_default()
    }

    async fn send(&self, id: u64, method: &str, params: Value) -> reqwest::Result<reqwest::Response> {
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let mut post = self.http.post(&self.url).header("content-type", "application/json");
        if let Some(token) = &self.token {
            post = post.bearer_auth(token);
        }
        if let Some(connection) = &self.connection {
            post = post.header("acp-connection-id", connection);
        }
        within("a foreign POST", post.body(body.to_string()).send()).await
    }
}
