//! Restricts commands with bubblewrap.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
#[cfg(target_os = "linux")]
use std::fs::File;
use std::io;
#[cfg(target_os = "linux")]
use std::io::{Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;

use super::allowed::locate;
use super::hidden::Hidden;
use super::spawner::Spawner;
use super::visible::Visible;
use crate::convert::text::printable;
use crate::trust::{PathProblem, Verdict, check};

/// The name of bubblewrap's program.
const PROGRAM: &str = "bwrap";
/// The shell that starts bubblewrap.
const SHELL: &str = "/bin/sh";
/// Starts bubblewrap with the options from standard input: other users can read command lines, which must not have
/// variables. The command gets an empty standard input; it would get bubblewrap's.
const START: &str = r#"exec "$0" --args 3 -- "$@" 3<&0 </dev/null"#;
/// Directories that are replaced by empty ones, because they contain secrets and sockets of users and
/// services.
const HIDDEN: [&str; 5] = ["/home", "/root", "/run", "/tmp", "/var/tmp"];

/// Restricts the commands of terminals. See [`TerminalOptions::sandbox`](super::TerminalOptions::sandbox).
///
/// Linux only. It uses [bubblewrap](https://github.com/containers/bubblewrap) 0.8 or later, which needs
/// unprivileged user namespaces. By default a command
///
/// - has no network, not even the loopback interface of this machine, and no abstract Unix sockets (but it has VM
///   sockets, see below);
/// - can write only to the roots of the terminals and to its own temporary directories;
/// - sees empty directories instead of the home directories, `/tmp`, `/var/tmp` and `/run`;
///   [`read`](Self::read) makes parts of them visible again, such as a toolchain in a home directory. The same applies to
///   the directory that the variable `TMPDIR` of this program names;
/// - has no capabilities and cannot gain any (setuid programs and new user namespaces do not work);
/// - can neither see nor signal processes outside the sandbox;
/// - ends with its terminal, together with every process that it started. It also ends if this program is
///   killed by SIGKILL.
///
/// The sandbox does not prevent everything. A command can
///
/// - read every other file that this program can read (use [`hide`](Self::hide));
/// - connect to Unix sockets in visible directories (services have some below `/var/lib` and `/var/snap`);
/// - use VM sockets (`AF_VSOCK`), which reach the host of a virtual machine and its services: the kernel does not
///   confine them to a network namespace;
/// - use any amount of memory and processor time;
/// - attack the kernel;
/// - read the keys in this program's session keyring (`keyctl`);
/// - use file descriptors that this program opened without close-on-exec (the Rust standard library never does this).
///
/// Files that a command writes to the roots remain there, including hooks and build scripts: do not run them outside a
/// sandbox.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use sandbox_agent_sdk::tools::Sandbox;
/// use sandbox_agent_sdk::tools::{Roots, TerminalOptions, Terminals};
///
/// let sandbox = Sandbox::detect()?.read("/home/ada/.cargo").read("/home/ada/.rustup");
/// let sandbox = sandbox.hide("/home/ada/.cargo/credentials.toml")?;
/// let terminals = Terminals::new(TerminalOptions::new(Roots::at("/home/ada/project")).sandbox(sandbox));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a sandbox does nothing until terminals use it"]
pub struct Sandbox {
    program: PathBuf,
    network: Network,
    roots: RootAccess,
    visible: Vec<Visible>,
    /// Hidden by default, below everything that the application makes visible.
    homes: Vec<PathBuf>,
    hidden: Vec<Hidden>,
    /// Starts the commands, because a command ends with the thread that started it.
    pub(super) spawner: Arc<Spawner>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    None,
    Shared,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RootAccess {
    Read,
    ReadWrite,
}

/// Why commands cannot be sandboxed on this system.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// This system is not Linux.
    #[error("sandboxes are supported on Linux only")]
    Unsupported,
    /// Bubblewrap is not installed. Its package is usually called `bubblewrap`.
    #[error("bubblewrap was not found at {}", printable(&.0.to_string_lossy()))]
    NotFound(PathBuf),
    /// Other users of this machine can replace bubblewrap.
    #[error("{} is not trusted: {}: {problem}", printable(&.program.to_string_lossy()), printable(&.entry.to_string_lossy()))]
    #[non_exhaustive]
    Untrusted {
        /// The path of bubblewrap.
        program: PathBuf,
        /// The untrusted entry: the program, or a directory or link in its path.
        entry: PathBuf,
        /// Why the entry is not trusted.
        problem: PathProblem,
    },
    /// Bubblewrap is too old, or this system does not allow unprivileged user namespaces.
    #[error("bubblewrap does not work on this system: {}", printable(.message))]
    #[non_exhaustive]
    Unusable {
        /// The output of bubblewrap.
        message: String,
    },
    /// A path to hide does not exist or cannot be resolved.
    #[error("{} cannot be hidden", printable(&.path.to_string_lossy()))]
    #[non_exhaustive]
    Hide {
        /// The path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: Arc<io::Error>,
    },
    /// Bubblewrap failed to start.
    #[error("bubblewrap failed to start")]
    Io(#[source] Arc<io::Error>),
}

/// What a path shows. If a path has two of these, the last one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mount {
    /// A directory in a root that commands cannot rename, because it is a mount point.
    Fixed,
    Visible,
    Root,
    Hidden,
}

/// A path in the sandbox, what it shows, and the path outside.
type MountPoint = (PathBuf, Mount, PathBuf);

/// How to start a command in a sandbox.
#[derive(Debug)]
pub(super) struct CommandLine {
    pub(super) program: &'static str,
    pub(super) args: Vec<OsString>,
    /// The standard input.
    pub(super) input: Vec<u8>,
}

/// One command to run in a sandbox.
#[derive(Debug)]
pub(super) struct Confined<'a> {
    pub(super) program: &'a OsStr,
    pub(super) args: &'a [OsString],
    /// Variables to set. They are not set for bubblewrap itself, because the dynamic loader would obey some
    /// of them.
    pub(super) variables: &'a [(OsString, OsString)],
    /// The directories that it may use, with links resolved.
    pub(super) roots: &'a [PathBuf],
    pub(super) directory: &'a Path,
}

impl Sandbox {
    /// Finds bubblewrap in this program's `PATH` and tests it. Blocks for some milliseconds.
    ///
    /// # Errors
    /// [`SandboxError`] if bubblewrap is not installed or does not work on this system, or if other users can replace
    /// it.
    pub fn detect() -> Result<Self, SandboxError> {
        let found = locate(PROGRAM, std::env::var_os("PATH").as_deref());
        Self::with_program(found.ok_or_else(|| SandboxError::NotFound(PROGRAM.into()))?)
    }

    /// Uses the bubblewrap at this path and tests it. Blocks for some milliseconds.
    ///
    /// # Errors
    /// The errors of [`detect`](Self::detect).
    pub fn with_program(program: impl Into<PathBuf>) -> Result<Self, SandboxError> {
        let program: PathBuf = program.into();
        if !cfg!(target_os = "linux") {
            return Err(SandboxError::Unsupported);
        }
        if !program.is_file() {
            return Err(SandboxError::NotFound(program));
        }
        let failed = |error: io::Error| SandboxError::Io(Arc::new(error));
        let program = std::path::absolute(program).map_err(failed)?;
        if let Verdict::Untrusted(entry, problem) = check(&program).map_err(failed)? {
            return Err(SandboxError::Untrusted { program, entry, problem });
        }
        let sandbox = Self {
            program,
            network: Network::None,
            roots: RootAccess::ReadWrite,
            visible: Vec::new(),
            homes: home_directories(),
            hidden: Vec::new(),
            spawner: Arc::new(Spawner::start().map_err(failed)?),
        };
        let output = sandbox.probe().map_err(failed)?;
        if output.status.success() {
            return Ok(sandbox);
        }
        let message = String::from_utf8_lossy(&output.stderr);
        Err(SandboxError::Unusable { message: format!("{} ({})", message.trim(), output.status) })
    }

    /// Lets commands read a file or directory that is hidden by default. An example is a toolchain in a home
    /// directory.
    ///
    /// This method resolves the links in the path. If the path leads elsewhere when a command starts, it is not visible.
    /// A path in a writable root becomes read-only if it exists when this method is called. Otherwise it stays a
    /// writable part of the root.
    pub fn read(mut self, path: impl Into<PathBuf>) -> Self {
        self.visible.extend(Visible::new(&path.into()));
        self
    }

    /// Hides a file or a directory, also below a root or a path of [`read`](Self::read).
    ///
    /// A hidden directory appears empty, and a hidden file cannot be opened. Of two paths the inner one counts: a root
    /// or a path of `read` below a hidden directory is visible. Commands can move neither what is hidden nor the
    /// directories between it and its root. Moving other files into or out of these directories copies them.
    ///
    /// Copies and hard links of a file are not hidden. If another program replaces the file or directory itself while a
    /// command runs, as many editors do, that command can open the new one; later commands cannot. **Hide the directory
    /// that contains such a file**: a file that is replaced in a hidden directory stays hidden.
    ///
    /// # Errors
    /// [`SandboxError::Hide`] if the path does not exist.
    pub fn hide(mut self, path: impl Into<PathBuf>) -> Result<Self, SandboxError> {
        let path = path.into();
        match Hidden::new(&path) {
            Ok(hidden) => self.hidden.push(hidden),
            Err(error) => return Err(SandboxError::Hide { path, source: Arc::new(error) }),
        }
        Ok(self)
    }

    /// Makes the roots read-only.
    pub fn read_only_roots(mut self) -> Self {
        self.roots = RootAccess::Read;
        self
    }

    /// Lets commands use the network of this machine.
    ///
    /// This includes its loopback interface and abstract Unix sockets, which desktop services use.
    pub fn allow_network(mut self) -> Self {
        self.network = Network::Shared;
        self
    }

    /// Returns how to run a command in this sandbox.
    pub(super) fn command_line(&self, command: &Confined<'_>) -> CommandLine {
        let mut input: Vec<u8> = Vec::new();
        for word in self.options(command) {
            // Neither a path nor a variable contains a NUL character.
            input.extend(word.as_bytes().iter().filter(|byte| **byte != 0));
            input.push(0);
        }
        let mut args: Vec<OsString> = vec!["-c".into(), START.into(), self.program.clone().into()];
        args.push(command.program.to_owned());
        args.extend(command.args.iter().cloned());
        CommandLine { program: SHELL, args, input }
    }

    /// Returns the options of bubblewrap for a command.
    fn options(&self, command: &Confined<'_>) -> Vec<OsString> {
        let mut line: Vec<OsString> = Vec::new();
        let mut add = |words: &[&OsStr]| line.extend(words.iter().map(|word| (*word).to_owned()));
        for word in ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"] {
            add(&[word.as_ref()]);
        }
        if self.network == Network::Shared {
            add(&["--share-net".as_ref()]);
        }
        add(&["--cap-drop".as_ref(), "ALL".as_ref()]);
        add(&["--ro-bind".as_ref(), "/".as_ref(), "/".as_ref()]);
        add(&["--dev".as_ref(), "/dev".as_ref()]);
        // Read-only, because root could write kernel settings there even without capabilities.
        add(&["--proc".as_ref(), "/proc".as_ref(), "--remount-ro".as_ref(), "/proc".as_ref()]);
        let mut homes: Vec<_> = self.homes.iter().filter_map(|path| path.canonicalize().ok()).collect();
        homes.sort();
        homes.dedup();
        for directory in homes.iter().filter(|path| path.is_dir()) {
            add(&["--tmpfs".as_ref(), directory.as_ref()]);
        }
        for (path, mount, source) in self.mounts(command.roots) {
            match mount {
                Mount::Visible => add(&["--ro-bind-try".as_ref(), source.as_ref(), path.as_ref()]),
                Mount::Root if self.roots == RootAccess::Read => {
                    add(&["--ro-bind".as_ref(), source.as_ref(), path.as_ref()]);
                }
                Mount::Fixed | Mount::Root => add(&["--bind".as_ref(), source.as_ref(), path.as_ref()]),
                Mount::Hidden if path.is_dir() => add(&["--tmpfs".as_ref(), path.as_ref()]),
                Mount::Hidden => add(&["--ro-bind".as_ref(), "/dev/null".as_ref(), path.as_ref()]),
            }
        }
        for (name, value) in command.variables {
            add(&["--setenv".as_ref(), name, value]);
        }
        add(&["--chdir".as_ref(), command.directory.as_ref()]);
        line
    }

    /// Returns what is mounted, in this order: a directory precedes its subdirectories, because its mount would cover
    /// theirs. A path that is both visible and hidden is hidden.
    fn mounts(&self, roots: &[PathBuf]) -> Vec<MountPoint> {
        let writable = if self.roots == RootAccess::ReadWrite { roots } else { &[] };
        let at = |path: &Path, mount, source: &Path| (path.to_owned(), mount, source.to_owned());
        let mut mounts: Vec<MountPoint> = Vec::new();
        for visible in self.visible.iter().filter(|visible| visible.is_unchanged(writable)) {
            mounts.extend(
                [visible.path(), visible.real()].map(|path| at(path, Mount::Visible, visible.real())),
            );
        }
        mounts.extend(roots.iter().map(|root| at(root, Mount::Root, root)));
        // A path that leads through a link shows the same files at two paths.
        let shown: Vec<_> =
            mounts.iter().filter_map(|(path, ..)| Some((path.canonicalize().ok()?, path.clone()))).collect();
        for hidden in self.hidden.iter().flat_map(Hidden::paths) {
            let copies =
                shown.iter().filter_map(|(real, path)| Some(path.join(hidden.strip_prefix(real).ok()?)));
            mounts.extend(copies.map(|path| at(&path, Mount::Hidden, &path)));
            mounts.push(at(&hidden, Mount::Hidden, &hidden));
        }
        mounts.extend(fixed(&mounts, writable).into_iter().map(|path| at(&path, Mount::Fixed, &path)));
        mounts.sort();
        mounts.dedup();
        mounts
    }

    /// Runs a program that does nothing.
    fn probe(&self) -> io::Result<Output> {
        let command = Confined {
            program: "/bin/sh".as_ref(),
            args: &["-c".into(), ":".into()],
            variables: &[],
            roots: &[],
            directory: "/".as_ref(),
        };
        let line = self.command_line(&command);
        std::process::Command::new(line.program).args(line.args).stdin(readable(&line.input)?).output()
    }
}

/// Returns the directories between writable roots and what is mounted in them.
///
/// A command that renames such a directory could put another one in its place while the next command starts: what is
/// hidden would be mounted at a path where it no longer is. Commands cannot rename a mount point.
fn fixed(mounts: &[MountPoint], writable: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut fixed = BTreeSet::new();
    let is_covered = |path: &Path| mounts.iter().any(|(other, ..)| other == path);
    for (path, ..) in mounts {
        for root in writable.iter().filter(|root| path != *root && path.starts_with(root)) {
            let below: Vec<_> = path.ancestors().skip(1).take_while(|above| above != root).collect();
            // Below another mount point there is nothing that commands could rename.
            let free = below.into_iter().rev().take_while(|above| !is_covered(above));
            // A link is not a directory of this root.
            fixed.extend(
                free.filter(|above| above.canonicalize().is_ok_and(|real| real == **above))
                    .map(PathBuf::from),
            );
        }
    }
    fixed
}

/// Returns bytes as the standard input of a process. A pipe would have to be written while the process reads.
#[cfg(target_os = "linux")]
pub(super) fn readable(bytes: &[u8]) -> io::Result<Stdio> {
    let memory = rustix::fs::memfd_create("options", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(memory);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Sandboxes are supported on Linux only.
#[cfg(not(target_os = "linux"))]
pub(super) fn readable(_: &[u8]) -> io::Result<Stdio> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the roots that are not inside another root, with links resolved. A command can replace a root
/// inside another one by a link to any directory, so only the outer one is mounted.
pub(super) fn outer_roots<'a>(roots: impl Iterator<Item = &'a Path>) -> Vec<PathBuf> {
    let mut roots: Vec<_> = roots.filter_map(|root| root.canonicalize().ok()).collect();
    // Mounting the whole file system would cover every other mount.
    roots.retain(|root| root.parent().is_some());
    roots.sort();
    let mut outer: Vec<PathBuf> = Vec::new();
    for root in roots {
        if !outer.iter().any(|other| root.starts_with(other)) {
            outer.push(root);
        }
    }
    outer
}

fn home_directories() -> Vec<PathBuf> {
    let named = ["HOME", "TMPDIR"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let named = named.filter(|directory| directory.is_absolute() && directory.parent().is_some());
    HIDDEN.iter().map(PathBuf::from).chain(named).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::outer_roots;

    #[test]
    fn a_root_in_another_one_is_left_out() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().canonicalize().unwrap().join(name);
        for name in ["w", "w/inner", "w2"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        symlink(at("w/inner"), at("link")).unwrap();
        let roots = [at("w/inner"), at("w"), at("link"), at("w2"), at("w"), at("none"), "/".into()];
        assert_eq!(outer_roots(roots.iter().map(PathBuf::as_path)), [at("w"), at("w2")]);
    }
}
