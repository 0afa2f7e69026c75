//! A command to run.

use std::path::PathBuf;

use serde_json::Value;

/// A command that the agent wants to run.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct TerminalCommand {
    /// The program, or a line for the shell.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The environment variables that are set for it.
    pub env: Vec<(String, String)>,
    /// The directory to run in; the first of the roots if there is none.
    pub cwd: Option<PathBuf>,
    /// How many bytes of output the agent wants to be kept.
    pub output_limit: Option<u64>,
    /// The request as it came; `null` if it did not come from an agent.
    pub raw: Value,
}

impl TerminalCommand {
    /// Runs this program.
    pub fn new(command: impl Into<String>) -> Self {
        Self { command: command.into(), ..Self::default() }
    }

    /// With these arguments too.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// With this environment variable too.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// In this directory, by the path that the agent knows it by.
    #[must_use]
    pub fn cwd(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cwd = Some(directory.into());
        self
    }

    /// Keeping this many bytes of its output.
    #[must_use]
    pub fn output_limit(mut self, bytes: u64) -> Self {
        self.output_limit = Some(bytes);
        self
    }
}
