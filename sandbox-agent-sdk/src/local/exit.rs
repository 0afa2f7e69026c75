//! How a process ended.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a server's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LocalExit {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The number of the signal that ended it.
    pub signal: Option<i32>,
}

impl LocalExit {
    pub(super) fn of(status: Option<ExitStatus>) -> Self {
        Self {
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
        }
    }
}

impl fmt::Display for LocalExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => f.write_str("no exit code"),
        }
    }
}
