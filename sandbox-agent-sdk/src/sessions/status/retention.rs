//! How long sessions are retained.

use std::time::Duration;

use super::{ResumeSupport, SessionStatus};
use crate::session::Timestamp;

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long inactive sessions are retained, and how long idle agents run.
///
/// ```
/// use std::time::Duration;
/// use sandbox_agent_sdk::session::Timestamp;
/// use sandbox_agent_sdk::sessions::{ResumeSupport, RetentionPolicy, SessionStatus};
///
/// let policy = RetentionPolicy::default();
/// let last_active = Timestamp::from_millis(0);
/// let a_week_later = last_active.saturating_add(Duration::from_secs(7 * 24 * 60 * 60 + 1));
/// let unsupported = ResumeSupport::default();
/// assert!(policy.is_expired(SessionStatus::Suspended, unsupported, last_active, a_week_later));
/// assert!(!policy.is_expired(SessionStatus::Suspended, ResumeSupport::FULL, last_active, a_week_later));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetentionPolicy {
    /// How long a suspended session is retained. Default 7 days.
    pub suspended: Duration,
    /// How long a suspended session that can be resumed is retained. Default 30 days.
    pub resumable: Duration,
    /// How long a failed session is retained for debugging. Default 24 hours.
    pub error: Duration,
    /// How long an agent may be idle before its process is ended. Default 30 minutes.
    pub idle: Duration,
    /// The interval of checks for idle agents. Default 5 minutes.
    pub idle_check: Duration,
    /// The interval of checks for expired sessions. Default one day.
    pub expiry_check: Duration,
}

impl RetentionPolicy {
    /// The name of the environment variable for [`idle`](Self::idle), in whole minutes.
    pub const IDLE_TIMEOUT_VARIABLE: &'static str = "AGENT_SESSION_IDLE_TIMEOUT";

    /// Creates the default policy, with the idle timeout from the environment variable `AGENT_SESSION_IDLE_TIMEOUT`.
    #[must_use]
    pub fn from_env() -> Self {
        let minutes = std::env::var_os(Self::IDLE_TIMEOUT_VARIABLE);
        Self::default().with_idle_minutes(minutes.as_deref().and_then(std::ffi::OsStr::to_str))
    }

    /// Sets the idle timeout from text: a whole number of minutes, at least one. Other text and `None` change
    /// nothing.
    #[must_use]
    pub fn with_idle_minutes(mut self, minutes: Option<&str>) -> Self {
        let Some(text) = minutes.map(str::trim).filter(|text| !text.is_empty()) else { return self };
        match text.parse::<u64>().ok().filter(|minutes| *minutes > 0) {
            Some(minutes) => self.idle = Duration::from_secs(minutes.saturating_mul(60)),
            None => tracing::warn!(minutes = text, "the idle timeout is not a number of minutes"),
        }
        self
    }

    /// Returns how long a session is retained after its last activity; `None` if it never expires.
    ///
    /// Active and archived sessions never expire: they are in use, or a user may want to view them.
    #[must_use]
    pub const fn period(&self, status: SessionStatus, support: ResumeSupport) -> Option<Duration> {
        match status {
            SessionStatus::Active | SessionStatus::Archived => None,
            SessionStatus::Suspended if support.supports_resume => Some(self.resumable),
            SessionStatus::Suspended => Some(self.suspended),
            SessionStatus::Error => Some(self.error),
        }
    }

    /// Returns when the session expires; `None` if it never does.
    #[must_use]
    pub fn expires_at(
        &self,
        status: SessionStatus,
        support: ResumeSupport,
        last_active: Timestamp,
    ) -> Option<Timestamp> {
        self.period(status, support).map(|period| last_active.saturating_add(period))
    }

    /// Returns whether the session has expired and may be deleted.
    #[must_use]
    pub fn is_expired(
        &self,
        status: SessionStatus,
        support: ResumeSupport,
        last_active: Timestamp,
        now: Timestamp,
    ) -> bool {
        self.expires_at(status, support, last_active).is_some_and(|expires_at| now > expires_at)
    }

    /// Returns whether the session's agent has been idle long enough to end its process. The session stays active.
    ///
    /// Always `false` for sessions that are not active: they have no running agent.
    #[must_use]
    pub fn is_agent_idle(&self, status: SessionStatus, last_active: Timestamp, now: Timestamp) -> bool {
        status == SessionStatus::Active && now.since(last_active) >= self.idle
    }
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        Self {
            suspended: DAY * 7,
            resumable: DAY * 30,
            error: DAY,
            idle: HOUR / 2,
            idle_check: HOUR / 12,
            expiry_check: DAY,
        }
    }
}
