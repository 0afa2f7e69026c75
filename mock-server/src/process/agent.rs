//! An agent that runs as a process.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::process::Command;

use super::running::RunningProcess;
use crate::agent::{Agent, LaunchError, Outlet, Running};

/// The default time between SIGTERM and SIGKILL.
const DEFAULT_GRACE: Duration = Duration::from_secs(1);

/// A command that speaks ACP on its standard streams, one JSON message per line.
///
/// Each launch is a process that leads a new process group. By default it inherits the environment and the
/// working directory of the server. Dropping the last handle sends SIGTERM to the group and, after a grace
/// period, SIGKILL. When the agent exits, remaining processes in its group are killed. A process that leaves
/// the group is not killed.
///
/// ```no_run
/// # use mock_server::ProcessAgent;
/// let agent = ProcessAgent::new("npx").args(["some-agent", "--acp"]).env("NO_COLOR", "1");
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ProcessAgent {
    /// The program, searched in `PATH` unless it contains a directory.
    program: OsString,
    /// The arguments.
    args: Vec<OsString>,
    /// Variables in addition to the inherited ones.
    env: Vec<(OsString, OsString)>,
    /// The working directory, if not the server's.
    cwd: Option<PathBuf>,
    /// Time between SIGTERM and SIGKILL.
    grace: Duration,
}

/// The error of an invalid command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandLineError {
    /// The command line is empty.
    #[error("the command line is empty")]
    Empty,
    /// A quotation is not closed, or the line ends with a backslash.
    #[error("the command line has an unfinished quotation")]
    Unfinished,
}

impl ProcessAgent {
    /// Creates an agent that runs `program` without arguments.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self { program: program.into(), args: Vec::new(), env: Vec::new(), cwd: None, grace: DEFAULT_GRACE }
    }

    /// Creates an agent from one line, split into words like a shell does. Nothing is expanded.
    ///
    /// # Errors
    /// [`CommandLineError`] if the line is empty or a quotation is not closed.
    pub fn from_command_line(line: &str) -> Result<Self, CommandLineError> {
        let mut words = shlex::split(line).ok_or(CommandLineError::Unfinished)?.into_iter();
        let program = words.next().filter(|word| !word.is_empty()).ok_or(CommandLineError::Empty)?;
        Ok(Self::new(program).args(words))
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets one environment variable.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the working directory.
    pub fn cwd(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cwd = Some(directory.into());
        self
    }

    /// Sets the time between SIGTERM and SIGKILL; one second by default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Returns the program of this agent.
    pub fn program(&self) -> &OsStr {
        &self.program
    }

    /// Returns the program and its arguments.
    pub fn words(&self) -> impl Iterator<Item = &OsStr> {
        std::iter::once(self.program()).chain(self.args.iter().map(OsString::as_os_str))
    }

    fn start(&self, outlet: Outlet) -> io::Result<RunningProcess> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        RunningProcess::start(&mut command, self.grace, outlet)
    }
}

impl Agent for ProcessAgent {
    fn launch(&self, outlet: Outlet) -> BoxFuture<'static, Result<Arc<dyn Running>, LaunchError>> {
        let started = self.start(outlet);
        Box::pin(async move { Ok(Arc::new(started?) as Arc<dyn Running>) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_split_like_a_shell_would() {
        let agent = ProcessAgent::from_command_line(r#"node "my agent.js" --flag='a b' c\ d"#).unwrap();
        assert_eq!(agent.program(), "node");
        assert_eq!(agent.args, ["my agent.js", "--flag=a b", "c d"]);
        assert_eq!(agent.words().collect::<Vec<_>>(), ["node", "my agent.js", "--flag=a b", "c d"]);
    }

    #[test]
    fn a_command_line_without_a_program_is_rejected() {
        for line in ["", "   ", "''"] {
            assert_eq!(ProcessAgent::from_command_line(line).unwrap_err(), CommandLineError::Empty);
        }
        let unfinished = ProcessAgent::from_command_line("sh -c 'oops");
        assert_eq!(unfinished.unwrap_err(), CommandLineError::Unfinished);
    }
}
