//! A point in time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point in time in milliseconds since the Unix epoch. Servers and stores use this format.
///
/// ```
/// use std::time::Duration;
/// use sandbox_agent_sdk::session::Timestamp;
///
/// let created = Timestamp::from_millis(1_794_790_579_671);
/// let later = created.saturating_add(Duration::from_secs(60));
/// assert_eq!(later.since(created), Duration::from_secs(60));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Creates a timestamp from milliseconds since the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Converts to [`SystemTime`]; `None` if the platform cannot represent it.
    #[must_use]
    pub fn to_system_time(self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.0))
    }

    /// Returns the timestamp `span` later, or the maximum.
    #[must_use]
    pub fn saturating_add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    ///
    /// The latter happens if two clocks disagree.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Times before the Unix epoch become the epoch; fractions of a millisecond are truncated.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Timestamp, UNIX_EPOCH};

    #[test]
    fn a_timestamp_and_the_system_time_agree() {
        let moment = Timestamp::from_millis(1_794_790_579_671);
        assert_eq!(moment.to_system_time().map(Timestamp::from), Some(moment));
        assert_eq!(Timestamp::from(UNIX_EPOCH - Duration::from_secs(1)), Timestamp::from_millis(0));
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        let last = Timestamp::from_millis(u64::MAX);
        assert_eq!(last.saturating_add(Duration::MAX), last);
        assert_eq!(Timestamp::from_millis(1).since(last), Duration::ZERO);
    }

    #[test]
    fn a_timestamp_travels_as_a_bare_number() {
        assert_eq!(serde_json::to_string(&Timestamp::from_millis(42)).unwrap(), "42");
        assert_eq!(serde_json::from_str::<Timestamp>("42").unwrap(), Timestamp::from_millis(42));
    }
}
