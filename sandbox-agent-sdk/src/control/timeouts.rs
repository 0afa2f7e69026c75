//! Timeouts of control plane requests.

use std::time::Duration;

/// The timeouts of a [`ControlPlane`](crate::control::ControlPlane), one for each phase of a request.
///
/// A file has no total timeout: it may take any time as long as data flows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlTimeouts {
    /// The timeout of connecting TCP and TLS. A custom HTTP client uses its own.
    pub connect: Duration,
    /// The timeout of a response, from the last byte sent to the first byte received.
    pub response: Duration,
    /// The timeout of a body chunk: how long the server may send nothing, or accept nothing.
    pub stall: Duration,
    /// The timeout of a whole JSON response. A server that sends one byte at a time never stalls.
    pub body: Duration,
    /// The timeout of an installation's response, which arrives at its end; `None` waits without limit.
    pub install: Option<Duration>,
}

impl Default for ControlTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            response: Duration::from_secs(30),
            stall: Duration::from_secs(30),
            body: Duration::from_secs(5 * 60),
            install: Some(Duration::from_secs(15 * 60)),
        }
    }
}
