//! Starts a server.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use super::access::Access;
use super::credential::Credential;
use super::group::Group;
use super::log::Lines;
use super::server::LocalServer;
use super::supervisor::Supervisor;
use super::token::random_token;
use super::{LocalError, LocalOptions};
use crate::client::secret::Secret;
use crate::control::HealthWait;
use crate::process_tree::{Listener, ProcessTree, run_blocking};
use crate::{ClientOptions, Error, SandboxAgentClient};

/// How many ports are tried: another process may bind a free port before the server does.
const PORTS: usize = 5;
/// How often the table of sockets is read until the server listens.
const LISTENER_POLL: Duration = Duration::from_millis(10);
/// The timeout of the probe that finds out why no listener was seen.
const LAST_PROBE: Duration = Duration::from_secs(1);

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
    let access = Access::new(credential, supervisor.clients());
    let mut client = access.authorise(ClientOptions::new(&url));
    client = client.auto_connect(options.agent.is_some());
    if let Some(agent) = options.agent {
        client = client.agent(agent);
    }
    let client = (options.client)(client).build().map_err(|error| LocalError::Client(Box::new(error)))?;
    access.attach(&client).await;
    Ok(LocalServer::new(client, supervisor, lines, url, access, binary))
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
        Failure::NoListener => LocalError::NoListener { port, waited, output: lines.last() },
        Failure::Other(error) => error,
    })
}

/// Why a running server is not used.
#[derive(Debug)]
enum Failure {
    NotHealthy(Error),
    NoListener,
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
    let started = Instant::now();
    let owner = options.owner;
    let look = || run_blocking(tree, move |tree| tree.listener(owner, port));
    listening(options, port, look).await?;
    let credential = Credential::new(Arc::clone(tree), port, token.clone(), owner);
    let probe = credential.authorise(SandboxAgentClient::builder(url(port))).auto_connect(false);
    let health = probe.build().map_err(invalid_options)?.health();
    let left = options.start_timeout.saturating_sub(started.elapsed());
    health.wait(HealthWait::within(left)).await.map_err(Failure::NotHealthy)?;
    Ok(credential)
}

/// Waits until the owner of the port listens, where the system exposes that.
async fn listening<L: Future<Output = io::Result<Listener>>>(
    options: &LocalOptions,
    port: u16,
    look: impl Fn() -> L,
) -> Result<(), Failure> {
    let started = Instant::now();
    let mut foreign = false;
    loop {
        let listener = look().await;
        match listener.map_err(|error| Failure::Other(LocalError::machine("table of sockets", error)))? {
            Listener::Owner | Listener::Unknown => return Ok(()),
            // If the server exits between two reads of the tables, its socket looks foreign once.
            Listener::Foreign if foreign => {
                return Err(Failure::Other(LocalError::ForeignListener { port }));
            }
            listener => foreign = matches!(listener, Listener::Foreign),
        }
        if started.elapsed() >= options.start_timeout {
            return Err(why_unseen(port).await);
        }
        sleep(LISTENER_POLL).await;
    }
}

/// Returns why no listener was seen in time. Probes without a token.
async fn why_unseen(port: u16) -> Failure {
    let probe = match SandboxAgentClient::builder(url(port)).auto_connect(false).build() {
        Ok(probe) => probe,
        Err(error) => return invalid_options(error),
    };
    match timeout(LAST_PROBE, probe.health().check()).await {
        Ok(Err(error)) => Failure::NotHealthy(error),
        // Something responds that the table of sockets does not show, or accepts connections and is silent.
        Ok(Ok(_)) | Err(_) => Failure::NoListener,
    }
}

fn invalid_options(error: Error) -> Failure {
    Failure::Other(LocalError::Client(Box::new(error)))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::{Failure, Listener, listening};
    use crate::SandboxAgentClient;

    const START: Duration = Duration::from_millis(50);

    /// Waits for a listener that the table of sockets never shows, while the port calls `serve` for each connection.
    async fn unseen<S: Future<Output = ()> + Send + 'static>(serve: fn(TcpStream) -> S) -> Failure {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let number = port.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            while let Ok((connection, _)) = port.accept().await {
                tokio::spawn(serve(connection));
            }
        });
        let options = SandboxAgentClient::start_local().start_timeout(START);
        let waiting = listening(&options, number, || async { Ok(Listener::None) });
        let outcome = timeout(Duration::from_secs(20), waiting).await.expect("the start has no end");
        server.abort();
        match outcome {
            Ok(()) => panic!("nothing is known to listen"),
            Err(failure) => failure,
        }
    }

    #[tokio::test]
    async fn a_start_without_a_visible_listener_ends_although_the_port_responds() {
        let healthy = unseen(|mut connection| async move {
            let _ = connection.read(&mut [0; 4096]).await;
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let body = r#"{"status":"ok"}"#;
            let response = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
            let _ = connection.write_all(response.as_bytes()).await;
        });
        assert!(matches!(healthy.await, Failure::NoListener));
    }

    #[tokio::test]
    async fn a_start_without_a_visible_listener_ends_although_the_port_is_silent() {
        let silent = unseen(|connection| async move {
            std::future::pending::<()>().await;
            drop(connection);
        });
        assert!(matches!(silent.await, Failure::NoListener));
    }
}
