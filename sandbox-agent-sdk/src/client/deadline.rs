//! Deadlines of any length.

use std::time::Duration;

use tokio::time::Instant;

/// The time that stands for "never". Adding more to the clock can overflow.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Returns the time after this duration from now. A duration that exceeds thirty years is cut to thirty years.
pub(crate) fn deadline_after(duration: Duration) -> Instant {
    deadline_from(Instant::now(), duration)
}

/// Returns the time after this duration from a recent instant.
pub(crate) fn deadline_from(since: Instant, duration: Duration) -> Instant {
    since + duration.min(FAR)
}
