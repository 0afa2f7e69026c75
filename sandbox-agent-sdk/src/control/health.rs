//! Checks whether a server is up, and waits for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep, timeout};

use super::http::{Call, Http};
use super::route::Route;
use crate::Error;
use crate::client::limits::BodyKind;
use crate::client::network::check_runtime;
use crate::error::{Phase, Timeout};

/// The first pause between two probes.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between two probes.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The timeout of one probe while waiting.
const PROBE: Duration = Duration::from_secs(5);

/// The health report of a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Health {
    /// The status; `ok` if the server is healthy.
    pub status: String,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Health {
    /// Returns whether the server is healthy.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.status == "ok"
    }
}

/// Checks the health of a server.
#[derive(Debug, Clone)]
pub struct HealthCheck {
    http: Http,
}

impl HealthCheck {
    pub(super) fn new(http: Http) -> Self {
        Self { http }
    }

    /// Sends one health request.
    pub fn check(&self) -> BoxFuture<'static, Result<Health, Error>> {
        let call = Call::new("check health", Method::GET, Route::new("/v1/health"));
        self.http.value(Ok(call.kind(BodyKind::Health)))
    }

    /// Waits until the server is healthy, for example after its sandbox was started.
    ///
    /// Repeats the check while the server is unreachable or unhealthy.
    ///
    /// # Errors
    /// [`Error::Timeout`] with [`Phase::Health`] if the timeout expires; the last failure is its source. Fails
    /// immediately if the server rejects the token or redirects, because waiting does not help. [`StartPhase::of`]
    /// classifies the error.
    pub fn wait(&self, wait: HealthWait) -> BoxFuture<'static, Result<Health, Error>> {
        let health = self.clone();
        Box::pin(async move {
            let start = Instant::now();
            let mut pause = FIRST_PAUSE;
            let mut last: Option<Error> = None;
            loop {
                let left = wait.within.saturating_sub(start.elapsed());
                let error = match (health.probe(left.min(PROBE)).await, last) {
                    (Ok(health), _) => return Ok(health),
                    // The previous failure has more information than a probe that was cut short.
                    (Err(error), Some(last)) if left < PROBE && error.is_timeout() => last,
                    (Err(error), last) => wait.judge(error, last.as_ref())?,
                };
                let left = wait.within.saturating_sub(start.elapsed());
                if left.is_zero() {
                    let mut timeout = Timeout::new(Phase::Health, "wait for health", start.elapsed());
                    timeout.cause = Some(Arc::new(error));
                    return Err(Error::Timeout(Box::new(timeout)));
                }
                last = Some(error);
                sleep(pause.min(left)).await;
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
        })
    }

    /// Sends one request and treats everything except `ok` as a failure.
    async fn probe(&self, limit: Duration) -> Result<Health, Error> {
        check_runtime()?;
        let response = timeout(limit, self.check()).await;
        let health = response
            .map_err(|_| Error::Timeout(Box::new(Timeout::new(Phase::Headers, "check health", limit))))??;
        if health.is_ok() {
            return Ok(health);
        }
        let start = health.status;
        Err(Error::UnexpectedBody { status: 200, content_type: None, start })
    }
}

/// How long to wait for a server, and how to report progress.
#[must_use]
pub struct HealthWait {
    within: Duration,
    observer: Option<Box<dyn Fn(StartPhase) + Send + Sync>>,
}

impl HealthWait {
    /// Creates options with this timeout. The default is one minute, which covers the cold start of a sandbox.
    pub fn within(limit: Duration) -> Self {
        Self { within: limit, observer: None }
    }

    /// Sets a function that is called with each new phase, including the first. Use it to show progress.
    pub fn on_phase(mut self, observer: impl Fn(StartPhase) + Send + Sync + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Reports a new phase. Returns the failure if waiting may help.
    fn judge(&self, error: Error, last: Option<&Error>) -> Result<Error, Error> {
        let Some(phase) = StartPhase::of(&error) else { return Err(error) };
        if last.and_then(StartPhase::of) != Some(phase) {
            tracing::debug!(%phase, "the server is not up");
            if let Some(observer) = &self.observer {
                observer(phase);
            }
        }
        if is_final(&error) { Err(error) } else { Ok(error) }
    }
}

impl Default for HealthWait {
    fn default() -> Self {
        Self::within(Duration::from_secs(60))
    }
}

impl fmt::Debug for HealthWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthWait").field("within", &self.within).finish_non_exhaustive()
    }
}

/// Why a server is not up yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StartPhase {
    /// Nothing responds at the address.
    Unreachable,
    /// Something responds, but it is not a healthy server.
    ///
    /// Examples are a gateway whose sandbox is asleep, and a server that is starting.
    Unhealthy,
    /// The server is up and rejects the token.
    Unauthorized,
}

impl StartPhase {
    /// Classifies the error of [`HealthCheck::check`] or [`HealthCheck::wait`].
    ///
    /// Returns `None` if the error does not describe the state of the server.
    #[must_use]
    pub fn of(error: &Error) -> Option<Self> {
        match error {
            Error::Timeout(timeout) if timeout.phase == Phase::Health => {
                timeout.cause.as_deref().and_then(Self::of)
            }
            Error::Unreachable(_) => Some(Self::Unreachable),
            Error::Unauthorized(_) => Some(Self::Unauthorized),
            Error::Http(response) if response.status == 403 => Some(Self::Unauthorized),
            Error::Config(_) | Error::Token(_) | Error::Local { .. } => None,
            _ => Some(Self::Unhealthy),
        }
    }
}

impl fmt::Display for StartPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "unreachable",
            Self::Unhealthy => "unhealthy",
            Self::Unauthorized => "unauthorized",
        })
    }
}

/// Whether waiting cannot help.
fn is_final(error: &Error) -> bool {
    StartPhase::of(error) == Some(StartPhase::Unauthorized) || matches!(error, Error::Redirected { .. })
}
