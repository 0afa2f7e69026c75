//! Relays connections into a sandbox without a network.

use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::copy;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

/// How often to check whether the sandbox exists.
const LOOK: Duration = Duration::from_millis(10);

/// The maximum number of concurrent connections; each needs several processes.
const MAX_CONNECTIONS: usize = 64;

/// Connects standard input and output to a port of the sandbox, in its network namespace.
const CONNECT: &str = r#"exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1; cat <&3 & cat >&3; kill $! 2>/dev/null"#;

/// Relays connections from a port of this machine to the same port in a sandbox.
///
/// Dropping it ends the connections. Processes of this machine join the sandbox's network with `nsenter`,
/// which needs no privileges, and connect with `bash`.
#[derive(Debug)]
pub(super) struct Relay {
    task: JoinHandle<()>,
}

/// The description of a sandbox by `bwrap`.
#[derive(Deserialize)]
struct Info {
    #[serde(rename = "child-pid")]
    child_pid: u32,
}

impl Relay {
    /// Starts to relay connections of this port as soon as `bwrap` has described its sandbox.
    pub(super) fn start(port: u16, info: PathBuf) -> Self {
        Self { task: tokio::spawn(relay(port, info)) }
    }

    /// Returns a port that is free on this machine.
    pub(super) fn free_port() -> std::io::Result<u16> {
        Ok(StdListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn relay(port: u16, info: PathBuf) {
    // The server checks that its port is free before it starts, so nothing may listen here earlier.
    let pid = loop {
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
                Ok((stream, _)) => drop(connections.spawn(pass_on(stream, pid, port))),
                Err(error) => {
                    tracing::debug!(%error, "accept failed");
                    sleep(LOOK).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

fn read(info: &Path) -> Option<Info> {
    serde_json::from_slice(&std::fs::read(info).ok()?).ok()
}

/// Relays one connection until either side closes it.
async fn pass_on(stream: TcpStream, pid: u32, port: u16) {
    let mut command = Command::new("nsenter");
    command.args([
        "--target",
        &pid.to_string(),
        "--user",
        "--net",
        "--preserve-credentials",
        "--",
        "bash",
        "-c",
    ]);
    command.args([CONNECT, "bash", &port.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let spawned = command.process_group(0).kill_on_drop(true).spawn();
    let Ok(mut child) = spawned.inspect_err(|error| tracing::warn!(%error, "nsenter failed to start")) else {
        return;
    };
    let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else { return };
    let (mut from_client, mut to_client) = stream.into_split();
    let forward = async {
        let _ = copy(&mut from_client, &mut input).await;
        drop(input);
    };
    let backward = copy(&mut output, &mut to_client);
    tokio::pin!(forward, backward);
    tokio::select! {
        // The end of the client's data closes the connection in the sandbox, which ends its output.
        () = &mut forward => drop((&mut backward).await),
        _ = &mut backward => {}
    }
}
