//! Starting a server.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::process::Command;

use super::group::Group;
use super::keeper::Keeper;
use super::log::Lines;
use super::server::LocalServer;
use super::{LocalError, LocalOptions};
use crate::{ClientOptions, Error, HealthWait, SandboxAgentClient};

/// How many ports are tried: a port that is free may be taken before the server has it.
const PORTS: usize = 5;

/// Starts the program, on another port if the one it was given was taken meanwhile.
///
/// Whoever answers on a port that was taken before is somebody else, and may be just as healthy.
pub(super) async fn launch(options: LocalOptions, binary: PathBuf) -> Result<LocalServer, LocalError> {
    let token = match &options.token {
        Some(token) => token.clone(),
        None => random_token()?,
    };
    let mut attempt = 1;
    let (keeper, lines, port) = loop {
        let port = match options.port {
            Some(port) if is_taken(port) => {
                return Err(LocalError::machine("port", io::Error::from(io::ErrorKind::AddrInUse)));
            }
            Some(port) => port,
            None => free_port().map_err(|error| LocalError::machine("free port", error))?,
        };
        let (keeper, lines) = spawn(&options, &binary, port, &token)?;
        match healthy(&options, keeper, &lines, port, &token).await {
            Ok(keeper) => break (keeper, lines, port),
            Err(LocalError::Died { .. }) if options.port.is_none() && attempt < PORTS && is_taken(port) => {
                tracing::debug!(port, "the port was taken before the server had it");
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    };
    let url = url(port);
    let mut client = ClientOptions::new(&url).token(&token).auto_connect(options.agent.is_some());
    if let Some(agent) = options.agent {
        client = client.agent(agent);
    }
    let client = (options.client)(client).build().map_err(|error| LocalError::Client(Box::new(error)))?;
    Ok(LocalServer::new(client, keeper, lines, url, token, binary))
}

fn spawn(
    options: &LocalOptions,
    binary: &Path,
    port: u16,
    token: &str,
) -> Result<(Keeper, Arc<Lines>), LocalError> {
    let mut command = Command::new(binary);
    command
        .args(["server", "--no-telemetry", "--host", "127.0.0.1", "--port", &port.to_string()])
        .args(["--token", token])
        // Otherwise its log goes to a file in its data folder.
        .env("SANDBOX_AGENT_LOG_STDOUT", "1")
        .envs(options.environment.iter().map(|(name, value)| (name, value)));
    if let Some(directory) = &options.directory {
        command.current_dir(directory);
    }
    let spawned = Group::spawn(command);
    let (group, stdout, stderr) =
        spawned.map_err(|error| LocalError::Spawn { binary: binary.to_owned(), source: Arc::new(error) })?;
    let lines = Arc::new(Lines::new(options.log));
    let keeper = Keeper::start(group, (stdout, stderr), Arc::clone(&lines), options.stop_timeout);
    Ok((keeper, lines))
}

/// Waits until the server is up; one that is not is ended.
async fn healthy(
    options: &LocalOptions,
    mut keeper: Keeper,
    lines: &Lines,
    port: u16,
    token: &str,
) -> Result<Keeper, LocalError> {
    let failed = |error: Error| LocalError::Client(Box::new(error));
    let probe = SandboxAgentClient::builder(url(port)).token(token).auto_connect(false);
    let health = probe.build().map_err(failed)?.health();
    let started = tokio::time::Instant::now();
    let wait = health.wait(HealthWait::within(options.start_timeout));
    let error = tokio::select! {
        biased;
        exit = keeper.ended() => return Err(LocalError::Died { exit, output: lines.last() }),
        outcome = wait => match outcome {
            Ok(_) => return Ok(keeper),
            Err(error) => error,
        },
    };
    let waited = started.elapsed();
    keeper.stop();
    let _ = keeper.ended().await;
    Err(LocalError::NotHealthy { waited, output: lines.last(), source: Box::new(error) })
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

/// 256 bits that nobody can guess.
fn random_token() -> Result<String, LocalError> {
    let mut bytes = [0; 32];
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.map_err(|error| LocalError::machine("randomness", error))?;
    let mut token = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(token, "{byte:02x}");
    }
    Ok(token)
}
