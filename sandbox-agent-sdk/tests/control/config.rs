//! Configuration of directories.

use mock_server::MockServer;
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::config::{
    LocalMcpServer, McpServerConfig, RemoteMcpServer, SkillSource, SkillsConfig,
};
use sandbox_agent_sdk::control::ControlPlane;

use crate::stub::{Stub, response};
use crate::support::plane;

/// A directory and a name that need encoding.
const DIRECTORY: &str = "/my project/50% #1?&directory=/etc";
const NAME: &str = "a+b/c ü";

#[tokio::test]
async fn mcp_servers_are_stored_and_deleted() {
    let server = MockServer::start().await;
    let config = plane(&server).config();
    let remote: McpServerConfig =
        RemoteMcpServer::new("https://mcp.example").header("x-key", "s3cret").into();
    let local: McpServerConfig = LocalMcpServer::new("server").into();
    assert_eq!(config.mcp_server(DIRECTORY, NAME).await.unwrap(), None);
    for value in [&remote, &local] {
        config.set_mcp_server(DIRECTORY, NAME, value).await.unwrap();
        assert_eq!(config.mcp_server(DIRECTORY, NAME).await.unwrap().as_ref(), Some(value));
    }
    assert_eq!(config.mcp_server(DIRECTORY, "other").await.unwrap(), None);
    let stored = server.control().root().join(&DIRECTORY[1..]).join(".sandbox-agent/config/mcp.json");
    assert!(std::fs::read_to_string(&stored).unwrap().contains(NAME));
    for _ in 0..2 {
        config.delete_mcp_server(DIRECTORY, NAME).await.unwrap();
        assert_eq!(config.mcp_server(DIRECTORY, NAME).await.unwrap(), None);
    }
}

#[tokio::test]
async fn skills_are_stored_and_deleted() {
    let server = MockServer::start().await;
    let config = plane(&server).config();
    let skills =
        SkillsConfig::new([SkillSource::github("owner/repository").reference("main").skill("review")]);
    assert_eq!(config.skills(DIRECTORY, NAME).await.unwrap(), None);
    config.set_skills(DIRECTORY, NAME, &skills).await.unwrap();
    assert_eq!(config.skills(DIRECTORY, NAME).await.unwrap(), Some(skills));
    config.delete_skills(DIRECTORY, NAME).await.unwrap();
    config.delete_skills(DIRECTORY, NAME).await.unwrap();
    assert_eq!(config.skills(DIRECTORY, NAME).await.unwrap(), None);
}

#[tokio::test]
async fn a_blank_name_is_rejected_by_the_server() {
    let server = MockServer::start().await;
    let config = plane(&server).config();
    for error in [
        config.mcp_server("/x", " ").await.unwrap_err(),
        config.set_skills("", "name", &SkillsConfig::default()).await.unwrap_err(),
        config.delete_mcp_server("/x", "").await.unwrap_err(),
    ] {
        assert_eq!(error.problem().unwrap().short_kind(), "invalid_request");
        assert_eq!(error.http().unwrap().status, 400);
    }
}

#[tokio::test]
async fn a_missing_route_is_not_mistaken_for_a_missing_value() {
    let problem = r#"{"type":"urn:sandbox-agent:error:invalid_request","title":"Not Found","status":404,"detail":"endpoint not found"}"#;
    let stub = Stub::answer(response("404 Not Found", "application/problem+json", problem)).await;
    let error = ControlPlane::new(&stub.url).unwrap().config().mcp_server("/x", "y").await.unwrap_err();
    assert_eq!(error.problem().unwrap().detail.as_deref(), Some("endpoint not found"));
}

#[tokio::test]
async fn an_undecodable_value_is_not_shown() {
    let body = r#"{"type":"remote","url":{"token":"s3cret"},"headers":"s3cret"}"#;
    let stub = Stub::answer(response("200 OK", "application/json", body)).await;
    let error = ControlPlane::new(&stub.url).unwrap().config().mcp_server("/x", "y").await.unwrap_err();
    assert!(matches!(error, Error::Decode { .. }), "{error:?}");
    assert!(!format!("{error:?} {error}").contains("s3cret"));
}
