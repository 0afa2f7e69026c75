//! What terminals are allowed to do.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::process::Command;

use super::allowed::{Allowed, absolute_path, check_variables};
use super::{TerminalCommand, TerminalError};
use crate::Roots;
use crate::process_tree::Inherited;

/// What terminals are allowed to do.
///
/// They run real processes with the rights of this program: whatever a command is allowed to do besides starting in one of
/// the directories, it can do everywhere. Restrict the commands, or run this program where it can do no harm.
#[derive(Clone)]
#[must_use = "options do nothing until terminals are made of them"]
pub struct TerminalOptions {
    roots: Roots,
    allowed: Allowed,
    /// The variables that an agent may set; `None` for all, unless commands are restricted.
    variables: Option<HashSet<String>>,
    shell: Option<PathBuf>,
    inherited: Inherited,
    pub(super) output_limit: usize,
    pub(super) max_output_limit: usize,
    pub(super) max_terminals: usize,
    pub(super) max_session_terminals: usize,
}

impl TerminalOptions {
    /// Commands run in these directories. Every command is allowed until [`allow_only`](Self::allow_only) or
    /// [`allow_if`](Self::allow_if) says otherwise.
    pub fn new(roots: Roots) -> Self {
        Self {
            roots,
            allowed: Allowed::Everything,
            variables: None,
            shell: None,
            inherited: Inherited::with(&[]),
            output_limit: 1 << 20,
            max_output_limit: 16 << 20,
            max_terminals: 64,
            max_session_terminals: 32,
        }
    }

    /// Only these commands are allowed: names, or absolute paths.
    ///
    /// A name is looked up in this program's `PATH`, leaving out what is not absolute there, whatever the agent sets and
    /// wherever it stands. An agent that gives a path must mean one of these programs, by its real file and by its name;
    /// it then runs from where this program finds it. Paths that are not absolute are refused.
    ///
    /// Environment variables of the agent are refused unless they are [allowed](Self::allow_variables): there are too many
    /// by which programs load code. Arguments are not checked: what an allowed program can be made to do is allowed with
    /// it, and one that runs others (a shell, `env`, `find`, `git`, an interpreter) allows everything.
    pub fn allow_only(mut self, commands: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.allowed = Allowed::These(commands.into_iter().map(Into::into).collect());
        self
    }

    /// Only those commands are allowed that this function says yes to. It sees everything that the agent asks for. A
    /// name is then looked up as for [`allow_only`](Self::allow_only), paths that are not absolute are refused, and so
    /// are environment variables that are not [allowed](Self::allow_variables).
    pub fn allow_if(mut self, allow: impl Fn(&TerminalCommand) -> bool + Send + Sync + 'static) -> Self {
        self.allowed = Allowed::If(Arc::new(allow));
        self
    }

    /// An agent may set these environment variables, by their exact names, and no others. Without this it may set none
    /// where commands are restricted, and all where they are not.
    ///
    /// Mind what a variable does to the programs that are allowed: `PATH`, `HOME`, `LD_…`, `BASH_ENV`, `ENV`,
    /// `NODE_OPTIONS`, `PYTHON…`, `PERL5OPT`, `RUSTC_WRAPPER`, `EDITOR`, `PAGER` and most of `GIT_…` make some of them run
    /// whatever the agent likes.
    pub fn allow_variables(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.variables.get_or_insert_default().extend(names.into_iter().map(Into::into));
        self
    }

    /// A command without arguments is a line for this shell, as some agents mean it. Without a shell it is the name of a
    /// program.
    pub fn shell(mut self, shell: impl Into<PathBuf>) -> Self {
        self.shell = Some(shell.into());
        self
    }

    /// Commands get these variables of this program's environment too. By default they get `PATH`, `HOME`, the user,
    /// the language, the terminal and the time zone, and nothing that may be a secret.
    pub fn inherit(mut self, names: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.inherited.add(names);
        self
    }

    /// Commands get the whole environment of this program, with every secret in it.
    pub fn inherit_everything(mut self) -> Self {
        self.inherited = Inherited::Everything;
        self
    }

    /// How many bytes of output are kept of a terminal if the agent does not say. Default 1 MiB.
    pub fn output_limit(mut self, bytes: usize) -> Self {
        self.output_limit = bytes;
        self
    }

    /// How many bytes of output are kept at most, whatever the agent says. Default 16 MiB.
    pub fn max_output_limit(mut self, bytes: usize) -> Self {
        self.max_output_limit = bytes;
        self
    }

    /// How many terminals there may be at once, over all sessions of a connection, whether their commands run or not.
    /// Default 64.
    pub fn max_terminals(mut self, count: usize) -> Self {
        self.max_terminals = count;
        self
    }

    /// How many terminals one session may have at once, whether their commands run or not. Default 32.
    pub fn max_session_terminals(mut self, count: usize) -> Self {
        self.max_session_terminals = count;
        self
    }

    /// How many bytes of a terminal's output are kept.
    pub(super) fn limit_of(&self, command: &TerminalCommand) -> usize {
        let wanted = command.output_limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        wanted.unwrap_or(self.output_limit).min(self.max_output_limit)
    }

    /// The process to start, if it may be started.
    pub(super) fn prepare(&self, wanted: &TerminalCommand) -> Result<Command, TerminalError> {
        let restricted = self.allowed.is_restricted();
        let no_variables = HashSet::new();
        check_variables(self.variables.as_ref().or(restricted.then_some(&no_variables)), wanted)?;
        self.allowed.check(wanted)?;
        let path = std::env::var_os("PATH");
        let is_line = wanted.args.is_empty() && !matches!(self.allowed, Allowed::These(_));
        let mut command = match &self.shell {
            Some(shell) if is_line => {
                let mut command = Command::new(shell);
                command.arg("-c").arg(&wanted.command);
                command
            }
            _ if restricted => {
                let program = self.allowed.program(&wanted.command, path.as_deref())?;
                let mut command = Command::new(program.path);
                command.arg0(program.name).args(&wanted.args);
                command
            }
            _ => {
                let mut command = Command::new(&wanted.command);
                command.args(&wanted.args);
                command
            }
        };
        self.inherited.apply(&mut command);
        if let Some(path) = path.filter(|_| restricted) {
            // What an allowed program looks for must not be what the agent puts into its directory.
            command.env("PATH", absolute_path(&path));
        }
        command.envs(wanted.env.iter().map(|(name, value)| (name, value)));
        let directory = self.directory(wanted.cwd.as_deref())?;
        command.env("PWD", &directory).current_dir(directory);
        Ok(command)
    }

    /// The directory to run in. A command that runs can go wherever it likes, so that a link which is put there between
    /// this look and its start gives it nothing that it does not have.
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

impl fmt::Debug for TerminalOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TerminalOptions")
            .field("roots", &self.roots)
            .field("shell", &self.shell)
            .field("output_limit", &self.output_limit)
            .field("max_terminals", &self.max_terminals)
            .field("max_session_terminals", &self.max_session_terminals)
            .finish_non_exhaustive()
    }
}
