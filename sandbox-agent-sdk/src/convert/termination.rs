//! How a session or its agent ended.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::fields::{Fields, put};
use crate::convert::open_enum::open_enum;
use crate::convert::plain_text::plain_line;

mod report;
mod stderr;
#[cfg(test)]
mod tests;

pub use report::TerminationReport;
pub use stderr::StderrOutput;

/// How many of the last lines of stderr `Display` shows.
const SHOWN_LINES: usize = 10;

open_enum! {
    /// Why a session ended.
    pub enum EndReason {
        /// The agent exited normally.
        Completed = "completed",
        /// The agent failed: it exited with a non-zero code, or a signal ended it.
        Error = "error",
        /// A client or the server requested the end.
        Terminated = "terminated",
        /// The reason was not reported.
        Unknown = "unknown",
    }
}

open_enum! {
    /// Who ended a session.
    pub enum TerminatedBy {
        /// The agent's process.
        Agent = "agent",
        /// The server, on its own or at a client's request.
        Daemon = "daemon",
        /// Who ended the session was not reported.
        Unknown = "unknown",
    }
}

/// How a session or its agent ended.
///
/// `Display` is suitable for users: the reason, the exit code or the signal, the message and the last lines
/// of stderr, without terminal escapes.
///
/// ```
/// use sandbox_agent_sdk::TerminationInfo;
/// use sandbox_agent_sdk::termination::EndReason;
///
/// let info: TerminationInfo = serde_json::from_str(
///     r#"{"reason":"error","terminated_by":"agent","exit_code":3,
///         "stderr":{"head":"boom line 1\nboom line 2","truncated":false,"total_lines":2}}"#,
/// )?;
/// assert_eq!(info.reason, EndReason::Error);
/// assert_eq!(info.to_string(), "error, exit code 3\nstderr:\n  boom line 1\n  boom line 2");
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// Deserializes from snake case, camel case or a mixture; serializes to camel case. A missing reason is
/// derived from the exit code or the signal, or is [`EndReason::Unknown`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Map<String, Value>", into = "Map<String, Value>")]
#[non_exhaustive]
pub struct TerminationInfo {
    /// Why the session or agent ended.
    pub reason: EndReason,
    /// Who ended the session or agent.
    pub terminated_by: TerminatedBy,
    /// The server's message.
    pub message: Option<String>,
    /// The exit code of the agent's process. `None` if a signal ended it.
    pub exit_code: Option<i64>,
    /// The name of the signal that ended the agent's process, such as `SIGKILL`.
    pub signal: Option<String>,
    /// The agent's stderr output.
    pub stderr: Option<StderrOutput>,
    /// Whether this client requested the end. A requested end is never an [`EndReason::Error`].
    pub requested: bool,
    /// Unknown fields, as the server sent them.
    pub other: Map<String, Value>,
}

impl TerminationInfo {
    /// Creates a termination with only a reason and who caused it.
    #[must_use]
    pub fn new(reason: EndReason, terminated_by: TerminatedBy) -> Self {
        Self {
            reason,
            terminated_by,
            message: None,
            exit_code: None,
            signal: None,
            stderr: None,
            requested: false,
            other: Map::new(),
        }
    }

    /// Parses the object that servers send; `None` if the value is not an object.
    #[must_use]
    pub fn from_value(value: &Value) -> Option<Self> {
        value.as_object().cloned().map(Self::from)
    }

    /// Parses the error data of a call that failed because of the end; `None` if it has no `terminationInfo`.
    pub(crate) fn from_error_data(data: &Value) -> Option<Self> {
        let info = data.get("terminationInfo").or_else(|| data.get("termination_info"))?;
        Self::from_value(info)
    }

    /// Returns whether the agent failed. Exiting normally and being stopped are not failures.
    #[must_use]
    pub fn is_crash(&self) -> bool {
        self.reason == EndReason::Error && !self.requested
    }

    /// Returns the last lines of stderr, at most `count`, oldest first.
    ///
    /// Empty if the agent wrote nothing, or the server did not report it.
    #[must_use]
    pub fn last_stderr_lines(&self, count: usize) -> Vec<&str> {
        self.stderr.as_ref().map(|stderr| stderr.last_lines(count)).unwrap_or_default()
    }

    /// The first line of `Display`, without stderr.
    pub(crate) fn headline(&self) -> impl fmt::Display {
        Headline(self)
    }

    fn fmt_headline(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain_line(self.reason.as_str()))?;
        if self.requested {
            f.write_str(" as requested")?;
        }
        if let Some(code) = self.exit_code {
            write!(f, ", exit code {code}")?;
        }
        if let Some(signal) = &self.signal {
            write!(f, ", killed by {}", plain_line(signal))?;
        }
        let known = self.exit_code.is_some() || self.signal.is_some();
        match &self.message {
            // Some servers repeat the exit status in the message, in Rust's `Debug` format.
            Some(message) if known && wait_status_in(message).is_some() => Ok(()),
            Some(message) => write!(f, ": {}", plain_line(message)),
            None => Ok(()),
        }
    }
}

struct Headline<'a>(&'a TerminationInfo);

impl fmt::Display for Headline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_headline(f)
    }
}

impl fmt::Display for TerminationInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_headline(f)?;
        match &self.stderr {
            Some(stderr) => stderr.fmt_last_lines(f, SHOWN_LINES),
            None => Ok(()),
        }
    }
}

impl From<Map<String, Value>> for TerminationInfo {
    fn from(map: Map<String, Value>) -> Self {
        let mut fields = Fields::new(map);
        let reason = fields.string(&["reason"]).map(EndReason::from);
        let terminated_by = fields.string(&["terminatedBy", "terminated_by"]).map(TerminatedBy::from);
        let message = fields.string(&["message"]);
        let exit_code = fields.integer(&["exitCode", "exit_code"]);
        let signal = fields.take(&["signal"], signal_name).or_else(|| {
            // Some servers send no signal name, only a message in the format of Rust's `ExitStatus`.
            // Examples: "signal: 9 (SIGKILL)", "unix_wait_status(9)".
            message.as_deref().filter(|_| exit_code.is_none()).and_then(signal_in)
        });
        let stderr = fields.take(&["stderr"], StderrOutput::from_value);
        let requested = fields.bool(&["requested"]).unwrap_or(false);
        Self {
            reason: reason.unwrap_or_else(|| reason_of_exit(exit_code, signal.is_some())),
            terminated_by: terminated_by.unwrap_or(TerminatedBy::Unknown),
            message,
            exit_code,
            signal,
            stderr,
            requested,
            other: fields.rest(),
        }
    }
}

impl From<TerminationInfo> for Map<String, Value> {
    fn from(info: TerminationInfo) -> Self {
        let mut map = Self::new();
        put(&mut map, "reason", Some(info.reason.as_str()));
        put(&mut map, "terminatedBy", Some(info.terminated_by.as_str()));
        put(&mut map, "message", info.message);
        put(&mut map, "exitCode", info.exit_code);
        put(&mut map, "signal", info.signal);
        put(&mut map, "stderr", info.stderr.map(Self::from));
        put(&mut map, "requested", info.requested.then_some(true));
        // A field that could not be parsed is preserved under its own name.
        map.extend(info.other);
        map
    }
}

/// Derives the reason from the exit of the process.
fn reason_of_exit(exit_code: Option<i64>, signalled: bool) -> EndReason {
    match exit_code {
        Some(0) => EndReason::Completed,
        Some(_) => EndReason::Error,
        None if signalled => EndReason::Error,
        None => EndReason::Unknown,
    }
}

/// Returns the name of a signal. Accepts a name, or a number that is the same on all systems.
fn signal_name(value: &Value) -> Option<String> {
    if let Some(name) = value.as_str() {
        return Some(name.to_owned());
    }
    let name = match value.as_u64()? {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        number => return Some(number.to_string()),
    };
    Some(name.to_owned())
}

/// Finds the wait status in a message such as "agent exited with status ExitStatus(unix_wait_status(9))".
pub(crate) fn wait_status_in(message: &str) -> Option<u64> {
    message.split_once("unix_wait_status(")?.1.split_once(')')?.0.parse().ok()
}

fn signal_in(message: &str) -> Option<String> {
    if let Some(status) = wait_status_in(message) {
        // The low seven bits of a wait status are the signal; they are zero if the process exited.
        return Some(status & 0x7f)
            .filter(|signal| *signal != 0)
            .and_then(|signal| signal_name(&signal.into()));
    }
    let (_, after) = message.split_once("signal: ")?;
    let number: String = after.chars().take_while(char::is_ascii_digit).collect();
    if let Some(name) = after[number.len()..].strip_prefix(" (").and_then(|rest| rest.split(')').next())
        && !number.is_empty()
        && name.starts_with("SIG")
    {
        return Some(name.to_owned());
    }
    signal_name(&number.parse::<u64>().ok()?.into())
}
