//! Timeouts of control plane requests.

use std::time::Duration;

/// The timeouts of a [`ControlPlane`](crate::control::ControlPlane), one for each phase of a request.
///
/// File transfers have no total timeout: they may take any time as long as data flows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlTimeouts {
    /// The timeout for the TCP and TLS connection. Default 10 s. A custom HTTP client uses its own.
    pub connect: Duration,
    /// The timeout for a response, from the last byte sent to the first byte received. Default 30 s. It also limits the
    /// token provider.
    pub response: Duration,
    /// How long the server may send or accept nothing while a body is transferred. Default 30 s.
    pub stall: Duration,
    /// The timeout for a whole JSON response. Default 5 minutes. It also ends a response that arrives one byte at a
    /// time and so never stalls.
    pub body: Duration,
    /// The timeout for the response to an installation; `None` for no limit. Default 15 minutes. The response arrives
    /// when the installation has ended.
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
