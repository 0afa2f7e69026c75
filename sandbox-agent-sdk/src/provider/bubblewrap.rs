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
use super::program::find;
use super::relay::{Relay, RelayPrograms};
use super::{Endpoint, ProviderError, SandboxProvider};
use crate::SandboxAgentClient;
use crate::client::network::check_runtime;
use crate::client::random::random_id;
use crate::convert::text::printable;
use crate::local::{LocalOptions, trusted};

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
/// environment variables of this machine, and cannot gain privileges, even in its own user namespace. It shares
/// the network of this machine, with its abstract Unix sockets (X11, D-Bus), unless
/// [`without_network`](Self::without_network) is set.
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
            let directory = self.directory.to_string_lossy();
            tracing::debug!(%error, directory = %printable(&directory), "failed to remove the directory of a sandbox");
        }
    }
}

/// The absolute paths of the programs that a start runs.
#[derive(Debug)]
struct Programs {
    env: PathBuf,
    bwrap: PathBuf,
    server: PathBuf,
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

    /// Sets the `bwrap` program. The default is the first `bwrap` in the absolute directories of `PATH`.
    ///
    /// A program that other users can replace is rejected, like the server's program.
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
    /// The client then connects to the server through `nsenter`, `bash` and `cat` of this machine, which join the sandbox's
    /// network for each connection. This needs no privileges. Only processes of this user can connect, at most 1,024 at
    /// a time; each connection needs three processes and three open files of this program.
    #[must_use]
    pub fn without_network(mut self) -> Self {
        self.network = Network::Own;
        self
    }

    /// Changes how the server is started: timeouts, port, log. The provider sets the program afterwards.
    ///
    /// [`accept_untrusted_binary`](LocalOptions::accept_untrusted_binary) also applies to `bwrap`, `nsenter`, `bash` and
    /// `cat`, and to the server's program.
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

    /// Builds the command that runs the server's program in a sandbox.
    fn words(&self, programs: &Programs, home: &Path) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut add = |parts: &[&str]| words.extend(parts.iter().map(|part| (*part).to_owned()));
        let bwrap = programs.bwrap.display().to_string();
        add(&[&programs.env.display().to_string(), "-i"]);
        if self.network == Network::Own {
            // A network namespace belongs to the user namespace in which it was created, and only a process with
            // privileges in that one can join it. The sandbox itself is in an inner user namespace, so that `nsenter`
            // of a user without privileges needs this outer one, which has no other purpose.
            add(&[&bwrap, "--unshare-user", "--unshare-net", "--die-with-parent", "--dev-bind", "/", "/"]);
            add(&["--info-fd", "3", "--"]);
        }
        add(&[&bwrap, "--disable-userns"]);
        add(&["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
        add(&["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--args", "4"]);
        for path in SYSTEM {
            add(&["--ro-bind-try", path, path]);
        }
        // Read-only, because root could write kernel settings there even without capabilities.
        add(&["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
        add(&["--bind", &home.display().to_string(), HOME]);
        add(&["--ro-bind", &programs.server.display().to_string(), "/run/sandbox-agent"]);
        for bind in &self.binds {
            add(&[bind.option, &bind.outside.display().to_string(), &bind.inside.display().to_string()]);
        }
        add(&["--chdir", HOME, "--", "/run/sandbox-agent"]);
        words
    }

    /// Finds the programs that a start runs outside of a sandbox, and checks that other users cannot replace them.
    fn programs(&self, accept_untrusted: bool) -> Result<Programs, ProviderError> {
        Ok(Programs {
            env: find("env".as_ref(), accept_untrusted)?,
            bwrap: find(&self.bwrap, accept_untrusted)?,
            server: trusted(&self.program, accept_untrusted)?,
        })
    }

    /// Creates the home directory and the launcher script of a sandbox.
    fn prepare(&self, accept_untrusted: bool) -> Result<(Resources, PathBuf), ProviderError> {
        let programs = self.programs(accept_untrusted)?;
        let directory = self.homes.join(random_id().map_err(ProviderError::randomness)?);
        let home = directory.join("home");
        let launcher = directory.join("sandbox-agent");
        let variables = directory.join("variables");
        let words = self.words(&programs, &home);
        // The processes in the sandbox inherit every descriptor that `bwrap` does not use.
        let info = match self.network {
            Network::Own => format!("3> {} ", quoted(&directory.join(INFO).display().to_string())),
            Network::Shared => String::new(),
        };
        // No program is searched for here: the search path may have relative entries.
        let script = format!(
            "#!/bin/sh\nexec {} \"$@\" {info}4< {}\n",
            words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
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
            let options = (self.options)(SandboxAgentClient::start_local());
            let accept_untrusted = options.accepts_untrusted_binary();
            let (mut resources, launcher) = self.prepare(accept_untrusted)?;
            let mut options = options.binary(launcher);
            if self.network == Network::Own {
                let port = Relay::free_port().map_err(|source| ProviderError::Program {
                    program: "free port".to_owned(),
                    source: Arc::new(source),
                })?;
                options = options.port(port).relayed();
                let programs = RelayPrograms::find(|name| find(name.as_ref(), accept_untrusted))?;
                resources.relay = Some(Relay::start(port, resources.directory.join(INFO), programs));
            }
            let server = options.start().await?;
            if let Some(relay) = &mut resources.relay {
                relay.end_with(server.end());
            }
            let id = self.held.add(server);
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

    use super::{BubblewrapProvider, Path, PermissionsExt, RelayPrograms, find, fs};

    fn program(path: &Path, script: &str) {
        fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn no_command_line_of_the_launcher_has_the_value_of_a_variable() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let seen = at("seen");
        // Replaces the program that the launcher runs.
        program(&at("bwrap"), &format!("echo \"$@\" >> {0}; cat <&4 > {0}.variables", seen.display()));
        let provider =
            BubblewrapProvider::new("/bin/true", at("homes")).bwrap(at("bwrap")).env("KEY", "hush");
        let (_resources, launcher) = provider.prepare(false).unwrap();
        assert!(Command::new(&launcher).status().unwrap().success());
        // The launcher has the command lines of everything before it.
        for lines in [fs::read_to_string(&launcher).unwrap(), fs::read_to_string(&seen).unwrap()] {
            assert!(lines.contains("--cap-drop") && !lines.contains("hush"), "{lines}");
        }
        let variables = fs::read_to_string(at("seen.variables")).unwrap();
        assert!(variables.ends_with("--setenv\0KEY\0hush\0"), "{variables:?}");
    }

    #[test]
    fn a_variable_adds_no_option() {
        let homes = tempfile::tempdir().unwrap();
        let provider = BubblewrapProvider::new("/bin/true", homes.path()).env("KEY", "x\0--bind\0/\0/");
        assert!(provider.prepare(false).is_err());
        assert_eq!(fs::read_dir(homes.path()).unwrap().count(), 0);
    }

    /// A user namespace gives a process all capabilities in it, and with them a large part of the kernel to attack.
    #[test]
    fn a_process_in_a_sandbox_gets_no_user_namespace() {
        let homes = tempfile::tempdir().unwrap();
        let run = |program: &str, words: &[&str]| {
            let (_resources, launcher) =
                BubblewrapProvider::new(program, homes.path()).prepare(false).unwrap();
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
        // It cannot allow them again either.
        let setting = "echo 1 > /proc/sys/user/max_user_namespaces; unshare --user true";
        assert!(!run("/usr/bin/env", &["sh", "-c", setting]).status.success());
    }

    /// Root may write the settings of the kernel without any capability.
    #[test]
    fn a_process_in_a_sandbox_of_root_cannot_write_the_settings_of_the_kernel() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "this test needs root");
            eprintln!("NOT TESTED: this test needs root");
            return;
        }
        let homes = tempfile::tempdir().unwrap();
        let provider = BubblewrapProvider::new("/usr/bin/env", homes.path());
        let run = |script: &str| {
            let (_resources, launcher) = provider.prepare(false).unwrap();
            Command::new(launcher).args(["sh", "-c", script]).output().unwrap()
        };
        let works = run("cat /proc/sys/kernel/core_pattern");
        assert!(works.status.success() && !works.stdout.is_empty(), "{works:?}");
        // The attack writes the value that is already there.
        let same = "set -e; value=$(cat /proc/sys/kernel/core_pattern); printf '%s\\n' \"$value\" > /proc/sys/kernel/core_pattern";
        let output = run(same);
        assert!(!output.status.success(), "a process in the sandbox wrote core_pattern");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(printed.contains("Read-only file system"), "{printed}");
    }

    #[test]
    fn a_program_of_the_working_directory_is_not_run_in_place_of_bwrap() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        for planted in ["bwrap", "env"] {
            program(&at(planted), &format!("touch {}", at("owned").display()));
        }
        let (_resources, launcher) =
            BubblewrapProvider::new("/bin/true", at("homes")).prepare(false).unwrap();
        for path in [".:/usr/bin:/bin", ":/usr/bin:/bin"] {
            Command::new(&launcher).current_dir(scratch.path()).env("PATH", path).output().unwrap();
            assert!(!at("owned").exists(), "a planted program ran with PATH={path}");
        }
    }

    #[test]
    fn programs_that_other_users_can_replace_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        for name in ["good", "loose"] {
            program(&at(name), "exit 0");
        }
        let provider =
            |server: &str, bwrap: &str| BubblewrapProvider::new(at(server), at("homes")).bwrap(at(bwrap));
        fs::set_permissions(at("loose"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(provider("good", "good").prepare(false).is_ok());
        assert!(provider("loose", "good").prepare(false).is_err(), "the server can be replaced");
        assert!(provider("good", "loose").prepare(false).is_err(), "bwrap can be replaced");
        assert!(provider("loose", "loose").prepare(true).is_ok(), "the application accepts that");
    }

    #[test]
    fn programs_of_a_relay_that_other_users_can_replace_are_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let names = ["nsenter", "bash", "cat"];
        let loosen = |name: &str, mode| {
            fs::set_permissions(scratch.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        names.iter().for_each(|name| program(&scratch.path().join(name), "exit 0"));
        let relay = |accept| RelayPrograms::find(|name| find(&scratch.path().join(name), accept));
        assert!(relay(false).is_ok());
        for name in names {
            loosen(name, 0o777);
            assert!(relay(false).is_err() && relay(true).is_ok(), "{name}");
            loosen(name, 0o755);
        }
    }

    #[test]
    fn a_process_in_a_sandbox_inherits_no_file_of_the_launcher() {
        let homes = tempfile::tempdir().unwrap();
        let shared = || BubblewrapProvider::new("/usr/bin/env", homes.path());
        for provider in [shared(), shared().without_network()] {
            let run = |script: &str| {
                let (_resources, launcher) = provider.prepare(false).unwrap();
                Command::new(launcher).args(["sh", "-c", script]).output().unwrap()
            };
            let works = run("true");
            if !works.status.success() {
                let why = format!("no sandbox works here: {works:?}");
                assert!(std::env::var_os("CI").is_none(), "{why}");
                eprintln!("NOT TESTED: {why}");
                return;
            }
            let open = "for fd in 3 4; do if [ -e /proc/self/fd/$fd ]; then echo $fd; fi; done";
            assert_eq!(String::from_utf8_lossy(&run(open).stdout), "", "{:?}", provider.network);
        }
    }
}
