//! What a server reports about processes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::convert::open_enum::open_enum;

/// The limits of a server's processes. All of them have to be above zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessConfig {
    /// How many processes may run at once.
    pub max_concurrent_processes: u64,
    /// How long [`run`](super::Processes::run) lets a command run unless it says otherwise.
    pub default_run_timeout_ms: u64,
    /// How long it lets a command run at most.
    pub max_run_timeout_ms: u64,
    /// How much of each output stream it returns at most.
    pub max_output_bytes: u64,
    /// How much output of a process is kept; the oldest is dropped.
    pub max_log_bytes_per_process: u64,
    /// How much input one request may bring.
    pub max_input_bytes_per_request: u64,
}

open_enum! {
    /// Who a process belongs to.
    pub enum ProcessOwner {
        /// A client created it.
        User = "user",
        /// It is part of the desktop.
        Desktop = "desktop",
        /// It is the server's own.
        System = "system",
    }
}

open_enum! {
    /// Whether a process runs.
    pub enum ProcessStatus {
        /// It runs.
        Running = "running",
        /// It has exited.
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
        /// The terminal.
        Pty = "pty",
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProcessExit {
    /// It exited with this code.
    Code(i64),
    /// A signal ended it. The server does not report which.
    Signal,
}

impl ProcessExit {
    /// Whether it exited with code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// The exit code; `None` after a signal.
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

/// A process of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ProcessInfo {
    /// Its id on this server. A restarted server uses the same ids again.
    pub id: String,
    /// The program.
    #[serde(default)]
    pub command: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// The directory it was started in, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Whether it runs in a terminal.
    #[serde(default)]
    pub tty: bool,
    /// Whether it was marked as interactive.
    #[serde(default)]
    pub interactive: bool,
    /// Who it belongs to; servers before 0.4 do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<ProcessOwner>,
    /// Whether it runs.
    pub status: ProcessStatus,
    /// Its process id on the server's machine, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The exit code; absent while it runs and after a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// When it was created, in milliseconds since 1970.
    #[serde(default)]
    pub created_at_ms: u64,
    /// When it exited, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exited_at_ms: Option<u64>,
    /// Members that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ProcessInfo {
    /// Whether it runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.status == ProcessStatus::Running
    }

    /// How it ended; `None` while it runs.
    #[must_use]
    pub fn exit(&self) -> Option<ProcessExit> {
        (self.status == ProcessStatus::Exited).then(|| ProcessExit::from_code(self.exit_code))
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct ProcessList {
    pub(super) processes: Vec<ProcessInfo>,
}

/// What a command printed, and how it ended.
///
/// The server decodes the output and replaces what is not UTF-8. [`follow`](super::Processes::follow) has bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RunOutput {
    /// The exit code; absent after a signal and after the timeout.
    #[serde(default)]
    pub exit_code: Option<i64>,
    /// Whether it was killed because its time was over.
    #[serde(default)]
    pub timed_out: bool,
    /// Standard output, from its beginning.
    #[serde(default)]
    pub stdout: String,
    /// Standard error, from its beginning.
    #[serde(default)]
    pub stderr: String,
    /// Whether standard output was longer.
    #[serde(default)]
    pub stdout_truncated: bool,
    /// Whether standard error was longer.
    #[serde(default)]
    pub stderr_truncated: bool,
    /// How long it ran, in milliseconds.
    #[serde(default)]
    pub duration_ms: u64,
    /// Members that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl RunOutput {
    /// How it ended. After a timeout that is a signal.
    #[must_use]
    pub fn exit(&self) -> ProcessExit {
        ProcessExit::from_code(self.exit_code)
    }

    /// Whether it exited with code 0 in time.
    #[must_use]
    pub fn is_success(&self) -> bool {
        !self.timed_out && self.exit().is_success()
    }
}

/// A piece of output: bytes that the server read at once, not a line.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LogEntry {
    /// Its number among all entries of the process, from 1.
    pub sequence: u64,
    /// The stream it was written to.
    pub stream: LogStream,
    /// When the server read it, in milliseconds since 1970.
    #[serde(default)]
    pub timestamp_ms: u64,
    /// The bytes.
    #[serde(deserialize_with = "base64_bytes")]
    pub data: Bytes,
}

impl LogEntry {
    /// The bytes as text, with U+FFFD for what is invalid on its own.
    ///
    /// A character may be split over two entries: [`LossyText`](super::LossyText) decodes it whole.
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
