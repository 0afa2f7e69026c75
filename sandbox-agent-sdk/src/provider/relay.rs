//! Relays connections into a sandbox without a network.

use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::convert::text::printable;
use crate::process_tree::ProcessTree;

/// How often to check whether the sandbox exists.
const LOOK: Duration = Duration::from_millis(10);

/// The maximum number of concurrent connections, each of which needs three processes. More than one for each running
/// turn, so that cancels and responses to agent requests are not delayed.
const MAX_CONNECTIONS: usize = 1024;

/// How much of the errors of a connection is logged.
const MAX_ERROR: u64 = 1024;

/// Connects standard input and output to a port of the sandbox, in its network namespace. It reports no errors: until
/// the server listens, connections are refused. Its arguments are the port and the path of `cat`.
///
/// The end of either direction ends the connection, after everything in that direction was passed on. The shell has
/// standard output open, so it must not wait for the client when the server has closed the connection.
const CONNECT: &str = r#"exec 2>/dev/null; exec 3<>"/dev/tcp/127.0.0.1/$1" 4<&0 || exit 1
"$2" <&3 & "$2" <&4 >&3 & wait -n; kill %1 %2"#;

/// Relays connections of this user from a port of this machine to the same port in a sandbox.
///
/// Dropping it ends the connections. Processes of this machine join the sandbox's network with `nsenter`,
/// which needs no privileges, and connect with `bash`.
#[derive(Debug)]
pub(super) struct Relay {
    task: JoinHandle<()>,
    /// Ends the task with the server.
    end: Option<JoinHandle<()>>,
}

/// The absolute paths of the programs that each connection runs on this machine.
#[derive(Debug, Clone)]
pub(super) struct RelayPrograms {
    nsenter: PathBuf,
    bash: PathBuf,
    cat: PathBuf,
}

impl RelayPrograms {
    /// Finds the programs with a function that returns the path of a program that other users cannot replace.
    pub(super) fn find<E>(mut find: impl FnMut(&str) -> Result<PathBuf, E>) -> Result<Self, E> {
        Ok(Self { nsenter: find("nsenter")?, bash: find("bash")?, cat: find("cat")? })
    }
}

/// How to reach a port of a sandbox.
#[derive(Debug, Clone)]
struct Way {
    programs: RelayPrograms,
    pid: u32,
    port: u16,
}

/// The description of a sandbox by `bwrap`.
#[derive(Deserialize)]
struct Info {
    #[serde(rename = "child-pid")]
    child_pid: u32,
}

impl Relay {
    /// Starts to relay connections of this port as soon as `bwrap` has described its sandbox.
    pub(super) fn start(port: u16, info: PathBuf, programs: RelayPrograms) -> Self {
        let way = Way { programs, pid: 0, port };
        Self { task: tokio::spawn(relay(way, info)), end: None }
    }

    /// Stops listening when the server ends. Its process id can then belong to another process.
    pub(super) fn end_with(&mut self, server: impl Future<Output = ()> + Send + 'static) {
        let task = self.task.abort_handle();
        self.end = Some(tokio::spawn(async move {
            server.await;
            task.abort();
        }));
    }

    /// Returns a port that is free on this machine.
    pub(super) fn free_port() -> std::io::Result<u16> {
        Ok(StdListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
        self.end.iter().for_each(JoinHandle::abort);
    }
}

async fn relay(mut way: Way, info: PathBuf) {
    let port = way.port;
    // The server checks that its port is free before it starts, so nothing may listen here earlier.
    way.pid = loop {
        match read(&info) {
            Some(info) => break info.child_pid,
            None => sleep(LOOK).await,
        }
    };
    let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, port, "a sandbox without a network is unreachable");
            return;
        }
    };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    if !is_own(&stream).await {
                        tracing::debug!(port, "a connection of another user to a sandbox was closed");
                        continue;
                    }
                    connections.spawn(pass_on(stream, way.clone()));
                    if connections.len() == MAX_CONNECTIONS {
                        tracing::warn!(port, limit = MAX_CONNECTIONS, "connections to a sandbox reached their limit");
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "accept failed");
                    sleep(LOOK).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Whether a process of this user made a connection. Others must not reach the server: in its network namespace, it
/// cannot see whose connections it gets.
async fn is_own(stream: &TcpStream) -> bool {
    let (Ok(SocketAddr::V4(client)), Ok(SocketAddr::V4(server))) = (stream.peer_addr(), stream.local_addr())
    else {
        return false;
    };
    let looked = spawn_blocking(move || ProcessTree::is_client_own(client, server)).await;
    matches!(looked, Ok(Ok(true)))
}

fn read(info: &Path) -> Option<Info> {
    serde_json::from_slice(&std::fs::read(info).ok()?).ok()
}

/// Relays one connection until either side closes it.
async fn pass_on(stream: TcpStream, way: Way) {
    let mut command = Command::new(&way.programs.nsenter);
    command.args(["--target", &way.pid.to_string(), "--user", "--net", "--preserve-credentials", "--"]);
    command.arg(&way.programs.bash).args(["-c", CONNECT, "bash", &way.port.to_string()]);
    command.arg(&way.programs.cat);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let spawned = command.process_group(0).kill_on_drop(true).spawn();
    let Ok(mut child) = spawned.inspect_err(|error| tracing::warn!(%error, "nsenter failed to start")) else {
        return;
    };
    let (Some(input), Some(output), Some(errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return;
    };
    // The processes close all three when the transfer has ended.
    tokio::join!(transfer(stream, input, output), report(errors, way.port));
}

/// Copies both ways, and closes everything at the end of either.
async fn transfer(stream: TcpStream, mut input: ChildStdin, mut output: ChildStdout) {
    let (mut from_client, mut to_client) = stream.into_split();
    let forward = async {
        let _ = copy(&mut from_client, &mut input).await;
        drop(input);
    };
    let backward = copy(&mut output, &mut to_client);
    tokio::pin!(forward, backward);
    tokio::select! {
        // The end of the client's data closes the connection in the sandbox, which ends its output. A client of HTTP
        // does not wait for a response after it has closed its side.
        () = &mut forward => drop((&mut backward).await),
        _ = &mut backward => {}
    }
}

/// Logs why a connection fails, such as a missing privilege.
async fn report(errors: impl AsyncRead + Unpin, port: u16) {
    let mut text = Vec::new();
    let _ = errors.take(MAX_ERROR).read_to_end(&mut text).await;
    let text = String::from_utf8_lossy(&text);
    if !text.trim().is_empty() {
        tracing::warn!(port, error = %printable(text.trim()), "a connection to a sandbox failed");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener};
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::CONNECT;

    #[test]
    fn a_connection_that_the_server_closes_is_closed_for_the_client_after_all_data() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port().to_string();
        let mut bash = Command::new("/bin/bash")
            .args(["-c", CONNECT, "bash", &port, "/bin/cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The client has not closed its side.
        let input = bash.stdin.take().unwrap();
        let mut output = bash.stdout.take().unwrap();
        let (mut connection, _) = server.accept().unwrap();
        let sent = vec![7; 1 << 20];
        let (received, ended) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut data = Vec::new();
            output.read_to_end(&mut data).unwrap();
            received.send(data).unwrap();
        });
        connection.write_all(&sent).unwrap();
        drop(connection);
        let data = ended.recv_timeout(Duration::from_secs(20));
        drop(input);
        bash.wait().unwrap();
        assert!(data.expect("the connection is open") == sent);
    }

    #[test]
    fn a_connection_runs_no_program_of_the_search_path() {
        let scratch = tempfile::tempdir().unwrap();
        let (planted, owned) = (scratch.path().join("cat"), scratch.path().join("owned"));
        fs::write(&planted, format!("#!/bin/sh\n: > {}\n", owned.display())).unwrap();
        fs::set_permissions(&planted, fs::Permissions::from_mode(0o755)).unwrap();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port().to_string();
        let mut bash = Command::new("/bin/bash")
            .args(["-c", CONNECT, "bash", &port, "/bin/cat"])
            .env("PATH", scratch.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut connection, _) = server.accept().unwrap();
        let mut input = bash.stdin.take().unwrap();
        input.write_all(b"ping").unwrap();
        let mut received = [0; 4];
        let there = connection.read_exact(&mut received);
        connection.write_all(b"pong").unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        let mut output = [0; 4];
        let back = bash.stdout.take().unwrap().read_exact(&mut output);
        drop(input);
        bash.wait().unwrap();
        assert!(!owned.exists(), "a planted program ran");
        assert!(there.is_ok() && back.is_ok() && (&received, &output) == (b"ping", b"pong"));
    }
}
