//! Helpers of the tests.

use std::net::TcpListener;
use std::time::Duration;

use mock_server::MockServer;
use sandbox_agent_sdk::control::{ControlPlane, ControlTimeouts};

/// The timeout of anything in these tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Returns the control plane of a server without a token.
pub(crate) fn plane(server: &MockServer) -> ControlPlane {
    ControlPlane::new(server.url()).unwrap()
}

/// Returns a control plane with short timeouts.
pub(crate) fn impatient(url: &str, change: impl FnOnce(&mut ControlTimeouts)) -> ControlPlane {
    let mut timeouts = ControlTimeouts::default();
    change(&mut timeouts);
    ControlPlane::builder(url).timeouts(timeouts).build().unwrap()
}

/// Returns a URL at which nothing listens.
pub(crate) fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Returns bytes in which misplaced chunks are detectable.
pub(crate) fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|index| (index * 31 % 251) as u8).collect()
}

/// Awaits a future within the timeout.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, what).await.expect("timed out")
}
