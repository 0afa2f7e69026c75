//! Every call, for tests of common behaviour.

use std::io;

use futures::stream;
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::config::{LocalMcpServer, McpServerConfig, SkillsConfig};
use sandbox_agent_sdk::control::processes::RunProcess;
use sandbox_agent_sdk::control::{ControlPlane, FsMove, HealthWait, Upload};

/// The number of calls. Each sends one request.
pub(crate) const CALLS: usize = 32;

/// Makes every call and returns the errors.
pub(crate) async fn every_call(server: &ControlPlane) -> Vec<Error> {
    let (files, agents, config) = (server.files(), server.agents(), server.config());
    let mcp: McpServerConfig = LocalMcpServer::new("x").into();
    let skills = SkillsConfig::default();
    let (processes, desktop) = (server.processes(), server.desktop());
    [
        server.health().check().await.err(),
        server.health().wait(HealthWait::default()).await.err(),
        agents.list().await.err(),
        agents.get("mock").await.err(),
        agents.install("mock").await.err(),
        files.make_directory("/d").await.err(),
        files.write("/d/x", "y").await.err(),
        files.write("/d/s", Upload::stream(stream::iter([Ok::<_, io::Error>("y")]))).await.err(),
        files.upload_tar("/d", vec![0; 1024]).await.err(),
        files.list("/d").await.err(),
        files.stat("/d/x").await.err(),
        files.exists("/d/x").await.err(),
        files.read("/d/x").await.err(),
        files.read_text("/d/x").await.err(),
        files.open("/d/x").await.err(),
        files.rename(FsMove::new("/d/x", "/d/y")).await.err(),
        files.delete("/d/y").await.err(),
        files.delete_all("/d").await.err(),
        config.set_mcp_server("/c", "m", &mcp).await.err(),
        config.mcp_server("/c", "m").await.err(),
        config.delete_mcp_server("/c", "m").await.err(),
        config.set_skills("/c", "s", &skills).await.err(),
        config.skills("/c", "s").await.err(),
        config.delete_skills("/c", "s").await.err(),
        processes.config().await.err(),
        processes.run(RunProcess::new("true")).await.err(),
        processes.list().await.err(),
        desktop.status().await.err(),
        desktop.stop().await.err(),
        desktop.recordings().await.err(),
        desktop.stream_status().await.err(),
        desktop.stop_stream().await.err(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
