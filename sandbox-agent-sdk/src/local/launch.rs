//! Starts a server.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{Instant, sleep};

use super::credential::Credential;
use super::group::Group;
use super::log::Lines;
use super::server::LocalServer;
use super::supervisor::Supervisor;
use super::token::random_token;
use super::{LocalError, LocalOptions};
use crate::client::secret::Secret;
use crate::control::HealthWait;
use crate::process_tree::{Holders, Listener, ProcessTree, run_blocking};
use crate::{ClientOptions, Error, SandboxAgentClient};

/// How many ports are tried: another process may bind a free port before the server does.
const PORTS: usize = 5;
/// How often the table of sockets is read until the server listens.
const LISTENER_POLL: Duration = Duration::from_millis(10);

/// Starts the program. Tries another port if another process has bound the chosen one.
pub(super) async fn launch(options: LocalOptions, binary: PathBuf) -> Result<LocalServer, LocalError> {
    let token = match &options.token {
        Some(token) => token.clone(),
        None => random_token().map_err(|error| LocalError::machine("randomness", error))?,
    };
    let mut attempt = 1;
    let (supervisor, lines, port, credential) = loop {
        let port = match options.port {
            Some(port) if is_taken(port) => {
                return Err(LocalError::machine("port", io::Error::from(io::ErrorKind::AddrInUse)));
            }
            Some(port) => port,
            None => free_port().map_err(|error| LocalError::machine("free port", error))?,
        };
        let (supervisor, lines) = spawn(&options, &binary, port, &token)?;
        match healthy(&options, supervisor, &lines, port, &token).await {
            Ok((supervisor, credential)) => break (supervisor, lines, port, credential),
            Err(error) if options.port.is_none() && attempt < PORTS && lost_port(&error, port) => {
                tracing::debug!(port, "another process bound the port before the server did");
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    };
    let url = url(port);
    let mut client = authorised(ClientOptions::new(&url), credential);
    client = client.auto_connect(options.agent.is_some());
    if let Some(agent) = options.agent {
        client = client.agent(agent);
    }
    let client = (options.client)(client).build().map_err(|error| LocalError::Client(Box::new(error)))?;
    supervisor.attach(client.clone());
    Ok(LocalServer::new(client, supervisor, lines, url, token, binary))
}

fn authorised(options: ClientOptions, credential: Arc<Credential>) -> ClientOptions {
    options.token_provider(move |_| {
        let credential = Arc::clone(&credential);
        async move { credential.token().await }
    })
}

fn spawn(
    options: &LocalOptions,
    binary: &Path,
    port: u16,
    token: &Secret,
) -> Result<(Supervisor, Arc<Lines>), LocalError> {
    let mut command = Command::new(binary);
    options.inherited.apply(&mut command);
    command
        .args(["server", "--no-telemetry", "--host", "127.0.0.1", "--port", &port.to_string()])
        .args(["--token", token.expose()])
        // By default the server logs to a file in its data directory.
        .env("SANDBOX_AGENT_LOG_STDOUT", "1")
        .envs(options.environment.iter().map(|(name, value)| (name, value)));
    if let Some(directory) = &options.directory {
        command.current_dir(directory);
    }
    let spawned = Group::spawn(command);
    let (group, stdout, stderr) =
        spawned.map_err(|error| LocalError::Spawn { binary: binary.to_owned(), source: Arc::new(error) })?;
    let lines = Arc::new(Lines::new(options.log));
    let supervisor = Supervisor::start(group, (stdout, stderr), Arc::clone(&lines), options.stop_timeout);
    Ok((supervisor, lines))
}

/// Waits until the server is healthy. Stops it if that fails.
async fn healthy(
    options: &LocalOptions,
    mut supervisor: Supervisor,
    lines: &Lines,
    port: u16,
    token: &Secret,
) -> Result<(Supervisor, Arc<Credential>), LocalError> {
    let started = Instant::now();
    let failure = tokio::select! {
        biased;
        exit = supervisor.ended() => return Err(LocalError::Died { exit, output: lines.last() }),
        outcome = ready(options, supervisor.tree(), port, token) => match outcome {
            Ok(credential) => return Ok((supervisor, credential)),
            Err(failure) => failure,
        },
    };
    let waited = started.elapsed();
    supervisor.stop();
    let _ = supervisor.ended().await;
    Err(match failure {
        Failure::NotHealthy(error) => {
            LocalError::NotHealthy { waited, output: lines.last(), source: Box::new(error) }
        }
        Failure::Other(error) => error,
    })
}

/// Why a running server is not used.
enum Failure {
    NotHealthy(Error),
    Other(LocalError),
}

/// Waits until the server listens, and then until it is healthy.
///
/// Sends nothing before the listening socket was found in the server's process tree. Otherwise another
/// process on that port could receive the token.
async fn ready(
    options: &LocalOptions,
    tree: &Arc<ProcessTree>,
    port: u16,
    token: &Secret,
) -> Result<Arc<Credential>, Failure> {
    let failed = |error: Error| Failure::Other(LocalError::Client(Box::new(error)));
    let started = Instant::now();
    let mut foreign = false;
    let holders: Option<Holders> = loop {
        let listener = run_blocking(tree, move |tree| tree.listener(port)).await;
        match listener.map_err(|error| Failure::Other(LocalError::machine("table of sockets", error)))? {
            Listener::Member(holders) => break Some(holders),
            Listener::Unknown => break None,
            #[cfg(feature = "providers")]
            Listener::Foreign if options.relayed && ProcessTree::listens_itself(port).unwrap_or(false) => {
                break None;
            }
            // If the server exits between two reads of the tables, its socket looks foreign once.
            Listener::Foreign if foreign => {
                return Err(Failure::Other(LocalError::ForeignListener { port }));
            }
            listener => foreign = matches!(listener, Listener::Foreign),
        }
        if started.elapsed() >= options.start_timeout {
            // Probes without a token, to report the failure.
            let probe = SandboxAgentClient::builder(url(port)).auto_connect(false).build().map_err(failed)?;
            if let Err(error) = probe.health().check().await {
                return Err(Failure::NotHealthy(error));
            }
        }
        sleep(LISTENER_POLL).await;
    };
    let credential = Credential::new(Arc::clone(tree), port, token.clone(), holders);
    let probe = authorised(SandboxAgentClient::builder(url(port)), Arc::clone(&credential));
    let probe = probe.auto_connect(false);
    let health = probe.build().map_err(failed)?.health();
    let left = options.start_timeout.saturating_sub(started.elapsed());
    health.wait(HealthWait::within(left)).await.map_err(Failure::NotHealthy)?;
    Ok(credential)
}

/// Whether the start failed because another process bound its port.
fn lost_port(error: &LocalError, port: u16) -> bool {
    match error {
        LocalError::ForeignListener { .. } => true,
        LocalError::Died { .. } => is_taken(port),
        _ => false,
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}
