//! What the tests share.

use std::net::TcpListener;
use std::time::Duration;

use mock_server::MockServer;
use sandbox_agent_sdk::control::{ControlPlane, ControlTimeouts};

/// How long anything here may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The control plane of a server without a token.
pub(crate) fn plane(server: &MockServer) -> ControlPlane {
    ControlPlane::new(server.url()).unwrap()
}

/// A control plane that gives up sooner than users would like.
pub(crate) fn impatient(url: &str, change: impl FnOnce(&mut ControlTimeouts)) -> ControlPlane {
    let mut timeouts = ControlTimeouts::default();
    change(&mut timeouts);
    ControlPlane::builder(url).timeouts(timeouts).build().unwrap()
}

/// A URL at which nobody listens.
pub(crate) fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Bytes in which a mistake shows.
pub(crate) fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|index| (index * 31 % 251) as u8).collect()
}

/// Awaits something that has to come in time.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, what).await.expect("this should not take so long")
}
