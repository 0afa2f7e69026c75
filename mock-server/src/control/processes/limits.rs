//! The limits of processes.

use serde::{Deserialize, Serialize};

use crate::problem::Problem;

/// The limits, with the released server's names and defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Limits {
    pub(super) max_concurrent_processes: usize,
    pub(super) default_run_timeout_ms: u64,
    pub(super) max_run_timeout_ms: u64,
    pub(super) max_output_bytes: usize,
    pub(super) max_log_bytes_per_process: usize,
    pub(super) max_input_bytes_per_request: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_concurrent_processes: 64,
            default_run_timeout_ms: 30_000,
            max_run_timeout_ms: 300_000,
            max_output_bytes: 1024 * 1024,
            max_log_bytes_per_process: 10 * 1024 * 1024,
            max_input_bytes_per_request: 64 * 1024,
        }
    }
}

impl Limits {
    /// Rejects zeros, and limits the default to the maximum.
    pub(super) fn checked(mut self) -> Result<Self, Problem> {
        let zeros = [
            ("maxConcurrentProcesses", self.max_concurrent_processes == 0),
            ("defaultRunTimeoutMs", self.default_run_timeout_ms == 0),
            ("maxRunTimeoutMs", self.max_run_timeout_ms == 0),
            ("maxOutputBytes", self.max_output_bytes == 0),
            ("maxLogBytesPerProcess", self.max_log_bytes_per_process == 0),
            ("maxInputBytesPerRequest", self.max_input_bytes_per_request == 0),
        ];
        if let Some((name, _)) = zeros.iter().find(|(_, zero)| *zero) {
            return Err(Problem::invalid_request(format!("{name} must be greater than 0")));
        }
        self.default_run_timeout_ms = self.default_run_timeout_ms.min(self.max_run_timeout_ms);
        Ok(self)
    }
}
