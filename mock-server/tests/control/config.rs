//! Named configuration values.

use std::fs;

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{JSON, Server};

#[tokio::test]
async fn an_mcp_server_is_stored_and_normalised() {
    let server = Server::start().await;
    let target = |name: &str| format!("/v1/config/mcp?directory=/cfg&mcpName={name}");
    let missing = server.get(&target("a")).await;
    assert_eq!(missing.problem(404, "session_not_found"), "session not found: mcp:a");
    let local = r#"{"type":"local","command":"npx","args":["-y","x"],"env":{"A":"1"},"timeoutMs":5}"#;
    server.send(Method::PUT, &target("a"), JSON, local).await.nothing(204);
    let kept = server.get(&target("a")).await;
    kept.json(200);
    assert_eq!(kept.body, local);
    let http = r#"{"type":"http","url":"http://x","headers":{"h":"v"},"oauth":false,"transport":"sse"}"#;
    server.send(Method::PUT, &target("b"), JSON, http).await.nothing(204);
    let normalised = server.get("/v1/config/mcp?directory=/cfg&mcp_name=b").await;
    assert_eq!(normalised.body, http.replace(r#""http","url"#, r#""remote","url"#));

    for _ in 0..2 {
        server.delete(&target("a")).await.nothing(204);
    }
    server.get(&format!("{}&x=1", target("a"))).await.problem(404, "session_not_found");
    let on_disk = fs::read_to_string(server.on_disk("cfg/.sandbox-agent/config/mcp.json")).unwrap();
    assert!(on_disk.starts_with("{\n  \"b\": {\n    \"type\": \"remote\","), "{on_disk}");
    let names = fs::read_dir(server.on_disk("cfg/.sandbox-agent/config")).unwrap().count();
    assert_eq!(names, 1, "no temporary file remains");
}

#[tokio::test]
async fn skills_are_stored_beside_the_mcp_servers() {
    let server = Server::start().await;
    let target = "/v1/config/skills?directory=cfg&skillName=k";
    let value = r#"{"sources":[{"type":"github","source":"o/r","skills":["x"],"ref":"main","subpath":"s"}]}"#;
    server.send(Method::PUT, target, JSON, value).await.nothing(204);
    assert_eq!(server.get("/v1/config/skills?directory=/cfg&skill_name=k").await.body, value);
    let missing = server.get("/v1/config/skills?directory=/cfg&skillName=zz").await;
    assert_eq!(missing.problem(404, "session_not_found"), "session not found: skills:zz");
    server.delete(target).await.nothing(204);
    server.get(target).await.problem(404, "session_not_found");
    assert_eq!(fs::read_to_string(server.on_disk("cfg/.sandbox-agent/config/skills.json")).unwrap(), "{}");
}

#[tokio::test]
async fn a_blank_parameter_is_a_problem_and_a_missing_one_is_plain_text() {
    let server = Server::start().await;
    let table = [
        ("/v1/config/mcp?directory=&mcpName=a", "directory"),
        ("/v1/config/mcp?directory=/cfg&mcpName=%20", "mcpName"),
        ("/v1/config/skills?directory=/cfg&skillName=", "skillName"),
    ];
    for (target, key) in table {
        let detail = server.get(target).await.problem(400, "invalid_request");
        assert_eq!(detail, format!("invalid request: missing required '{key}' query parameter"));
    }
    let absent = server.get("/v1/config/mcp?directory=/cfg").await;
    assert_eq!(absent.text(400), "Failed to deserialize query string: missing field `mcpName`");
}

#[tokio::test]
async fn invalid_bodies_are_rejected_in_plain_text() {
    let server = Server::start().await;
    let target = "/v1/config/mcp?directory=/cfg&mcpName=d";
    let weird = server.send(Method::PUT, target, JSON, r#"{"type":"weird"}"#).await;
    assert_eq!(
        weird.text(422),
        "Failed to deserialize the JSON body into the target type: type: unknown variant `weird`, \
         expected one of `local`, `stdio`, `http`, `remote` at line 1 column 15"
    );
    server.send(Method::PUT, target, "text/plain", "{}").await.text(415);
    server.send(Method::PUT, target, JSON, "{").await.text(400);
    let skills = "/v1/config/skills?directory=/cfg&skillName=d";
    server.send(Method::PUT, skills, JSON, r#"{"sources":[{"type":"x"}]}"#).await.text(422);
    assert!(!server.on_disk("cfg").exists());
}

#[tokio::test]
async fn concurrent_changes_are_all_stored() {
    let server = Server::start().await;
    let puts = (0..40).map(|number| {
        let target = format!("/v1/config/mcp?directory=/cfg&mcpName=n{number}");
        let value = json!({ "type": "local", "command": number.to_string() }).to_string();
        let server = &server;
        async move { server.send(Method::PUT, &target, JSON, value).await.nothing(204) }
    });
    join_all(puts).await;
    let text = fs::read_to_string(server.on_disk("cfg/.sandbox-agent/config/mcp.json")).unwrap();
    let kept: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(kept.as_object().unwrap().len(), 40);
}

#[tokio::test]
async fn a_file_that_is_not_json_is_reported_and_left_unchanged() {
    let server = Server::start().await;
    let path = server.on_disk("cfg/.sandbox-agent/config/mcp.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "oops").unwrap();
    let target = "/v1/config/mcp?directory=/cfg&mcpName=a";
    server.get(target).await.problem(502, "stream_error");
    server.delete(target).await.problem(502, "stream_error");
    assert_eq!(fs::read_to_string(&path).unwrap(), "oops");
}
