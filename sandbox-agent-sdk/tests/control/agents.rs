//! The agents of a server.

use std::time::Duration;

use futures::StreamExt;
use mock_server::{AGENT_IDS, Fault, MockServer, Reply};
use sandbox_agent_sdk::control::{AgentDetail, ArtifactKind, InstallEvent, InstallOptions};
use sandbox_agent_sdk::error::Phase;
use sandbox_agent_sdk::{Error, SandboxAgentClient, ServerKind};

use crate::support::{impatient, plane, soon};

#[tokio::test]
async fn agents_are_listed_in_the_servers_order() {
    let server = MockServer::start().await;
    let agents = plane(&server).agents();
    let brief = agents.list().await.unwrap();
    assert_eq!(brief.iter().map(|agent| agent.id.as_str()).collect::<Vec<_>>(), AGENT_IDS);
    assert!(brief.iter().all(|agent| agent.config_options.is_none()));
    assert_eq!(server.requests().last().unwrap().query, "");
    let full = agents.list_with(AgentDetail::full().fresh()).await.unwrap();
    assert!(full.iter().all(|agent| agent.config_options.is_some()));
    assert_eq!(server.requests().last().unwrap().query, "config=true&no_cache=true");
}

#[tokio::test]
async fn one_agent_is_returned_with_its_options() {
    let server = MockServer::start().await;
    let agents = plane(&server).agents();
    let mock = agents.get("mock").await.unwrap();
    assert!(mock.installed && mock.capabilities.permissions);
    assert_eq!(mock.version.as_deref(), Some("builtin"));
    let brief = agents.get_with("mock", AgentDetail::brief()).await.unwrap();
    assert_eq!((brief.version, brief.config_options), (None, None));
}

#[tokio::test]
async fn running_agents_are_listed_where_every_connection_has_its_own() {
    let server = MockServer::start().await;
    let agents = plane(&server).agents();
    assert!(agents.running().await.unwrap().is_empty());
    let options = SandboxAgentClient::builder(server.url()).agent("mock").server(ServerKind::PerAgent);
    let client = options.auto_connect(false).build().unwrap();
    soon(client.connect()).await.unwrap();
    let running = agents.running().await.unwrap();
    assert_eq!((running.len(), running[0].agent.as_str()), (1, "mock"));
    assert!(running[0].server_id.starts_with("sdk-mock-") && running[0].created_at.is_some());
    assert_eq!(client.inspector_url(), format!("{}/ui/", server.url()));
}

#[tokio::test]
async fn an_unknown_agent_is_reported_by_name() {
    let server = MockServer::start().await;
    let agents = plane(&server).agents();
    for name in ["nope", "a/b", "../agents", "x?config=true", "ä ö", "%2e%2e", "a#b"] {
        let error = agents.get(name).await.unwrap_err();
        assert!(matches!(error, Error::UnsupportedAgent(_)), "{name}: {error:?}");
        assert_eq!(error.problem().unwrap().agent(), Some(name), "the name is sent unchanged");
        assert!(matches!(agents.install(name).await, Err(Error::UnsupportedAgent(_))), "{name}");
    }
    server.forget_requests();
    for name in ["", ".", ".."] {
        assert!(matches!(agents.get(name).await, Err(Error::Config(_))), "{name}");
        assert!(matches!(agents.install(name).await, Err(Error::Config(_))), "{name}");
    }
    assert!(server.requests().is_empty(), "a name that is invalid in a URL is not sent");
}

#[tokio::test]
async fn an_installation_can_be_awaited() {
    let server = MockServer::start().await;
    let agents = plane(&server).agents();
    let options = InstallOptions::new().agent_version("1.2.3");
    let result = agents.install_with("codex", options).await.unwrap();
    assert!(!result.already_installed);
    assert_eq!(result.artifacts[0].kind, ArtifactKind::NativeAgent);
    assert_eq!(result.artifacts[0].version.as_deref(), Some("1.2.3"));
    assert!(server.control().is_installed("codex"));
    assert!(agents.install("codex").await.unwrap().already_installed);
    let bodies: Vec<_> = server.requests().into_iter().map(|request| request.json().unwrap()).collect();
    assert_eq!(bodies, [serde_json::json!({"agentVersion": "1.2.3"}), serde_json::json!({})]);
}

#[tokio::test]
async fn an_installation_reports_progress() {
    let server = MockServer::start().await;
    let delay = Duration::from_millis(200);
    server.inject(Fault::SlowStart { delay }.on_path("/v1/agents/amp/install"));
    let mut installation = plane(&server).agents().install("amp").every(Duration::from_millis(20));
    assert!(server.requests().is_empty(), "nothing is sent before the first poll");
    let mut waited = Vec::new();
    let first = soon(installation.next()).await.unwrap().unwrap();
    assert!(matches!(first, InstallEvent::Started { agent, .. } if agent == "amp"));
    let finished = loop {
        match soon(installation.next()).await.unwrap().unwrap() {
            InstallEvent::StillInstalling { agent, elapsed, .. } => {
                assert_eq!(agent, "amp");
                waited.push(elapsed);
            }
            InstallEvent::Finished { result, elapsed, .. } => {
                assert!(!result.already_installed);
                break elapsed;
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(!waited.is_empty() && waited.is_sorted() && waited.last() <= Some(&finished), "{waited:?}");
    assert!(installation.next().await.is_none());
    assert!(server.control().is_installed("amp"));
    assert_eq!(server.requests().len(), 1, "one request per installation");
}

#[tokio::test]
async fn a_failed_installation_has_the_output_of_the_installer() {
    let server = MockServer::start().await;
    server.control().fail_install("pi", "no space left on device");
    let agents = plane(&server).agents();
    let mut installation = agents.install("pi");
    assert!(matches!(installation.next().await, Some(Ok(InstallEvent::Started { .. }))));
    let Some(Err(error)) = installation.next().await else { panic!("the installation did not fail") };
    assert!(matches!(error, Error::InstallFailed(_)));
    let problem = error.problem().unwrap();
    assert_eq!((problem.agent(), problem.status), (Some("pi"), Some(500)));
    assert_eq!(problem.detail_of("stderr").unwrap(), "no space left on device");
    assert!(installation.next().await.is_none());
}

#[tokio::test]
async fn an_installation_that_hangs_times_out() {
    let server = MockServer::builder().fault(Fault::PostHangs).start().await;
    let limit = Duration::from_millis(150);
    let agents = impatient(&server.url(), |timeouts| timeouts.install = Some(limit)).agents();
    let error = soon(async { agents.install("amp").await }).await.unwrap_err();
    let Error::Timeout(timeout) = &error else { panic!("{error:?}") };
    assert_eq!((timeout.phase, timeout.elapsed), (Phase::Headers, limit));
    assert!(error.maybe_executed(), "the server may be installing");
}

#[tokio::test]
async fn plain_text_rejections_are_preserved() {
    let text = "Failed to parse the request body as JSON: EOF while parsing\nsecond line";
    let reply = Reply {
        body: text.into(),
        content_type: Some("text/plain; charset=utf-8".into()),
        headers: vec![("retry-after".into(), "7".into())],
    };
    let fault = Fault::PostStatus { status: 400, execute: false, reply: Some(reply) };
    let server = MockServer::builder().fault(fault).start().await;
    let error = plane(&server).agents().install("mock").await.unwrap_err();
    let answer = error.http().unwrap();
    assert_eq!((answer.status, answer.body.as_str(), &answer.problem), (400, text, &None));
    assert_eq!(answer.content_type.as_deref(), Some("text/plain; charset=utf-8"));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    assert!(error.to_string().contains("EOF while parsing"));
    assert!(!error.maybe_executed());
}
