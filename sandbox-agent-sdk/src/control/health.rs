//! Whether a server is up, and waiting until it is.

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
use crate::error::{Phase, Timeout};

/// The first pause between two probes.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between two probes.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long a single probe may take while waiting.
const PROBE: Duration = Duration::from_secs(5);

/// What a server says about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Health {
    /// One word; `ok` if all is well.
    pub status: String,
    /// Members that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Health {
    /// Whether all is well.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.status == "ok"
    }
}

/// Asks a server whether it is up.
#[derive(Debug, Clone)]
pub struct HealthCheck {
    http: Http,
}

impl HealthCheck {
    pub(super) fn new(http: Http) -> Self {
        Self { http }
    }

    /// Asks once.
    pub fn check(&self) -> BoxFuture<'static, Result<Health, Error>> {
        let call = Call::new("check health", Method::GET, Route::new("/v1/health"));
        self.http.value(Ok(call.kind(BodyKind::Health)))
    }

    /// Waits until the server is up, for a bounded time: for a sandbox that was just started.
    ///
    /// A server that cannot be reached or is not healthy is asked again. When the time is over, the last
    /// failure is the cause of an [`Error::Timeout`] with [`Phase::Health`]. A server that refuses the token, or
    /// redirects, will not change its mind: that fails at once. [`StartPhase::of`] tells these apart.
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
                    // A probe that was cut short tells less than the one before it.
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

    /// Asks once, and takes everything but a plain "ok" for a failure.
    async fn probe(&self, limit: Duration) -> Result<Health, Error> {
        let answer = timeout(limit, self.check()).await;
        let health = answer
            .map_err(|_| Error::Timeout(Box::new(Timeout::new(Phase::Headers, "check health", limit))))??;
        if health.is_ok() {
            return Ok(health);
        }
        let start = health.status;
        Err(Error::UnexpectedBody { status: 200, content_type: None, start })
    }
}

/// How to wait for a server.
#[must_use]
pub struct HealthWait {
    within: Duration,
    observer: Option<Box<dyn Fn(StartPhase) + Send + Sync>>,
}

impl HealthWait {
    /// Waits for this long at most. The default is a minute, which a cold sandbox may take.
    pub fn within(limit: Duration) -> Self {
        Self { within: limit, observer: None }
    }

    /// Calls a function with each new phase, the first included: to tell a user what is being waited for.
    pub fn on_phase(mut self, observer: impl Fn(StartPhase) + Send + Sync + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Tells a new phase, and gives a failure back that waiting may help against.
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

/// How far a server that is not up has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StartPhase {
    /// Nobody answers.
    Unreachable,
    /// Somebody answers, but not a healthy server: a gateway whose sandbox sleeps, a server that is starting.
    Unhealthy,
    /// The server is there and refuses the token.
    Unauthorized,
}

impl StartPhase {
    /// What a failed [`HealthCheck::check`] or [`HealthCheck::wait`] says about the server; `None` if the
    /// failure is not the server's.
    #[must_use]
    pub fn of(error: &Error) -> Option<Self> {
        match error {
            Error::Timeout(timeout) if timeout.phase == Phase::Health => {
                timeout.cause.as_deref().and_then(Self::of)
            }
            Error::Unreachable(_) => Some(Self::Unreachable),
            Error::Unauthorized(_) => Some(Self::Unauthorized),
            Error::Http(answer) if answer.status == 403 => Some(Self::Unauthorized),
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
