//! Options of terminals.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use tokio::process::Command;

use super::allowed::{Allowed, check_variables, entry_in, locate, safe_path};
use super::sandbox::{Confined, Sandbox, outer_roots, readable};
use super::spawner::Spawner;
use super::{TerminalCommand, TerminalError};
use crate::process_tree::Inherited;
use crate::tools::Roots;

/// Options of terminals: which commands may run, where, and with which limits.
///
/// Commands are processes with the rights of this program. The roots determine where a command starts, not
/// what it can access. A [`sandbox`](Self::sandbox) restricts access. [`allow_only`](Self::allow_only) and
/// [`allow_if`](Self::allow_if) only determine which commands start, and most programs can be made to run
/// others.
#[derive(Clone)]
#[must_use = "options do nothing until they are passed to `Terminals::new`"]
pub struct TerminalOptions {
    roots: Roots,
    allowed: Allowed,
    /// Whether an allowed program may be in a root.
    programs_in_roots: bool,
    /// The variables that an agent may set. `None` means all, unless commands are restricted.
    variables: Option<HashSet<String>>,
    shell: Option<PathBuf>,
    sandbox: Option<Confinement>,
    inherited: Inherited,
    pub(super) output_limit: usize,
    pub(super) max_output_limit: usize,
    pub(super) total_output_limit: usize,
    pub(super) max_terminals: usize,
    pub(super) max_session_terminals: usize,
}

/// A sandbox and the directories that commands may use in it.
#[derive(Clone)]
struct Confinement {
    sandbox: Sandbox,
    roots: Vec<PathBuf>,
}

impl TerminalOptions {
    /// Creates options for commands that start in these directories.
    ///
    /// By default every command is allowed, with the rights of this program.
    pub fn new(roots: Roots) -> Self {
        Self {
            roots,
            allowed: Allowed::Everything,
            programs_in_roots: false,
            variables: None,
            shell: None,
            sandbox: None,
            inherited: Inherited::with(&[]),
            output_limit: 1 << 20,
            max_output_limit: 16 << 20,
            total_output_limit: 64 << 20,
            max_terminals: 64,
            max_session_terminals: 32,
        }
    }

    /// Allows only these programs, given as names or absolute paths.
    ///
    /// **This is not a sandbox.** It checks which program starts, not its arguments. A program that can run other
    /// programs allows everything. This is true for shells, interpreters, `env`, `find`, `make`, `cargo`, but also
    /// for `git` (`git -c alias.x='!sh' x`), `tar` (`--checkpoint-action`) and editors. Allow only programs that
    /// cannot run others, and use a [`sandbox`](Self::sandbox) for everything else.
    ///
    /// The agent cannot substitute another program. A name is looked up in this program's `PATH` without its relative
    /// entries. A path must have the name of an allowed program and resolve to the same file. The command then runs
    /// the file that the lookup found, not the agent's path. Relative paths are rejected, and so are programs in a root,
    /// such as those of a virtual environment, because the agent can replace them
    /// ([`TerminalError::Replaceable`]). The `PATH` of the command has no directories in a root. Only the program itself
    /// is checked, not the interpreter that a script names and the files that a program loads. Environment variables that
    /// are not [allowed](Self::allow_variables) are rejected too, because many of them make programs load code. A
    /// [`shell`](Self::shell) is not used.
    pub fn allow_only(mut self, commands: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.allowed = Allowed::These(commands.into_iter().map(Into::into).collect());
        self
    }

    /// Allows only commands for which this function returns `true`.
    ///
    /// The function receives the whole request. With a [`shell`](Self::shell), a command without arguments is
    /// a script: a function that checks only the first word of [`command`](TerminalCommand::command)
    /// restricts nothing (`git status; rm -rf .`). As for [`allow_only`](Self::allow_only), arguments can
    /// make most programs run others, names are looked up in this program's `PATH`, and relative paths,
    /// programs in a root and environment variables that are not [allowed](Self::allow_variables) are rejected.
    pub fn allow_if(mut self, allow: impl Fn(&TerminalCommand) -> bool + Send + Sync + 'static) -> Self {
        self.allowed = Allowed::If(Arc::new(allow));
        self
    }

    /// Lets restricted commands run programs in a root, such as those of a virtual environment.
    ///
    /// **The agent chooses what such a program does**: it can replace the program by writing the file, or by an allowed
    /// program that writes files. By default [`allow_only`](Self::allow_only) and [`allow_if`](Self::allow_if) reject
    /// these programs.
    pub fn allow_programs_in_roots(mut self) -> Self {
        self.programs_in_roots = true;
        self
    }

    /// Lets agents set these environment variables, by exact name, and no others.
    ///
    /// By default an agent may set none if commands are restricted by `allow_only` or `allow_if`, and all
    /// otherwise. Many variables make programs run code: `PATH`, `HOME`, `LD_…`, `BASH_ENV`, `ENV`,
    /// `NODE_OPTIONS`, `PYTHON…`, `PERL5OPT`, `RUSTC_WRAPPER`, `EDITOR`, `PAGER` and most of `GIT_…`.
    pub fn allow_variables(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.variables.get_or_insert_default().extend(names.into_iter().map(Into::into));
        self
    }

    /// Runs a command without arguments as a script of this shell, as some agents expect.
    ///
    /// By default the command is the name of a program.
    pub fn shell(mut self, shell: impl Into<PathBuf>) -> Self {
        self.shell = Some(shell.into());
        self
    }

    /// Runs commands in a sandbox.
    ///
    /// A command in a sandbox has no network, and the file system outside the roots is read-only. Every
    /// process of a command ends with its terminal. The roots must exist when this is called, and `/` cannot
    /// be a root. If a signal ends a command in a sandbox, its exit code is 128 plus the signal number, as in
    /// a shell.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use sandbox_agent_sdk::tools::Sandbox;
    /// use sandbox_agent_sdk::tools::{Roots, TerminalOptions};
    ///
    /// let options = TerminalOptions::new(Roots::at("/work")).sandbox(Sandbox::detect()?);
    /// # Ok(()) }
    /// ```
    pub fn sandbox(mut self, sandbox: Sandbox) -> Self {
        // Resolved now, before a command can replace a root by a link.
        let roots = outer_roots(self.roots.iter().map(|root| root.local.as_path()));
        self.sandbox = Some(Confinement { sandbox, roots });
        self
    }

    /// Passes on these variables of this program's environment.
    ///
    /// By default commands get `PATH`, `HOME`, the user, the language, the terminal and the time zone, and
    /// nothing that may be a secret.
    pub fn inherit(mut self, names: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.inherited.add(names);
        self
    }

    /// Passes on the whole environment of this program, including all secrets.
    pub fn inherit_everything(mut self) -> Self {
        self.inherited = Inherited::Everything;
        self
    }

    /// Sets how many bytes of output are buffered if the agent does not specify it. Default 1 MiB.
    pub fn output_limit(mut self, bytes: usize) -> Self {
        self.output_limit = bytes;
        self
    }

    /// Sets the maximum size of the output buffer, even if the agent requests more. Default 16 MiB.
    pub fn max_output_limit(mut self, bytes: usize) -> Self {
        self.max_output_limit = bytes;
        self
    }

    /// Sets how many bytes all terminals of a connection may buffer together. Default 64 MiB.
    ///
    /// A running terminal counts its output limit; a finished one counts its buffered output. A command that exceeds
    /// the limit is not started and fails with [`TerminalError::OutputBudget`].
    pub fn total_output_limit(mut self, bytes: usize) -> Self {
        self.total_output_limit = bytes;
        self
    }

    /// Sets how many terminals a connection may have at once. Default 64.
    ///
    /// Terminals count whether their commands are running or not.
    pub fn max_terminals(mut self, count: usize) -> Self {
        self.max_terminals = count;
        self
    }

    /// Sets how many terminals a session may have at once. Default 32.
    ///
    /// Terminals count whether their commands are running or not.
    pub fn max_session_terminals(mut self, count: usize) -> Self {
        self.max_session_terminals = count;
        self
    }

    /// Returns how many bytes of a command's output are buffered.
    pub(super) fn limit_of(&self, command: &TerminalCommand) -> usize {
        let wanted = command.output_limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        wanted.unwrap_or(self.output_limit).min(self.max_output_limit)
    }

    /// Returns the thread that starts commands, if they must end with it.
    pub(super) fn spawner(&self) -> Option<&Spawner> {
        self.sandbox.as_ref().map(|confinement| &*confinement.sandbox.spawner)
    }

    /// Builds the process to start, if it is allowed.
    pub(super) fn prepare(&self, wanted: &TerminalCommand) -> Result<Command, TerminalError> {
        let restricted = self.allowed.is_restricted();
        let no_variables = HashSet::new();
        check_variables(self.variables.as_ref().or(restricted.then_some(&no_variables)), wanted)?;
        self.allowed.check(wanted)?;
        let path = std::env::var_os("PATH");
        let writable = self.writable(restricted);
        let (program, name, args) = self.program(wanted, path.as_deref(), &writable)?;
        let directory = self.directory(wanted.cwd.as_deref())?;
        let mut variables: Vec<(OsString, OsString)> = Vec::new();
        if let Some(path) = path.as_ref().filter(|_| restricted) {
            // An allowed program must not find programs of the agent.
            variables.push(("PATH".into(), safe_path(path, &writable)));
        }
        variables.extend(wanted.env.iter().map(|(name, value)| (name.into(), value.into())));
        variables.push(("PWD".into(), directory.clone().into()));
        let Some(Confinement { sandbox, roots }) = &self.sandbox else {
            let mut command = Command::new(program);
            if let Some(name) = name {
                command.arg0(name);
            }
            command.args(args);
            self.inherited.apply(&mut command);
            command.envs(variables).current_dir(directory).stdin(Stdio::null());
            return Ok(command);
        };
        if !exists(&program, &directory, path.as_deref()) {
            return Err(TerminalError::NoCommand(wanted.command.clone()));
        }
        if !roots.iter().any(|root| directory.starts_with(root)) {
            return Err(TerminalError::Outside(directory));
        }
        let line = sandbox.command_line(&Confined {
            program: program.as_os_str(),
            args: &args,
            variables: &variables,
            roots,
            directory: &directory,
        });
        let input = readable(&line.input).map_err(|error| failed(wanted, error))?;
        let mut command = Command::new(line.program);
        command.args(line.args);
        self.inherited.apply(&mut command);
        command.current_dir("/").stdin(input);
        Ok(command)
    }

    /// Returns the program to start, its `argv[0]` if commands are restricted, and its arguments. `writable` are the
    /// directories in which a restricted program must not be.
    fn program(
        &self,
        wanted: &TerminalCommand,
        path: Option<&OsStr>,
        writable: &[PathBuf],
    ) -> Result<(PathBuf, Option<String>, Vec<OsString>), TerminalError> {
        let is_script = wanted.args.is_empty() && !matches!(self.allowed, Allowed::These(_));
        if let Some(shell) = self.shell.as_ref().filter(|_| is_script) {
            return Ok((shell.clone(), None, vec!["-c".into(), OsString::from(&wanted.command)]));
        }
        let args = wanted.args.iter().map(OsString::from).collect();
        if !self.allowed.is_restricted() {
            return Ok((PathBuf::from(&wanted.command), None, args));
        }
        let program = self.allowed.program(&wanted.command, path)?;
        match entry_in(&program.path, writable).map_err(|error| failed(wanted, error))? {
            Some(entry) => Err(TerminalError::Replaceable(entry)),
            None => Ok((program.path, Some(program.name), args)),
        }
    }

    /// Returns the directories in which an agent must not choose the programs of restricted commands.
    fn writable(&self, restricted: bool) -> Vec<PathBuf> {
        let roots = self.roots.iter().filter(|_| restricted && !self.programs_in_roots);
        // A root that does not exist has no programs.
        roots.filter_map(|root| root.local.canonicalize().ok()).collect()
    }

    /// Returns the working directory. A running command can access any directory anyway, so a link that is
    /// created between this check and the start grants nothing new.
    fn directory(&self, cwd: Option<&Path>) -> Result<PathBuf, TerminalError> {
        let outside = |path: &Path| TerminalError::Outside(path.to_owned());
        let (root, rest, named) = match cwd {
            Some(path) => {
                let (index, rest) = self.roots.locate(path).ok_or_else(|| outside(path))?;
                (self.roots.iter().nth(index).ok_or_else(|| outside(path))?, rest, path)
            }
            None => {
                let root = self.roots.iter().next().ok_or_else(|| outside(Path::new("")))?;
                (root, Path::new(""), root.name.as_path())
            }
        };
        let missing = |_| TerminalError::NoDirectory(named.to_owned());
        let real_root = root.local.canonicalize().map_err(missing)?;
        let real = root.local.join(rest).canonicalize().map_err(missing)?;
        if !real.starts_with(&real_root) {
            return Err(outside(named));
        }
        if !real.is_dir() {
            return Err(TerminalError::NoDirectory(named.to_owned()));
        }
        Ok(real)
    }
}

fn failed(wanted: &TerminalCommand, source: io::Error) -> TerminalError {
    TerminalError::Io { command: wanted.command.clone(), source: Arc::new(source) }
}

/// Whether a program with this name exists for a command in this directory.
fn exists(program: &Path, directory: &Path, path: Option<&OsStr>) -> bool {
    match program.to_str() {
        Some(name) if !name.contains('/') => locate(name, path).is_some(),
        _ => directory.join(program).is_file(),
    }
}

impl fmt::Debug for TerminalOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TerminalOptions")
            .field("roots", &self.roots)
            .field("shell", &self.shell)
            .field("sandbox", &self.sandbox.as_ref().map(|confinement| &confinement.sandbox))
            .field("output_limit", &self.output_limit)
            .field("total_output_limit", &self.total_output_limit)
            .field("max_terminals", &self.max_terminals)
            .field("max_session_terminals", &self.max_session_terminals)
            .finish_non_exhaustive()
    }
}
