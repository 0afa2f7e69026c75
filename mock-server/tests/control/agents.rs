//! Root, health and the agent catalogue.

use std::time::Duration;

use mock_server::{AGENT_IDS, ControlPlane};
use reqwest::Method;
use serde_json::json;

use crate::server::{JSON, Reply, Server};

const MOCK: &str = r#"{"id":"mock","installed":true,"credentialsAvailable":true,"capabilities":{"planMode":true,"permissions":true,"questions":true,"toolCalls":true,"toolResults":true,"textMessages":true,"images":true,"fileAttachments":true,"sessionLifecycle":true,"errorEvents":true,"reasoning":true,"status":true,"commandExecution":true,"fileChanges":true,"mcpTools":true,"streamingDeltas":true,"itemStarted":true,"sharedProcess":false}}"#;

const MOCK_OPTIONS: &str = r#"[{"category":"model","currentValue":"mock","id":"model","name":"Model","options":[{"name":"Mock","value":"mock"},{"name":"Mock Fast","value":"mock-fast"}],"type":"select"},{"category":"mode","currentValue":"normal","id":"mode","name":"Mode","options":[{"name":"Normal","value":"normal"},{"name":"Plan","value":"plan"}],"type":"select"},{"category":"thought_level","currentValue":"low","id":"thought_level","name":"Thought Level","options":[{"name":"Low","value":"low"},{"name":"Medium","value":"medium"},{"name":"High","value":"high"}],"type":"select"}]"#;

#[tokio::test]
async fn root_and_health_respond_like_the_released_server() {
    let server = Server::start().await;
    let root = server.get("/").await;
    assert_eq!(root.body, r#"{"docs":"https://sandboxagent.dev","name":"Sandbox Agent"}"#);
    root.json(200);
    let health = server.get("/v1/health").await;
    assert_eq!(health.body, r#"{"status":"ok"}"#);
    health.json(200);
    Reply::of(server.request(Method::HEAD, "/v1/health")).await.nothing(200);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_rejected() {
    let server = Server::start().await;
    for target in ["/v1/nope", "/v1/health/", "/v1/agents/", "/v1/fs", "/v1/fs/file/"] {
        assert_eq!(
            server.get(target).await.problem(404, "invalid_request"),
            "endpoint not found",
            "{target}"
        );
    }
    let wrong = Reply::of(server.request(Method::PUT, "/v1/health")).await;
    wrong.nothing(405);
    assert_eq!(wrong.allow.as_deref(), Some("GET,HEAD"));
}

#[tokio::test]
async fn all_agents_are_listed_in_order() {
    let server = Server::start().await;
    let listed = server.get("/v1/agents").await.json(200);
    let ids: Vec<&str> =
        listed["agents"].as_array().unwrap().iter().map(|agent| agent["id"].as_str().unwrap()).collect();
    assert_eq!(ids, AGENT_IDS);
    assert_eq!(listed["agents"][6].to_string(), MOCK);
    let installed: Vec<bool> =
        listed["agents"].as_array().unwrap().iter().map(|agent| agent["installed"] == true).collect();
    assert_eq!(installed, [false, false, false, false, false, false, true]);
}

#[tokio::test]
async fn one_agent_has_more_details_with_its_configuration() {
    let server = Server::start().await;
    assert_eq!(server.get("/v1/agents/mock").await.body, MOCK);
    let detailed = server.get("/v1/agents/mock?config=true&no_cache=true&other=1").await.json(200);
    assert_eq!(detailed["version"], "builtin");
    assert!(detailed["path"].is_string());
    assert_eq!(detailed["configOptions"].to_string(), MOCK_OPTIONS);
    let absent = server.get("/v1/agents/codex?config=true").await.json(200);
    assert_eq!(absent.get("version"), None, "an agent that is not installed has no version");
    assert_eq!(absent["configOptions"], json!([]));
}

#[tokio::test]
async fn an_unknown_agent_is_a_bad_request() {
    let server = Server::start().await;
    let detail = server.get("/v1/agents/nope").await.problem(400, "unsupported_agent");
    assert_eq!(detail, "unsupported agent: nope");
    let install = server.send(Method::POST, "/v1/agents/nope/install", JSON, "{}").await;
    install.problem(400, "unsupported_agent");
}

#[tokio::test]
async fn a_query_value_that_is_not_a_boolean_is_rejected_in_plain_text() {
    let server = Server::start().await;
    let text = "Failed to deserialize query string: provided string was not `true` or `false`";
    assert_eq!(server.get("/v1/agents?config=maybe").await.text(400), text);
    assert_eq!(server.get("/v1/agents/mock?no_cache=1").await.text(400), text);
}

#[tokio::test]
async fn installing_an_agent_makes_it_installed() {
    let server = Server::with(ControlPlane::builder().installed([] as [&str; 0])).await;
    let install = async |agent: &str, body: &'static str| {
        server.send(Method::POST, &format!("/v1/agents/{agent}/install"), JSON, body).await.json(200)
    };
    assert_eq!(server.get("/v1/agents/mock").await.json(200)["installed"], false);
    let done = install("mock", "{}").await;
    assert_eq!(done["already_installed"], false);
    assert_eq!(done["artifacts"][0]["kind"], "agent_process");
    assert_eq!(done["artifacts"][0]["source"], "builtin");
    assert_eq!(done["artifacts"][0]["version"], "builtin");
    assert_eq!(install("mock", "{}").await, json!({ "already_installed": true, "artifacts": [] }));
    assert_eq!(install("mock", r#"{"reinstall":true}"#).await, done);
    assert!(server.control.is_installed("mock"));

    let versions = r#"{"agentVersion":"1.2.3","agentProcessVersion":null}"#;
    let codex = install("codex", versions).await;
    assert_eq!(codex["artifacts"][0]["version"], "1.2.3");
    assert_eq!(codex["artifacts"][1]["version"], json!(null));
    assert_eq!(server.get("/v1/agents/codex").await.json(200)["installed"], true);
    server.control.set_installed("codex", false);
    assert_eq!(server.get("/v1/agents/codex").await.json(200)["installed"], false);
}

#[tokio::test]
async fn an_invalid_install_body_is_rejected_in_plain_text() {
    let server = Server::start().await;
    let target = "/v1/agents/mock/install";
    let missing = server.post(target).await;
    assert_eq!(missing.text(415), "Expected request with `Content-Type: application/json`");
    let broken = server.send(Method::POST, target, JSON, "{bad").await;
    assert!(broken.text(400).starts_with("Failed to parse the request body as JSON: "), "{}", broken.body);
    let misshapen = server.send(Method::POST, target, JSON, r#"{"reinstall":"yes"}"#).await;
    let text = misshapen.text(422);
    assert!(
        text.starts_with("Failed to deserialize the JSON body into the target type: reinstall:"),
        "{text}"
    );
}

#[tokio::test]
async fn an_installation_can_be_made_to_fail() {
    let server = Server::start().await;
    server.control.fail_install("codex", "no network");
    let failed = server.send(Method::POST, "/v1/agents/codex/install", JSON, "{}").await;
    failed.problem(500, "install_failed");
    assert!(
        failed.body.ends_with(r#""agent":"codex","details":{"stderr":"no network"}}"#),
        "{}",
        failed.body
    );
}

#[tokio::test]
async fn a_running_server_shows_in_the_status_of_its_agent() {
    let uptime = |agent: &str| (agent == "mock").then_some(Duration::from_millis(1500));
    let server = Server::with(ControlPlane::builder().uptime(uptime)).await;
    let mock = server.get("/v1/agents/mock").await.json(200);
    assert_eq!(mock["serverStatus"], json!({ "status": "running", "uptimeMs": 1500 }));
    assert_eq!(server.get("/v1/agents/codex").await.json(200).get("serverStatus"), None);
}

#[tokio::test]
async fn additional_agents_are_listed_after_the_released_ones() {
    let builder = ControlPlane::builder().own_agents(["ready", "absent"]).installed(["ready"]);
    let server = Server::with(builder).await;
    let listed = server.get("/v1/agents").await.json(200);
    let ids: Vec<_> = listed["agents"].as_array().unwrap()[7..].iter().map(|agent| &agent["id"]).collect();
    assert_eq!(ids, ["absent", "ready"]);
    let ready = server.get("/v1/agents/ready?config=true").await.json(200);
    assert_eq!((&ready["installed"], &ready["configOptions"]), (&json!(true), &json!([])));
    assert_eq!(server.get("/v1/agents/absent").await.json(200)["installed"], false);
    let install = server.send(Method::POST, "/v1/agents/absent/install", JSON, "{}").await;
    assert_eq!(install.json(200)["already_installed"], false);
    assert!(server.control.is_installed("absent"));
}
