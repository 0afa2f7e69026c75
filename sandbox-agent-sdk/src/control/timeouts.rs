//! How long plain requests may take.

use std::time::Duration;

/// How long the requests of a [`ControlPlane`](crate::control::ControlPlane) may take, phase by phase.
///
/// There is no total time: a large file takes as long as it takes, as long as it moves.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlTimeouts {
    /// For TCP and TLS to connect. An HTTP client of your own brings its own.
    pub connect: Duration,
    /// For the server to begin its answer, counted from the last byte that was sent.
    pub answer: Duration,
    /// For the next piece of a body: how long the server may send nothing, or take nothing of what is sent.
    pub stall: Duration,
    /// For the answer to an installation, which the server gives when it is done; `None` waits for ever.
    pub install: Option<Duration>,
}

impl Default for ControlTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            stall: Duration::from_secs(30),
            install: Some(Duration::from_secs(15 * 60)),
        }
    }
}
