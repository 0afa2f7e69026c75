//! Runs a server in a bubblewrap sandbox.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;

use super::held::Held;
use super::relay::Relay;
use super::{Endpoint, ProviderError, SandboxProvider};
use crate::SandboxAgentClient;
use crate::client::network::check_runtime;
use crate::client::random::random_id;
use crate::local::LocalOptions;

/// The home directory inside the sandbox.
const HOME: &str = "/home/sandbox";

/// The file in which `bwrap` describes a sandbox.
const INFO: &str = "info.json";

/// System directories that programs need, if they exist. They are mounted read-only.
///
/// Not all of `/etc/ssl`, which contains private keys.
const SYSTEM: [&str; 16] = [
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
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];

/// Starts the released server in a sandbox of `bwrap` (bubblewrap) 0.8 or later. Linux only.
///
/// The sandbox contains the system's programs and libraries (read-only), an empty `/tmp`, its own home
/// directory, and the directories given to this provider. It has no access to other files, processes or
/// environment variables of this machine, and cannot gain privileges, not even in a user namespace of its own. It shares the network of this machine,
/// unless [`without_network`](Self::without_network) is set.
///
/// A sandbox ends with its server: when it is destroyed, when this value is dropped, and when this program
/// exits. Destroying it deletes its home directory.
pub struct BubblewrapProvider {
    program: PathBuf,
    bwrap: PathBuf,
    homes: PathBuf,
    binds: Vec<Bind>,
    environment: Vec<(String, String)>,
    network: Network,
    options: Box<dyn Fn(LocalOptions) -> LocalOptions + Send + Sync>,
    held: Held,
    /// The resources of each sandbox. Guards the table, never across an await.
    resources: Mutex<HashMap<String, Resources>>,
}

/// The network of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    /// The network of this machine.
    Shared,
    /// A private loopback interface only.
    Own,
}

/// The resources of a sandbox on this machine. Dropping this value frees them.
#[derive(Debug)]
struct Resources {
    directory: PathBuf,
    relay: Option<Relay>,
}

impl Drop for Resources {
    fn drop(&mut self) {
        self.relay = None;
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            tracing::debug!(%error, directory = %self.directory.display(), "failed to remove the directory of a sandbox");
        }
    }
}

/// A directory or file of this machine that is visible in the sandbox.
#[derive(Debug, Clone)]
struct Bind {
    option: &'static str,
    outside: PathBuf,
    inside: PathBuf,
}

impl BubblewrapProvider {
    /// Creates a provider for the server's program. Home directories are created below `homes`.
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
            resources: Mutex::default(),
        }
    }

    /// Sets the `bwrap` program. The default is the first `bwrap` in `PATH`.
    #[must_use]
    pub fn bwrap(mut self, program: impl Into<PathBuf>) -> Self {
        self.bwrap = program.into();
        self
    }

    /// Makes a directory or file visible in the sandbox, read-only.
    #[must_use]
    pub fn read_only(mut self, outside: impl Into<PathBuf>, inside: impl Into<PathBuf>) -> Self {
        self.binds.push(Bind { option: "--ro-bind", outside: outside.into(), inside: inside.into() });
        self
    }

    /// Makes a directory or file visible in the sandbox, writable.
    #[must_use]
    pub fn writable(mut self, outside: impl Into<PathBuf>, inside: impl Into<PathBuf>) -> Self {
        self.binds.push(Bind { option: "--bind", outside: outside.into(), inside: inside.into() });
        self
    }

    /// Sets an environment variable in the sandbox. The sandbox inherits no variables from this program.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Gives sandboxes no network except a private loopback interface. A sandbox can connect neither to this machine
    /// nor to any other.
    ///
    /// The client then connects to the server through `nsenter` and `bash` of this machine, which join the sandbox's
    /// network for each connection.
    #[must_use]
    pub fn without_network(mut self) -> Self {
        self.network = Network::Own;
        self
    }

    /// Changes how the server is started: timeouts, port, log. The program and the directory are already set.
    #[must_use]
    pub fn options(mut self, change: impl Fn(LocalOptions) -> LocalOptions + Send + Sync + 'static) -> Self {
        self.options = Box::new(change);
        self
    }

    /// The arguments of `bwrap` that set the environment of the sandbox, in the format of its option `--args`.
    /// They are read from a file, because other users can read command lines.
    fn variables(&self) -> io::Result<String> {
        let own = [("HOME", HOME), ("PATH", "/usr/local/bin:/usr/bin:/bin")];
        let given = self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut arguments = String::new();
        for (name, value) in own.into_iter().chain(given) {
            if name.contains('\0') || value.contains('\0') {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a variable contains a NUL character",
                ));
            }
            arguments.extend(["--setenv\0", name, "\0", value, "\0"]);
        }
        Ok(arguments)
    }

    /// Builds the arguments of `bwrap`, including the server's program.
    fn words(&self, home: &Path) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut add = |parts: &[&str]| words.extend(parts.iter().map(|part| (*part).to_owned()));
        add(&["--disable-userns"]);
        add(&["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
        add(&["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--info-fd", "3", "--args", "4"]);
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

    /// Creates the home directory and the launcher script of a sandbox.
    fn prepare(&self) -> Result<(Resources, PathBuf), ProviderError> {
        let directory = self.homes.join(random_id().map_err(ProviderError::randomness)?);
        let home = directory.join("home");
        let launcher = directory.join("sandbox-agent");
        let variables = directory.join("variables");
        let quote = |words: Vec<String>| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        let script = format!(
            "#!/bin/sh\nbwrap=$(command -v {}) || exit 127\nexec env -i \"$bwrap\" {} \"$@\" 3> {} 4< {}\n",
            quoted(&self.bwrap.display().to_string()),
            quote(self.words(&home)),
            quoted(&directory.join(INFO).display().to_string()),
            quoted(&variables.display().to_string()),
        );
        let resources = Resources { directory: directory.clone(), relay: None };
        let made = fs::create_dir_all(&home)
            .and_then(|()| fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)))
            .and_then(|()| fs::write(&variables, self.variables()?))
            .and_then(|()| fs::write(&launcher, script))
            .and_then(|()| fs::set_permissions(&launcher, fs::Permissions::from_mode(0o700)));
        let program = launcher.display().to_string();
        made.map_err(|source| ProviderError::Program { program, source: Arc::new(source) })?;
        Ok((resources, launcher))
    }

    fn resources(&self) -> MutexGuard<'_, HashMap<String, Resources>> {
        self.resources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SandboxProvider for BubblewrapProvider {
    fn name(&self) -> &str {
        "bubblewrap"
    }

    fn start(&self) -> BoxFuture<'_, Result<String, ProviderError>> {
        Box::pin(async move {
            check_runtime().map_err(|error| ProviderError::Program {
                program: "a tokio runtime".to_owned(),
                source: Arc::new(std::io::Error::other(error)),
            })?;
            let (mut resources, launcher) = self.prepare()?;
            let mut options = (self.options)(SandboxAgentClient::start_local().binary(launcher));
            if self.network == Network::Own {
                let port = Relay::free_port().map_err(|source| ProviderError::Program {
                    program: "free port".to_owned(),
                    source: Arc::new(source),
                })?;
                options = options.port(port).relayed();
                resources.relay = Some(Relay::start(port, resources.directory.join(INFO)));
            }
            let id = self.held.add(options.start().await?);
            self.resources().insert(id.clone(), resources);
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
            drop(self.resources().remove(id));
            Ok(())
        })
    }
}

/// Variables may contain secrets.
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

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{BubblewrapProvider, Path, PermissionsExt, fs};

    fn program(path: &Path, script: &str) {
        fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn no_command_line_of_the_launcher_has_the_value_of_a_variable() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let seen = at("seen");
        // In place of the programs that the launcher runs, one after the other.
        program(&at("env"), &format!("echo \"$@\" >> {0}; shift; exec \"$@\"", seen.display()));
        program(&at("bwrap"), &format!("echo \"$@\" >> {0}; cat <&4 > {0}.variables", seen.display()));
        let provider =
            BubblewrapProvider::new("/bin/true", at("homes")).bwrap(at("bwrap")).env("KEY", "hush");
        let (_resources, launcher) = provider.prepare().unwrap();
        let path = format!("{}:/usr/bin:/bin", scratch.path().display());
        assert!(Command::new(launcher).env("PATH", path).status().unwrap().success());
        let lines = fs::read_to_string(&seen).unwrap();
        assert_eq!((lines.lines().count(), lines.contains("hush")), (2, false), "{lines}");
        let variables = fs::read_to_string(at("seen.variables")).unwrap();
        assert!(variables.ends_with("--setenv\0KEY\0hush\0"), "{variables:?}");
    }

    #[test]
    fn a_variable_adds_no_option() {
        let homes = tempfile::tempdir().unwrap();
        let provider = BubblewrapProvider::new("/bin/true", homes.path()).env("KEY", "x\0--bind\0/\0/");
        assert!(provider.prepare().is_err());
        assert_eq!(fs::read_dir(homes.path()).unwrap().count(), 0);
    }

    /// A user namespace gives a process all capabilities in it, and with them a large part of the kernel to attack.
    #[test]
    fn a_process_in_a_sandbox_gets_no_user_namespace() {
        let homes = tempfile::tempdir().unwrap();
        let run = |program: &str, words: &[&str]| {
            let (_resources, launcher) = BubblewrapProvider::new(program, homes.path()).prepare().unwrap();
            Command::new(launcher).args(words).output().unwrap()
        };
        let works = run("/usr/bin/env", &["true"]);
        if !works.status.success() {
            let why = format!("no sandbox works here: {works:?}");
            assert!(std::env::var_os("CI").is_none(), "{why}");
            eprintln!("NOT TESTED: {why}");
            return;
        }
        for attack in [&["--user", "true"][..], &["--user", "--map-root-user", "--mount", "true"]] {
            let output = run("/usr/bin/unshare", attack);
            let printed = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "unshare {attack:?} worked");
            assert!(printed.contains("unshare failed"), "{printed}");
        }
        // Nor may it allow them again.
        let setting = "echo 1 > /proc/sys/user/max_user_namespaces; unshare --user true";
        assert!(!run("/usr/bin/env", &["sh", "-c", setting]).status.success());
    }
}
