//! How long to wait before the next attempt to open a stream.

use std::time::Duration;

/// When and how often a lost stream is reopened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReconnectPolicy {
    /// The delay before the first attempt. It doubles each time. Default 100 ms. A `retry:` field of the server
    /// replaces it.
    pub base: Duration,
    /// The longest delay. Default 30 s.
    pub cap: Duration,
    /// The random variation of a delay, as a fraction. The default of 0.2 means between 80 % and 120 %.
    pub jitter: f64,
    /// How many attempts in a row may fail before the connection ends permanently; `None` for no limit. Default 20.
    pub max_attempts: Option<u32>,
    /// How long a stream that delivers no message must stay open to count as healthy. Default 10 s.
    pub stable_after: Duration,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(30),
            jitter: 0.2,
            max_attempts: Some(20),
            stable_after: Duration::from_secs(10),
        }
    }
}

impl ReconnectPolicy {
    /// Creates a policy that never reconnects: the first lost stream ends the connection.
    pub fn never() -> Self {
        Self { max_attempts: Some(0), ..Self::default() }
    }

    /// Sets the delay before the first attempt.
    #[must_use]
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// Sets the longest delay.
    #[must_use]
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Sets the random variation of a delay, as a fraction.
    #[must_use]
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets how long a stream that delivers no message must stay open to count as healthy.
    #[must_use]
    pub fn stable_after(mut self, time: Duration) -> Self {
        self.stable_after = time;
        self
    }

    /// Sets how many attempts in a row may fail; `None` for no limit.
    #[must_use]
    pub fn max_attempts(mut self, attempts: impl Into<Option<u32>>) -> Self {
        self.max_attempts = attempts.into();
        self
    }
}

/// Counts attempts that made no progress.
#[derive(Debug)]
pub(crate) struct Backoff {
    policy: ReconnectPolicy,
    base: Duration,
    attempts: u32,
}

impl Backoff {
    /// A `retry:` field is honoured between these bounds, so that `retry: 0` is not a hot loop.
    const RETRY_BOUNDS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

    pub(crate) fn new(policy: ReconnectPolicy) -> Self {
        let base = policy.base;
        Self { policy, base, attempts: 0 }
    }

    /// The delay before the next attempt, or `None` when the attempts are used up. `random` is in `0.0..1.0`.
    pub(crate) fn next_delay(&mut self, random: f64) -> Option<Duration> {
        if self.policy.max_attempts.is_some_and(|max| self.attempts >= max) {
            return None;
        }
        let factor = 2f64.powi(self.attempts.min(30) as i32);
        self.attempts += 1;
        let seconds = (self.base.as_secs_f64() * factor).min(self.policy.cap.as_secs_f64());
        let variation = 1.0 + self.policy.jitter.clamp(0.0, 1.0) * (2.0 * random - 1.0);
        Some(Duration::from_secs_f64(seconds * variation))
    }

    /// The stream delivered something new, or stayed open long enough to count as healthy.
    pub(crate) fn progressed(&mut self) {
        self.attempts = 0;
    }

    /// The server requested a delay.
    pub(crate) fn retry_field(&mut self, delay: Duration) {
        self.base = delay.clamp(Self::RETRY_BOUNDS.0, Self::RETRY_BOUNDS.1);
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    pub(crate) fn stable_after(&self) -> Duration {
        self.policy.stable_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(policy: ReconnectPolicy) -> Backoff {
        Backoff::new(ReconnectPolicy { jitter: 0.0, ..policy })
    }

    #[test]
    fn delays_double_up_to_the_cap() {
        let mut backoff = steady(ReconnectPolicy::default().cap(Duration::from_millis(500)));
        let delays: Vec<_> = (0..4).map(|_| backoff.next_delay(0.5).unwrap().as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 500]);
    }

    #[test]
    fn progress_starts_over_and_attempts_run_out() {
        let mut backoff = steady(ReconnectPolicy::default().max_attempts(2));
        assert!(backoff.next_delay(0.5).is_some());
        assert!(backoff.next_delay(0.5).is_some());
        assert!(backoff.next_delay(0.5).is_none());
        backoff.progressed();
        assert_eq!(backoff.next_delay(0.5), Some(Duration::from_millis(100)));
    }

    #[test]
    fn jitter_stays_within_its_part() {
        for random in [0.0, 0.3, 0.999] {
            let delay = Backoff::new(ReconnectPolicy::default()).next_delay(random).unwrap();
            assert!((80..=120).contains(&delay.as_millis()), "{delay:?}");
        }
    }

    #[test]
    fn a_retry_field_is_clamped() {
        for (asked, got) in [(0, 100), (7, 100), (2_000, 2_000), (600_000, 30_000)] {
            let mut backoff = steady(ReconnectPolicy::default());
            backoff.retry_field(Duration::from_millis(asked));
            assert_eq!(backoff.next_delay(0.5).unwrap().as_millis(), got);
        }
    }

    #[test]
    fn a_server_that_accepts_and_closes_sees_a_handful_of_connects_in_ten_seconds() {
        for random in [0.0, 0.5, 0.999] {
            let mut backoff = Backoff::new(ReconnectPolicy::default());
            let mut clock = Duration::ZERO;
            let mut connects = 1;
            while let Some(delay) = backoff.next_delay(random) {
                clock += delay;
                if clock > Duration::from_secs(10) {
                    break;
                }
                connects += 1;
            }
            assert!(connects <= 8, "{connects} connects");
        }
    }
}
