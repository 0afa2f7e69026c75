//! Types of requests about processes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::info::LogStream;

/// A process to create.
///
/// ```
/// use sandbox_agent_sdk::control::processes::CreateProcess;
///
/// let shell = CreateProcess::new("bash").args(["-l"]).cwd("/work").env("LANG", "C.UTF-8").tty(true);
/// # let _ = shell;
/// ```
#[derive(Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
#[must_use]
pub struct CreateProcess {
    /// The program, looked up in the server's `PATH`.
    pub command: String,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// The directory in which the process starts; by default the server's own directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables added to the server's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Whether the process runs in a terminal.
    pub tty: bool,
    /// Whether the process is marked as interactive. The server only reports this flag back in the process list.
    pub interactive: bool,
}

impl CreateProcess {
    /// Creates a request for a program without arguments and without a terminal.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            cwd: None,
            env: BTreeMap::new(),
            tty: false,
            interactive: false,
        }
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets the directory in which the process starts.
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.cwd = Some(directory.into());
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets whether the process runs in a terminal of 80 columns and 24 rows.
    pub fn tty(mut self, tty: bool) -> Self {
        self.tty = tty;
        self
    }

    /// Sets the interactive flag.
    pub fn interactive(mut self, interactive: bool) -> Self {
        self.interactive = interactive;
        self
    }
}

/// A command to run to completion.
#[derive(Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
#[must_use]
pub struct RunProcess {
    /// The program, looked up in the server's `PATH`.
    pub command: String,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// The directory in which the command starts; by default the server's own directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables added to the server's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// How long the command may run before the server kills it. The server has a default and a maximum.
    #[serde(rename = "timeoutMs", serialize_with = "milliseconds", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// How many bytes of each output stream are returned. The server has a default and a maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<u64>,
}

impl RunProcess {
    /// Creates a request for a program without arguments.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            cwd: None,
            env: BTreeMap::new(),
            timeout: None,
            max_output_bytes: None,
        }
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets the directory in which the command starts.
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.cwd = Some(directory.into());
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets the time after which the server kills the command.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how many bytes of each output stream are returned.
    pub fn max_output_bytes(mut self, bytes: u64) -> Self {
        self.max_output_bytes = Some(bytes);
        self
    }
}

// Variables may be keys, so `Debug` shows only their names.
impl fmt::Debug for CreateProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, args, cwd, env, tty, interactive } = self;
        f.debug_struct("CreateProcess")
            .field("command", command)
            .field("args", args)
            .field("cwd", cwd)
            .field("env", &env.keys())
            .field("tty", tty)
            .field("interactive", interactive)
            .finish()
    }
}

impl fmt::Debug for RunProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, args, cwd, env, timeout, max_output_bytes } = self;
        f.debug_struct("RunProcess")
            .field("command", command)
            .field("args", args)
            .field("cwd", cwd)
            .field("env", &env.keys())
            .field("timeout", timeout)
            .field("max_output_bytes", max_output_bytes)
            .finish()
    }
}

/// Selects log entries of a process. The default is all of them.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct LogQuery {
    /// Only entries of this stream. By default the terminal's output, or both output streams.
    pub stream: Option<LogStream>,
    /// Only this many last entries.
    pub tail: Option<u64>,
    /// Only entries after this sequence number.
    pub since: Option<u64>,
}

impl LogQuery {
    /// Selects all entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects entries of this stream only.
    pub fn stream(mut self, stream: LogStream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// Selects only this many last entries.
    pub fn tail(mut self, entries: u64) -> Self {
        self.tail = Some(entries);
        self
    }

    /// Selects entries after this sequence number only.
    pub fn since(mut self, sequence: u64) -> Self {
        self.since = Some(sequence);
        self
    }
}

/// At least one millisecond: the server treats zero as its default.
fn milliseconds<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    let milliseconds = duration.map_or(0, |duration| duration.as_millis().max(1));
    serializer.serialize_u64(u64::try_from(milliseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::{CreateProcess, RunProcess};

    #[test]
    fn the_values_of_variables_are_hidden_from_debug() {
        let create = format!("{:?}", CreateProcess::new("sh").args(["-c"]).env("API_KEY", "s3cret"));
        let run = format!("{:?}", RunProcess::new("sh").args(["-c"]).env("API_KEY", "s3cret"));
        for shown in [create, run] {
            assert!(
                shown.contains("API_KEY") && shown.contains("-c") && !shown.contains("s3cret"),
                "{shown}"
            );
        }
    }
}
