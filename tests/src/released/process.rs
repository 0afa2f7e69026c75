//! A running released server.

use std::{
    fs::{self, File, Permissions},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::LIMIT;

/// How many ports are tried: another process may bind a free port before the server does.
const ATTEMPTS: usize = 5;

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct ReleasedSetup {
    /// The server's program.
    pub program: PathBuf,
    /// The command of its agent `mock`.
    pub agent: Vec<String>,
    /// The token it requires.
    pub token: Option<String>,
    /// The server's request timeout.
    pub request_limit: Option<Duration>,
}

/// A released server on a free port, with its own data folder.
///
/// Dropping this value kills the server and its agents, also during a panic.
#[derive(Debug)]
pub struct ReleasedServer {
    setup: ReleasedSetup,
    home: TempDir,
    port: u16,
    child: Option<Child>,
}

impl ReleasedServer {
    /// Starts a server and waits until it listens.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start(setup: ReleasedSetup) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        install_agent(home.path(), &setup.agent);
        let mut server = Self { setup, home, port: 0, child: None };
        for _ in 0..ATTEMPTS {
            server.port = free_port();
            if server.launch().await {
                return server;
            }
        }
        panic!("the server failed to start: {}", server.log());
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns its data folder.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Returns the process id of the server, which is also the id of its process group.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns its output.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// Kills the server and all its agents.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if let Ok(id) = i32::try_from(child.id()) {
            // The leader was not waited for, so its id was not reused.
            let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
        }
        let _ = child.wait();
    }

    /// Restarts a killed server on the same port.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn restart(&mut self) {
        self.kill();
        let begun = Instant::now();
        while !self.launch().await {
            // An outgoing connection of another process may use the port for a moment.
            assert!(begun.elapsed() < LIMIT, "the server failed to restart: {}", self.log());
        }
    }

    /// Returns whether the server started. It exits if its port is in use.
    async fn launch(&mut self) -> bool {
        let log = File::create(self.home.path().join("log")).expect("a log file");
        let mut command = Command::new(&self.setup.program);
        command
            .args(["server", "--no-telemetry", "--host", "127.0.0.1", "--port", &self.port.to_string()])
            .current_dir(self.home.path())
            .env("HOME", self.home.path())
            .env("XDG_DATA_HOME", self.home.path())
            .env_remove("SANDBOX_AGENT_ACP_REQUEST_TIMEOUT_MS")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .process_group(0);
        match &self.setup.token {
            Some(token) => command.args(["--token", token]),
            None => command.arg("--no-token"),
        };
        if let Some(limit) = self.setup.request_limit {
            command.env("SANDBOX_AGENT_ACP_REQUEST_TIMEOUT_MS", limit.as_millis().to_string());
        }
        self.child = Some(command.spawn().expect("the server's program can be run"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            if self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_some()))
            {
                self.kill();
                return false;
            }
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the server did not listen within {LIMIT:?}: {}", self.log());
    }
}

impl Drop for ReleasedServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a free port.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound socket").port()
}

/// Returns whether a process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

/// Installs a command as the agent `mock` of the server with this data folder.
///
/// # Panics
/// If the folder is not writable.
pub fn install_agent(data: &Path, command: &[String]) {
    install_agent_as(data, "mock", command);
}

/// Installs a command as an agent of the server with this data folder.
///
/// For every agent except `mock` the server requires a native program beside the launcher, which it does not run.
///
/// # Panics
/// If the folder is not writable.
pub fn install_agent_as(data: &Path, name: &str, command: &[String]) {
    let folder = data.join("sandbox-agent/bin/agent_processes");
    fs::create_dir_all(&folder).expect("a folder for the agent");
    let words: Vec<String> =
        command.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
    let native = data.join("sandbox-agent/bin").join(name);
    for (path, text) in [
        (folder.join(format!("{name}-acp")), format!("#!/bin/sh\nexec {}\n", words.join(" "))),
        (native, "#!/bin/sh\necho 0.0.0\n".to_owned()),
    ] {
        fs::write(&path, text).expect("a launcher");
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a launcher that can be run");
    }
}
