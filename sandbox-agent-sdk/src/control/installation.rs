//! A running installation.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use futures::future::BoxFuture;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Error;
use crate::client::deadline::{deadline_after, deadline_from};
use crate::control::InstallResult;

/// The default interval of [`InstallEvent::StillInstalling`].
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// A running installation: a future of its result, or a stream of progress events.
///
/// It starts when first polled. The server responds once, at the end, so the stream reports only the elapsed
/// time.
///
/// # Cancel safety
/// Dropping the installation abandons the response. The server may complete the installation or not;
/// installing again is safe.
///
/// ```no_run
/// # async fn example(agents: sandbox_agent_sdk::control::Agents) -> Result<(), sandbox_agent_sdk::Error> {
/// use futures::StreamExt;
/// use sandbox_agent_sdk::control::InstallEvent;
///
/// let mut installation = agents.install("claude");
/// while let Some(event) = installation.next().await {
///     match event? {
///         InstallEvent::StillInstalling { elapsed, .. } => println!("{} s", elapsed.as_secs()),
///         other => println!("{other:?}"),
///     }
/// }
/// let result = agents.install("codex").await?;
/// # let _ = result;
/// # Ok(()) }
/// ```
#[must_use = "an installation does nothing until it is awaited or polled"]
pub struct Installation {
    agent: String,
    response: BoxFuture<'static, Result<InstallResult, Error>>,
    every: Duration,
    stage: Stage,
}

enum Stage {
    New,
    Running { since: Instant, next: Pin<Box<Sleep>> },
    Over,
}

/// A progress event of an installation.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum InstallEvent {
    /// The request is about to be sent.
    #[non_exhaustive]
    Started {
        /// The agent to install.
        agent: String,
    },
    /// The server has not responded yet.
    #[non_exhaustive]
    StillInstalling {
        /// The agent to install.
        agent: String,
        /// The time since the start.
        elapsed: Duration,
    },
    /// The agent is installed. This is the last event.
    #[non_exhaustive]
    Finished {
        /// The result.
        result: InstallResult,
        /// The total time.
        elapsed: Duration,
    },
}

impl Installation {
    pub(super) fn new(agent: &str, response: BoxFuture<'static, Result<InstallResult, Error>>) -> Self {
        Self { agent: agent.to_owned(), response, every: DEFAULT_INTERVAL, stage: Stage::New }
    }

    /// Sets the interval of [`InstallEvent::StillInstalling`]; one second by default.
    pub fn every(mut self, interval: Duration) -> Self {
        // With a zero interval the stream would never poll the request.
        self.every = interval.max(Duration::from_millis(1));
        self
    }
}

impl Stream for Installation {
    type Item = Result<InstallEvent, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let agent = || this.agent.clone();
        match &mut this.stage {
            Stage::New => {
                let since = Instant::now();
                let next = Box::pin(sleep_until(deadline_from(since, this.every)));
                let event = InstallEvent::Started { agent: agent() };
                this.stage = Stage::Running { since, next };
                Poll::Ready(Some(Ok(event)))
            }
            Stage::Running { since, next } => {
                if let Poll::Ready(response) = this.response.as_mut().poll(context) {
                    let elapsed = since.elapsed();
                    this.stage = Stage::Over;
                    let event = response.map(|result| InstallEvent::Finished { result, elapsed });
                    return Poll::Ready(Some(event));
                }
                if next.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                next.as_mut().reset(deadline_after(this.every));
                let event = InstallEvent::StillInstalling { agent: agent(), elapsed: since.elapsed() };
                Poll::Ready(Some(Ok(event)))
            }
            Stage::Over => Poll::Ready(None),
        }
    }
}

impl IntoFuture for Installation {
    type Output = Result<InstallResult, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        self.response
    }
}

impl fmt::Debug for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::New => "new",
            Stage::Running { .. } => "running",
            Stage::Over => "over",
        };
        f.debug_struct("Installation")
            .field("agent", &self.agent)
            .field("stage", &stage)
            .finish_non_exhaustive()
    }
}
