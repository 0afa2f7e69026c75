//! Waits for a condition with a timeout.

use std::{future::IntoFuture, time::Duration};

/// How long a test waits for anything before it fails.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Returns the output of a future, or fails the test on a timeout.
///
/// # Panics
/// If the timeout expires.
pub async fn within<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future.into_future()).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took longer than {LIMIT:?}"),
    }
}

/// Waits until the condition holds.
///
/// # Panics
/// If the timeout expires.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    within(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
