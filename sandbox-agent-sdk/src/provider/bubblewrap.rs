//! A server in a bubblewrap sandbox.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;

use super::held::Held;
use super::{Endpoint, ProviderError, SandboxProvider};
use crate::random::random_id;
use crate::{LocalOptions, SandboxAgentClient};

/// The home directory inside.
const HOME: &str = "/home/sandbox";

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
/// this machine, and no way to gain rights. **The network is this machine's**: the server is reached over it, so that a
/// sandbox without a network cannot be used.
///
/// A sandbox ends with its server: when it is destroyed, when this value is dropped, and when this program ends. Its
/// home directory is deleted when it is destroyed.
pub struct BubblewrapProvider {
    program: PathBuf,
    bwrap: PathBuf,
    homes: PathBuf,
    binds: Vec<Bind>,
    environment: Vec<(String, String)>,
    options: Box<dyn Fn(LocalOptions) -> LocalOptions + Send + Sync>,
    held: Held,
    /// The directory of each sandbox. Guards the table, never across an await.
    directories: Mutex<HashMap<String, PathBuf>>,
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
            options: Box::new(|options| options),
            held: Held::default(),
            directories: Mutex::default(),
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
        add(&["--die-with-parent", "--new-session", "--cap-drop", "ALL"]);
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
    fn prepare(&self) -> Result<(PathBuf, PathBuf), ProviderError> {
        let directory = self.homes.join(random_id());
        let home = directory.join("home");
        let launcher = directory.join("sandbox-agent");
        let quote = |words: Vec<String>| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        let script = format!(
            "#!/bin/sh\nbwrap=$(command -v {}) || exit 127\nexec env -i {} \"$bwrap\" {} \"$@\"\n",
            quoted(&self.bwrap.display().to_string()),
            quote(self.variables()),
            quote(self.words(&home)),
        );
        let made = fs::create_dir_all(&home)
            .and_then(|()| fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)))
            .and_then(|()| fs::write(&launcher, script))
            .and_then(|()| fs::set_permissions(&launcher, fs::Permissions::from_mode(0o700)));
        match made {
            Ok(()) => Ok((directory, launcher)),
            Err(source) => {
                remove(&directory);
                Err(ProviderError::Program {
                    program: launcher.display().to_string(),
                    source: Arc::new(source),
                })
            }
        }
    }
}

impl SandboxProvider for BubblewrapProvider {
    fn name(&self) -> &str {
        "bubblewrap"
    }

    fn start(&self) -> BoxFuture<'_, Result<String, ProviderError>> {
        Box::pin(async move {
            let (directory, launcher) = self.prepare()?;
            let unused = Unused(Some(directory));
            let options = SandboxAgentClient::start_local().binary(launcher);
            let server = (self.options)(options).start().await?;
            let id = self.held.add(server);
            if let Some(directory) = unused.keep() {
                let mut directories = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
                directories.insert(id.clone(), directory);
            }
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
            let directory = self.directories.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
            if let Some(directory) = directory {
                remove(&directory);
            }
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
            .field("servers", &self.held)
            .finish_non_exhaustive()
    }
}

/// The directory of a sandbox that may not come to be.
struct Unused(Option<PathBuf>);

impl Unused {
    fn keep(mut self) -> Option<PathBuf> {
        self.0.take()
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        if let Some(directory) = self.0.take() {
            remove(&directory);
        }
    }
}

fn remove(directory: &Path) {
    if let Err(error) = fs::remove_dir_all(directory) {
        tracing::debug!(%error, directory = %directory.display(), "the directory of a sandbox was not removed");
    }
}

/// A word of a shell's command.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
