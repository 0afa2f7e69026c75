//! One running server.

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

/// How many ports are tried: another process may take a free port before the server does.
const ATTEMPTS: usize = 5;

/// What a server is started with.
#[derive(Debug, Clone)]
pub struct ReleasedSetup {
    /// The server's program.
    pub program: PathBuf,
    /// The command of its agent `mock`.
    pub agent: Vec<String>,
    /// The token it requires.
    pub token: Option<String>,
    /// How long it lets a request wait for its agent.
    pub request_limit: Option<Duration>,
}

/// A released server on a free port, with a data folder of its own. It ends with this value, also in a panic, and so
/// do its agents.
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
    /// When it does not come up.
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
        panic!("the server does not start: {}", server.log());
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its data folder.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The process id of the server, which is also that of its process group.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// What it printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// Kills it, with all its agents.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if let Ok(id) = i32::try_from(child.id()) {
            // The leader has not been waited for, so the number is still its own.
            let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
        }
        let _ = child.wait();
    }

    /// Starts it again on the same port after it was killed.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn restart(&mut self) {
        self.kill();
        let begun = Instant::now();
        while !self.launch().await {
            // The port may be somebody's outgoing connection for a moment.
            assert!(begun.elapsed() < LIMIT, "the server does not start again: {}", self.log());
        }
    }

    /// Whether the server came up; one that ended instead has met a port that was taken.
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
        panic!("the server does not listen within {LIMIT:?}: {}", self.log());
    }
}

impl Drop for ReleasedServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound socket").port()
}

/// Whether a process is there and no zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

/// Makes a command the launcher of the agent `mock` of a server with this data folder.
///
/// # Panics
/// When the folder cannot be written to.
pub fn install_agent(data: &Path, command: &[String]) {
    install_agent_as(data, "mock", command);
}

/// Makes a command the launcher of an agent of a server with this data folder.
///
/// The server wants a native program beside the launcher of every agent but `mock`, and does not run it.
///
/// # Panics
/// When the folder cannot be written to.
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
