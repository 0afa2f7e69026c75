//! A server in a bubblewrap sandbox.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;

use super::held::Held;
use super::relay::Relay;
use super::{Endpoint, ProviderError, SandboxProvider};
use crate::SandboxAgentClient;
use crate::client::random::random_id;
use crate::local::LocalOptions;

/// The home directory inside.
const HOME: &str = "/home/sandbox";

/// The file in which `bwrap` writes about a sandbox.
const INFO: &str = "info.json";

/// What programs need of the system, where it is there. Nothing of it can be written.
const SYSTEM: [&str; 14] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/ssl",
];

/// Starts the released server in a sandbox of `bwrap` (bubblewrap), on Linux.
///
/// Inside there are the system's programs and libraries, read-only, an empty `/tmp`, a home directory of the sandbox's
/// own, and the directories that this provider was given. There are no other files, no processes and no environment of
/// this machine, and no way to gain rights. The network is this machine's, unless
/// [`without_network`](Self::without_network) is set.
///
/// A sandbox ends with its server: when it is destroyed, when this value is dropped, and when this program ends. Its
/// home directory is deleted when it is destroyed.
pub struct BubblewrapProvider {
    program: PathBuf,
    bwrap: PathBuf,
    homes: PathBuf,
    binds: Vec<Bind>,
    environment: Vec<(String, String)>,
    network: Network,
    options: Box<dyn Fn(LocalOptions) -> LocalOptions + Send + Sync>,
    held: Held,
    /// The place of each sandbox. Guards the table, never across an await.
    places: Mutex<HashMap<String, Place>>,
}

/// Which network there is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    /// That of this machine.
    Shared,
    /// Only a loopback interface of its own.
    Own,
}

/// What a sandbox has on this machine. It goes with this value.
#[derive(Debug)]
struct Place {
    directory: PathBuf,
    relay: Option<Relay>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.relay = None;
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            tracing::debug!(%error, directory = %self.directory.display(), "the directory of a sandbox was not removed");
        }
    }
}

/// A directory or file of this machine that is seen inside.
#[derive(Debug, Clone)]
struct Bind {
    option: &'static str,
    outside: PathBuf,
    inside: PathBuf,
}

impl BubblewrapProvider {
    /// Sandboxes for the server's program, with their home directories below `homes`.
    pub fn new(program: impl Into<PathBuf>, homes: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            bwrap: PathBuf::from("bwrap"),
            homes: homes.into(),
            binds: Vec::new(),
            environment: Vec::new(),
            network: Network::Shared,
            options: Box::new(|options| options),
            held: Held::default(),
            places: Mutex::default(),
        }
    }

    /// Uses this program in place of the first `bwrap` in `PATH`.
    #[must_use]
    pub fn bwrap(mut self, program: impl Into<PathBuf>) -> Self {
        self.bwrap = program.into();
        self
    }

    /// Shows a directory or file inside, read-only.
    #[must_use]
    pub fn read_only(mut self, outside: impl Into<PathBuf>, inside: impl Into<PathBuf>) -> Self {
        self.binds.push(Bind { option: "--ro-bind", outside: outside.into(), inside: inside.into() });
        self
    }

    /// Shows a directory or file inside, to be read and written.
    #[must_use]
    pub fn writable(mut self, outside: impl Into<PathBuf>, inside: impl Into<PathBuf>) -> Self {
        self.binds.push(Bind { option: "--bind", outside: outside.into(), inside: inside.into() });
        self
    }

    /// Sets a variable inside. Nothing else of this program's environment is there.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Gives sandboxes no network but a loopback interface of their own: nothing inside reaches this machine or any
    /// other.
    ///
    /// The server is then reached through `nsenter` and `bash` of this machine, which join the sandbox's network for
    /// each connection.
    #[must_use]
    pub fn without_network(mut self) -> Self {
        self.network = Network::Own;
        self
    }

    /// Changes how the server is started: its timeouts, its port, its log. Its program and directory are set already.
    #[must_use]
    pub fn options(mut self, change: impl Fn(LocalOptions) -> LocalOptions + Send + Sync + 'static) -> Self {
        self.options = Box::new(change);
        self
    }

    /// The environment inside. It is that of `bwrap` itself, whose first process can be read from inside, and it is
    /// not on the command line of `bwrap`, which can be read from outside.
    fn variables(&self) -> Vec<String> {
        let own = [("HOME", HOME), ("PATH", "/usr/local/bin:/usr/bin:/bin")];
        let own = own.iter().map(|(name, value)| format!("{name}={value}"));
        own.chain(self.environment.iter().map(|(name, value)| format!("{name}={value}"))).collect()
    }

    /// The options of `bwrap`, and the server's program.
    fn words(&self, home: &Path) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut add = |parts: &[&str]| words.extend(parts.iter().map(|part| (*part).to_owned()));
        add(&["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
        add(&["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--info-fd", "3"]);
        if self.network == Network::Own {
            add(&["--unshare-net"]);
        }
        for path in SYSTEM {
            add(&["--ro-bind-try", path, path]);
        }
        add(&["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
        add(&["--bind", &home.display().to_string(), HOME]);
        add(&["--ro-bind", &self.program.display().to_string(), "/run/sandbox-agent"]);
        for bind in &self.binds {
            add(&[bind.option, &bind.outside.display().to_string(), &bind.inside.display().to_string()]);
        }
        add(&["--chdir", HOME, "--", "/run/sandbox-agent"]);
        words
    }

    /// Makes the home directory and the launcher of a sandbox.
    fn prepare(&self) -> Result<(Place, PathBuf), ProviderError> {
        let directory = self.homes.join(random_id());
        let home = directory.join("home");
        let launcher = directory.join("sandbox-agent");
        let quote = |words: Vec<String>| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        let script = format!(
            "#!/bin/sh\nbwrap=$(command -v {}) || exit 127\nexec env -i {} \"$bwrap\" {} \"$@\" 3> {}\n",
            quoted(&self.bwrap.display().to_string()),
            quote(self.variables()),
            quote(self.words(&home)),
            quoted(&directory.join(INFO).display().to_string()),
        );
        let place = Place { directory: directory.clone(), relay: None };
        let made = fs::create_dir_all(&home)
            .and_then(|()| fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)))
            .and_then(|()| fs::write(&launcher, script))
            .and_then(|()| fs::set_permissions(&launcher, fs::Permissions::from_mode(0o700)));
        let program = launcher.display().to_string();
        made.map_err(|source| ProviderError::Program { program, source: Arc::new(source) })?;
        Ok((place, launcher))
    }

    fn places(&self) -> MutexGuard<'_, HashMap<String, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SandboxProvider for BubblewrapProvider {
    fn name(&self) -> &str {
        "bubblewrap"
    }

    fn start(&self) -> BoxFuture<'_, Result<String, ProviderError>> {
        Box::pin(async move {
            let (mut place, launcher) = self.prepare()?;
            let mut options = (self.options)(SandboxAgentClient::start_local().binary(launcher));
            if self.network == Network::Own {
                let port = Relay::free_port().map_err(|source| ProviderError::Program {
                    program: "a free port".to_owned(),
                    source: Arc::new(source),
                })?;
                options = options.port(port).relayed();
                place.relay = Some(Relay::start(port, place.directory.join(INFO)));
            }
            let id = self.held.add(options.start().await?);
            self.places().insert(id.clone(), place);
            Ok(id)
        })
    }

    fn endpoint<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Endpoint, ProviderError>> {
        Box::pin(async move { self.held.endpoint(id) })
    }

    fn destroy<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            if let Some(server) = self.held.remove(id) {
                server.close().await;
            }
            drop(self.places().remove(id));
            Ok(())
        })
    }
}

/// Variables may be secrets.
impl fmt::Debug for BubblewrapProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BubblewrapProvider")
            .field("program", &self.program)
            .field("binds", &self.binds)
            .field("network", &self.network)
            .field("servers", &self.held)
            .finish_non_exhaustive()
    }
}

/// A word of a shell's command.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
