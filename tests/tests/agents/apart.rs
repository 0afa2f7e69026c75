//! A mock server in a process of its own, which a row kills.

use std::{
    io::{Read, Write},
    path::Path,
    process::{ExitCode, Stdio},
};

use mock_server::{MockServer, ProcessAgent};
use sdk_tests::agents::{AgentHome, RealAgent};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::bench::in_time;

/// Starts a mock server with this agent.
pub(crate) async fn mock(agent: &str, launcher: &Path, project: &Path) -> MockServer {
    let process = ProcessAgent::new(launcher).cwd(project);
    MockServer::builder().agent(agent, process).default_agent(agent).replay_buffer(16_384).start().await
}

/// `AGENT LAUNCHER PROJECT`: starts a server, says its URL, and waits for the end of the input.
pub(crate) async fn run(arguments: &[String]) -> ExitCode {
    let [agent, launcher, project] = arguments else { return ExitCode::FAILURE };
    let server = mock(agent, Path::new(launcher), Path::new(project)).await;
    let mut out = std::io::stdout();
    writeln!(out, "{}", server.url()).and_then(|()| out.flush()).expect("standard output is open");
    // Only the end of the input matters.
    let _ = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await;
    ExitCode::SUCCESS
}

/// The process of such a server.
pub(crate) struct Apart {
    child: Child,
    url: String,
}

impl Apart {
    pub(crate) async fn start(agent: RealAgent, home: &AgentHome) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--server", agent.name()]).args([home.launcher(), home.project()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("this program can be run");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let url = in_time("the server", lines.next_line()).await.expect("its output").expect("its URL");
        Self { child, url }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Kills the process, and nothing else.
    pub(crate) async fn kill(&mut self) {
        in_time("the end of the server", self.child.kill()).await.expect("it can be killed");
    }
}
