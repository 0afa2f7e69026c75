//! A command to run.

use std::path::PathBuf;

use serde_json::Value;

/// A command that an agent requests.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct TerminalCommand {
    /// The program. With [`shell`](super::TerminalOptions::shell) and without arguments, this is a whole script.
    pub command: String,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// Environment variables to set.
    pub env: Vec<(String, String)>,
    /// The working directory; by default the first root.
    pub cwd: Option<PathBuf>,
    /// How many bytes of output to buffer.
    pub output_limit: Option<u64>,
    /// The raw request; `null` if no agent sent it.
    pub raw: Value,
}

impl TerminalCommand {
    /// Creates a command for this program.
    pub fn new(command: impl Into<String>) -> Self {
        Self { command: command.into(), ..Self::default() }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the working directory, as a path that the agent uses.
    #[must_use]
    pub fn cwd(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cwd = Some(directory.into());
        self
    }

    /// Sets how many bytes of output to buffer.
    #[must_use]
    pub fn output_limit(mut self, bytes: u64) -> Self {
        self.output_limit = Some(bytes);
        self
    }
}
