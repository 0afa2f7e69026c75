//! Waiting for a condition, with a limit instead of a guess.

use std::{future::IntoFuture, time::Duration};

/// How long a test waits for anything before it fails.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Gives what the future gives, or fails the test when it takes too long.
///
/// # Panics
/// When the limit passes.
pub async fn within<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future.into_future()).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took longer than {LIMIT:?}"),
    }
}

/// Waits until the condition holds.
///
/// # Panics
/// When it does not hold within the limit.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    within(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
