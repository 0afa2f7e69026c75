//! Handshake, sessions, tokens, and several clients at once.

use std::time::Duration;

use acp_http_client::http_client_builder;
use sdk_tests::within;
use serde_json::{Value, json};

use super::{
    Row,
    peer::{Knobs, Peer, Via},
    server::{Kind, Layout, Server, Setup},
};

pub(super) async fn a_handshake_names_the_agent(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let expected = if row.kind.agent_is_no_process() { "official-agent" } else { "stub-agent" };
    assert_eq!(peer.agent_name(), expected);
}

pub(super) async fn every_session_has_an_id_of_its_own(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let (one, two) = (peer.session().await, peer.session().await);
    assert_ne!(one, two);
    for (session, text) in [(&one, "one"), (&two, "two"), (&one, "three")] {
        let reply = peer.prompt(session, &format!("say {text}")).await;
        reply.ended("end_turn");
        assert_eq!(reply.texts, [text]);
    }
}

pub(super) async fn a_wrong_token_is_refused_as_such(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::token("right")).await else { return };
    let knobs = Knobs { token: Some("wrong"), ..Knobs::default() };
    let refused = Peer::try_connect(&server, row.via, knobs).await;
    if row.kind.has_tokens() {
        let failure = refused.expect_err("the wrong token is refused");
        assert!(failure.is_unauthorized(), "{failure:?}");
        assert_eq!(failure.http_status(), Some(401));
        assert!(!failure.maybe_executed(), "{failure:?}");
    } else {
        refused.expect("this server looks at no token");
    }
    Peer::connect(&server, row.via).await.session().await;
}

pub(super) async fn two_clients_of_one_server_do_not_disturb_each_other(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let one = Peer::connect(&server, row.via).await;
    let first = one.session().await;
    let knobs = Knobs { server_id: Some("another"), ..Knobs::default() };
    let two = Peer::try_connect(&server, row.via, knobs).await.expect("a second client connects");
    let second = two.session().await;
    let turns = (one.prompt(&first, "say a; delay 50; say b"), two.prompt(&second, "say c; delay 50; say d"));
    let (left, right) = tokio::join!(turns.0, turns.1);
    left.ended("end_turn");
    right.ended("end_turn");
    assert_eq!((left.texts, right.texts), (vec!["a".into(), "b".into()], vec!["c".into(), "d".into()]));
    // One that leaves takes nothing from the other.
    two.close().await;
    let reply = one.prompt(&first, "say still here").await;
    reply.ended("end_turn");
    assert_eq!(reply.texts, ["still here"]);
}

/// Another client counts its requests from 1 on the same endpoint, as many do, and has two of the same number under
/// way at once: of those the released server answers neither in its body.
pub(super) async fn a_client_that_reuses_ids_does_not_disturb_another(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let foreign = Foreign::beside(&server, &peer).await;
    let mut watch = peer.watch();
    let turn = peer.prompt(&session, "say begun; delay 700; say over");
    watch.text("begun").await;
    let other = foreign.session().await;
    let prompt = |text: &str| json!({ "sessionId": other, "prompt": [{ "type": "text", "text": text }] });
    let list = json!({});
    // Whatever becomes of these, they are none of our client's business.
    tokio::join!(
        foreign.post(1, "session/prompt", prompt("say foreign; delay 200")),
        foreign.post(1, "session/list", list.clone()),
        foreign.post(1, "session/list", list),
    );
    let reply = turn.await;
    reply.ended("end_turn");
    assert_eq!(reply.texts, ["begun", "over"]);
    let next = peer.prompt(&session, "say next").await;
    next.ended("end_turn");
    assert_eq!(next.texts, ["next"]);
}

/// A client that counts from 1 and looks at no stream.
struct Foreign {
    http: reqwest::Client,
    url: String,
    connection: Option<String>,
}

impl Foreign {
    /// A client of the same endpoint, or of another connection where every client has its own.
    async fn beside(server: &Server, peer: &Peer) -> Self {
        let http = http_client_builder().timeout(Duration::from_secs(2)).build().expect("an HTTP client");
        let path = match (server.kind().layout(), peer.via()) {
            (Layout::Shared, _) => "/v1/rpc".to_owned(),
            (Layout::Official, _) => "/acp".to_owned(),
            (Layout::PerAgent, Via::Protocol) => "/v1/acp/suite".to_owned(),
            (Layout::PerAgent, Via::Sdk) => {
                let list = http.get(format!("{}/v1/acp", server.url())).send().await.expect("a list");
                let list: Value = serde_json::from_slice(&list.bytes().await.expect("a body")).expect("JSON");
                format!("/v1/acp/{}", list["servers"][0]["serverId"].as_str().expect("the client's id"))
            }
        };
        let mut foreign = Self { http, url: server.url() + &path, connection: None };
        if server.kind().layout() == Layout::Official {
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

    /// The body of the answer, or nothing where none came.
    async fn post(&self, id: u64, method: &str, params: Value) -> Value {
        let Ok(answer) = self.send(id, method, params).await else { return Value::Null };
        let Ok(body) = answer.bytes().await else { return Value::Null };
        serde_json::from_slice(&body).unwrap_or_default()
    }

    async fn send(&self, id: u64, method: &str, params: Value) -> reqwest::Result<reqwest::Response> {
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let mut post = self.http.post(&self.url).header("content-type", "application/json");
        if let Some(connection) = &self.connection {
            post = post.header("acp-connection-id", connection);
        }
        within("a foreign POST", post.body(body.to_string()).send()).await
    }
}

/// A server that is not ours is asked for little: its agent may be a real one.
pub(super) async fn a_given_server_answers_a_prompt(row: Row) {
    let Some(server) = Server::start(Kind::Given, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let reply = peer.prompt(&session, "Say hello.").await;
    reply.outcome.expect("a turn");
    peer.close().await;
}
