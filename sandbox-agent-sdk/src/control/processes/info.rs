//! Types that the server returns about processes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::convert::open_enum::open_enum;

/// The limits of a server's processes. All values must be above zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessConfig {
    /// How many processes may run at the same time.
    pub max_concurrent_processes: u64,
    /// The default timeout of [`run`](super::Processes::run).
    pub default_run_timeout_ms: u64,
    /// The longest allowed timeout of [`run`](super::Processes::run).
    pub max_run_timeout_ms: u64,
    /// How many bytes of each output stream [`run`](super::Processes::run) returns at most.
    pub max_output_bytes: u64,
    /// How many bytes of a process's output are stored. The oldest output is dropped first.
    pub max_log_bytes_per_process: u64,
    /// How many bytes of input one request may contain.
    pub max_input_bytes_per_request: u64,
}

open_enum! {
    /// The owner of a process.
    pub enum ProcessOwner {
        /// A client created the process.
        User = "user",
        /// The process is part of the desktop.
        Desktop = "desktop",
        /// The process belongs to the server.
        System = "system",
    }
}

open_enum! {
    /// The state of a process.
    pub enum ProcessStatus {
        /// The process is running.
        Running = "running",
        /// The process has exited.
        Exited = "exited",
    }
}

open_enum! {
    /// An output stream of a process.
    pub enum LogStream {
        /// Standard output.
        Stdout = "stdout",
        /// Standard error.
        Stderr = "stderr",
        /// Standard output and standard error, in the order in which the server read them.
        Combined = "combined",
        /// The output of the terminal.
        Pty = "pty",
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProcessExit {
    /// The process exited with this code.
    Code(i64),
    /// A signal ended the process. The server does not report which.
    Signal,
}

impl ProcessExit {
    /// Returns whether the process exited with code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// Returns the exit code; `None` after a signal.
    #[must_use]
    pub fn code(self) -> Option<i64> {
        match self {
            Self::Code(code) => Some(code),
            Self::Signal => None,
        }
    }

    pub(in crate::control) fn from_code(code: Option<i64>) -> Self {
        code.map_or(Self::Signal, Self::Code)
    }
}

/// A process on the server's machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ProcessInfo {
    /// The id on this server. A restarted server reuses ids.
    pub id: String,
    /// The program.
    #[serde(default)]
    pub command: String,
    /// The arguments of the program.
    #[serde(default)]
    pub args: Vec<String>,
    /// The directory in which the process was started, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Whether the process runs in a terminal.
    #[serde(default)]
    pub tty: bool,
    /// Whether the process was marked as interactive.
    #[serde(default)]
    pub interactive: bool,
    /// The owner; servers before 0.4 do not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<ProcessOwner>,
    /// The state.
    pub status: ProcessStatus,
    /// The process id on the server's machine, while the process runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The exit code; absent while the process runs and after a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// When the process was created, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub created_at_ms: u64,
    /// When the process exited, in milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exited_at_ms: Option<u64>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ProcessInfo {
    /// Returns whether the process is running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.status == ProcessStatus::Running
    }

    /// Returns how the process ended; `None` while it is running.
    #[must_use]
    pub fn exit(&self) -> Option<ProcessExit> {
        (self.status == ProcessStatus::Exited).then(|| ProcessExit::from_code(self.exit_code))
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct ProcessList {
    pub(super) processes: Vec<ProcessInfo>,
}

/// The output and the exit status of a command.
///
/// The server decodes the output and replaces invalid UTF-8. [`follow`](super::Processes::follow) returns
/// bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RunOutput {
    /// The exit code; absent after a signal and after the timeout.
    #[serde(default)]
    pub exit_code: Option<i64>,
    /// Whether the command was killed by the timeout.
    #[serde(default)]
    pub timed_out: bool,
    /// The beginning of standard output.
    #[serde(default)]
    pub stdout: String,
    /// The beginning of standard error.
    #[serde(default)]
    pub stderr: String,
    /// Whether standard output was truncated.
    #[serde(default)]
    pub stdout_truncated: bool,
    /// Whether standard error was truncated.
    #[serde(default)]
    pub stderr_truncated: bool,
    /// How long the command ran, in milliseconds.
    #[serde(default)]
    pub duration_ms: u64,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl RunOutput {
    /// Returns how the command ended. A timeout counts as a signal.
    #[must_use]
    pub fn exit(&self) -> ProcessExit {
        ProcessExit::from_code(self.exit_code)
    }

    /// Returns whether the command exited with code 0 before its timeout.
    #[must_use]
    pub fn is_success(&self) -> bool {
        !self.timed_out && self.exit().is_success()
    }
}

/// A chunk of output: the bytes of one read by the server, not a line.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LogEntry {
    /// The sequence number within the process, from 1.
    pub sequence: u64,
    /// The stream to which the output was written.
    pub stream: LogStream,
    /// When the server read the output, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub timestamp_ms: u64,
    /// The bytes of the chunk.
    #[serde(deserialize_with = "base64_bytes")]
    pub data: Bytes,
}

impl LogEntry {
    /// Returns the bytes as text, with U+FFFD for invalid bytes.
    ///
    /// A character may be split across two entries: [`LossyText`](super::LossyText) decodes it correctly.
    #[must_use]
    pub fn text_lossy(&self) -> String {
        String::from_utf8_lossy(&self.data).into_owned()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct LogPage {
    #[serde(default)]
    pub(super) entries: Vec<LogEntry>,
}

fn base64_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD.decode(text).map(Bytes::from).map_err(serde::de::Error::custom)
}
