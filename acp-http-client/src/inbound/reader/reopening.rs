//! Why a stream is not open, and when to try again.

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::{LinkState, Next, Reader};
use crate::{
    ConnectionState, EndReason, Error, Event,
    printable::OneLine,
    random::fraction,
    transport::{StreamFailure, Trouble},
};

/// The first and the longest pause before a stream that does not exist yet is tried again, while the POST that
/// creates it is being sent. Installing an agent takes minutes.
const SOON: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

impl Reader {
    /// Decides what a refused stream means.
    pub(super) fn refused(&mut self, failure: StreamFailure) -> Next {
        let StreamFailure { trouble, error } = failure;
        tracing::debug!(stream = %OneLine(self.link.source()), error = %OneLine(&error), "the stream did not open");
        match trouble {
            Trouble::Passing | Trouble::Held => Next::Wait(Some(error)),
            Trouble::NotFound if self.is_connection() => self.not_found(error),
            Trouble::NotFound if self.may_be_missing() => Next::Wait(Some(error)),
            // Until a message was accepted, the refusal belongs to the call that tried.
            Trouble::Unauthorized if !self.opened_once && !self.core.was_answered() => {
                Next::Wait(Some(error))
            }
            Trouble::Unauthorized => self.end(error, EndReason::Unauthorized),
            Trouble::NotFound | Trouble::Final => self.end(error, EndReason::StreamRefused),
        }
    }

    fn not_found(&mut self, error: Error) -> Next {
        let bootstrapped = self.core.options.dialect.bootstrap;
        if bootstrapped && !self.opened_once && (!self.core.gate.is_open() || self.may_be_missing()) {
            return Next::Soon;
        }
        if bootstrapped || self.core.transport.connection_id().is_some() {
            return self.end(error, EndReason::ServerGone);
        }
        Next::Wait(Some(error))
    }

    /// Whether a stream that should exist may still be about to.
    fn may_be_missing(&mut self) -> bool {
        let since = self.missing_since.get_or_insert_with(Instant::now);
        since.elapsed() < self.core.options.timeouts.stream_missing
    }

    /// How long to wait for a stream that is about to exist.
    pub(super) fn soon(&mut self) -> Duration {
        let delay = SOON.0.saturating_mul(1 << self.not_yet.min(10)).min(SOON.1);
        self.not_yet += 1;
        delay
    }

    /// The stream is permanently refused: the connection ends, or the session's calls fail.
    fn end(&mut self, error: Error, reason: impl FnOnce(Arc<Error>) -> EndReason) -> Next {
        if self.is_connection() {
            self.core.terminate(reason(Arc::new(error)));
        } else {
            self.core.publish(Event::StreamLost { stream: self.link.source().clone(), error: error.clone() });
            self.link.fail(error.clone());
            self.core.fail_session(self.link.session(), &error);
        }
        Next::End
    }

    /// Waits before the next attempt; `false` if there is none.
    pub(super) async fn wait(&mut self, error: Option<Error>) -> bool {
        let Some(delay) = self.backoff.next_delay(fraction()) else {
            let attempts = self.backoff.attempts();
            let error = error.unwrap_or_else(|| Error::ConnectionLost {
                method: "event stream".to_owned(),
                source: Arc::new(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
            });
            self.end(error, |last| EndReason::RetriesExhausted { attempts, last });
            return false;
        };
        let attempt = self.backoff.attempts();
        match &error {
            Some(error) => {
                tracing::debug!(stream = %OneLine(self.link.source()), attempt, ?delay, error = %OneLine(&error), "stream lost")
            }
            None => tracing::debug!(stream = %OneLine(self.link.source()), attempt, ?delay, "stream ended"),
        }
        // A longer delay that the server requests is used, within the bounds of the policy.
        let asked =
            error.as_ref().and_then(Error::http).and_then(|http| http.retry_after).unwrap_or_default();
        let delay = delay.max(asked.min(self.core.options.reconnect.cap));
        self.link.set_state(LinkState::Down);
        if self.is_connection() && self.opened_once {
            self.core.set_state(ConnectionState::Reconnecting { attempt });
        }
        self.serve(tokio::time::sleep(delay), None).await;
        true
    }
}
