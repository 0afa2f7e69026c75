//! One turn of a session.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::sync::{oneshot, watch};

use super::deadline::deadline_after;
use super::network::check_runtime;
use super::session::{Session, TurnState};
use super::stream::PromptLayer;
use crate::client::event::Queue;
use crate::{Error, Prompt, Update};

mod collected;
mod driver;
mod feed;
mod item;
mod limits;
mod outcome;
mod reload;

pub use collected::{CollectedTurn, FileChange, IncompleteTurn};
use driver::Driver;
pub use item::TurnEvent;
pub(crate) use item::TurnItem;
use limits::TurnLimits;
use outcome::Outcome;
pub use outcome::{StopReason, TurnOutcome};
use reload::{Received, Reload};

/// The session of a turn, which changes if its prompt is sent again. The lock is held to read or replace the id.
#[derive(Debug, Clone)]
struct Current(Arc<Mutex<Arc<str>>>);

impl Current {
    fn new(id: &str) -> Self {
        Self(Arc::new(Mutex::new(id.into())))
    }

    fn lock(&self) -> MutexGuard<'_, Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self) -> Arc<str> {
        Arc::clone(&self.lock())
    }
}

/// A turn: a stream of updates, and an outcome.
///
/// The stream ends after the last update of the turn. If the agent crashes, the stream has the updates before the
/// crash, and the outcome is an error. Dropping a running turn cancels it, unless the
/// [`DropPolicy`](crate::DropPolicy) is `Detach`.
///
/// [`next_event`](Self::next_event) also returns agent requests, in order; its caller decides them. All other methods
/// leave requests to the [permission handler](crate::ClientOptions::permission_handler) or to deciding subscriptions.
/// Without either, requests are rejected.
///
/// The protocol does not name the turn of an update. Every update that arrives while the turn runs belongs to it, except
/// chunks of a message that began earlier, if the agent sends message ids. So if an agent without message ids sends text
/// of a cancelled turn late, the text belongs to the next turn if that has begun.
#[must_use = "a turn that is dropped is cancelled"]
pub struct Turn {
    session: Session,
    current: Current,
    queue: Arc<Queue<TurnItem>>,
    /// Set when the turn has ended. A task that does not hold the turn can watch it.
    pub(crate) outcome: watch::Receiver<Option<Outcome>>,
    limits: watch::Sender<TurnLimits>,
    reading: Reading,
    /// Whether its events come from a stream, which has the turn of the session.
    is_fed: bool,
    /// How an incomplete turn is loaded again, if it is.
    reload: Option<Arc<Reload>>,
    /// Its drop notifies the task of the turn.
    _held: oneshot::Sender<()>,
}

/// How a turn is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Not read yet.
    NotYet,
    /// Updates only: the reader does not decide requests.
    Reports,
    /// All events: the reader decides requests.
    Events,
    /// The last event was returned.
    Ended,
}

impl Turn {
    pub(super) fn start(session: Session, prompt: &Prompt, layer: Option<Box<dyn PromptLayer>>) -> Self {
        let inner = Arc::clone(session.client().inner());
        let queue = inner.hub.turn_queue();
        let (held, dropped) = oneshot::channel();
        let (sender, outcome) = watch::channel(None);
        let (limits, limited) = watch::channel(TurnLimits::default());
        let state = match prompt.check().and_then(|()| check_runtime()) {
            Err(error) => {
                sender.send_replace(Some(Err(error)));
                None
            }
            Ok(()) => Some(inner.hub.begin_turn(session.id(), &queue)),
        };
        let current = Current::new(session.id());
        let reload = inner.options.reload_incomplete.then(|| Arc::new(Reload::of(prompt.text())));
        let driver = Driver {
            inner: Arc::clone(&inner),
            session: session.id().to_owned(),
            current: current.clone(),
            prompt: prompt.to_value(),
            queue: Arc::clone(&queue),
            outcome: sender,
            layer: layer.map(Mutex::new),
            request_id: None,
            limits: limited,
            reload: reload.clone(),
        };
        match state {
            Some(TurnState::Running) => driver.refuse(),
            Some(state) => {
                if !inner.spawn(driver.run(dropped, state)) {
                    // The client was dropped, and the driver with its sender: the outcome reports that.
                    if state == TurnState::Idle {
                        inner.hub.end_turn(session.id());
                    }
                    queue.end();
                }
            }
            None => queue.end(),
        }
        Self {
            session,
            current,
            queue,
            outcome,
            limits,
            reading: Reading::NotYet,
            is_fed: false,
            reload,
            _held: held,
        }
    }

    /// Returns the session of the turn.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Cancels the turn if it does not end within this duration.
    ///
    /// If the deadline passes, the outcome is an [`Error::Timeout`] with
    /// [`Phase::Deadline`](crate::error::Phase::Deadline). [`text`](Self::text) and [`collect`](Self::collect) return
    /// an [`Error::IncompleteTurn`] with what was received.
    ///
    /// An agent that does not respond to the cancel notification delays the outcome by at most
    /// [`ClientTimeouts::cancel`](crate::ClientTimeouts#structfield.cancel), 10 seconds by default.
    pub fn with_deadline(self, within: Duration) -> Self {
        self.limits.send_modify(|limits| limits.deadline = Some((deadline_after(within), within)));
        self
    }

    /// Cancels the turn if it has no update for this long.
    ///
    /// Every update of the session restarts the timeout. The timeout does not run while the agent waits for a response
    /// of this client, unless the request waits in a turn that is not read. Choose a long timeout: agents that retry a
    /// failing model may be silent for minutes.
    ///
    /// If the timeout expires, the outcome is an [`Error::Timeout`] with [`Phase::Idle`](crate::error::Phase::Idle).
    /// [`text`](Self::text) and [`collect`](Self::collect) return an [`Error::IncompleteTurn`] with what was received.
    pub fn with_idle_timeout(self, limit: Duration) -> Self {
        // In this order: a turn that is moved to another session meanwhile checks its limits there.
        self.limits.send_modify(|limits| limits.idle = Some(limit));
        self.session.client().inner().hub.time_progress(&self.current.id());
        self
    }

    /// Returns the next update, or `None` after the last one.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn next(&mut self) -> Option<Update> {
        StreamExt::next(self).await
    }

    /// Returns the next event of the turn in order, or `None` after the end.
    ///
    /// An event is an update, a permission request, a question, or the end of the turn. The caller decides agent
    /// requests. A request that is dropped without a response is cancelled. A request that arrives before the first call
    /// waits for it, at most [`ClientTimeouts::unread_request`](crate::ClientTimeouts#structfield.unread_request).
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn next_event(&mut self) -> Option<TurnEvent> {
        match self.reading {
            Reading::Ended => return None,
            Reading::NotYet | Reading::Reports => {
                self.session.client().inner().hub.start_deciding(&self.current.id(), &self.queue);
            }
            Reading::Events => {}
        }
        self.reading = Reading::Events;
        if let Some(item) = std::future::poll_fn(|context| self.queue.poll(context)).await {
            return Some(item.into());
        }
        let outcome = self.ended().await;
        self.reading = Reading::Ended;
        Some(outcome.into())
    }

    /// Waits for the end of the turn. Unread updates can be read afterwards.
    ///
    /// # Errors
    /// [`Error::AgentEnded`] if the agent or the session ended before the response, [`Error::TurnInProgress`] if
    /// another turn is running, and the errors of every call, such as [`Error::NotConnected`].
    pub async fn outcome(&mut self) -> Result<TurnOutcome, Error> {
        self.read_reports();
        self.ended().await
    }

    async fn ended(&mut self) -> Outcome {
        match self.outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone()) {
            Ok(Some(outcome)) => outcome,
            _ => Err(Error::config(
                "the turn stopped because its tokio runtime was shut down or its client was dropped",
            )),
        }
    }

    /// Waits for the end of the turn and returns the text of the agent's message.
    ///
    /// # Errors
    /// The errors of [`collect`](Self::collect).
    pub async fn text(self) -> Result<String, Error> {
        self.collect().await.map(|collected| collected.text)
    }

    /// Waits for the end of the turn and returns all its contents.
    ///
    /// The contents are text, thoughts, tool calls and file changes. Use [`collect_partial`](Self::collect_partial) to
    /// get what was received before the agent crashed or failed.
    ///
    /// # Errors
    /// [`Error::IncompleteTurn`] if updates are missing, or if the deadline or the idle timeout expired; it contains
    /// what was received. Otherwise the errors of [`outcome`](Self::outcome).
    pub async fn collect(self) -> Result<CollectedTurn, Error> {
        Ok(self.collect_partial().await?)
    }

    /// Waits for the end of the turn and returns all its contents, like [`collect`](Self::collect).
    ///
    /// # Errors
    /// Every error contains what was received, for example the files that the agent changed before it crashed. The
    /// operator `?` converts it to the error of [`collect`](Self::collect).
    pub async fn collect_partial(mut self) -> Result<CollectedTurn, Box<IncompleteTurn>> {
        let limit = self.session.client().inner().options.limits.turn;
        let mut received = Received::new(limit);
        while let Some(update) = self.next().await {
            received.add(&update);
        }
        let (mut received, excess) = received.finish();
        let (mut missing, source) = match self.ended().await {
            Ok(outcome) => {
                let missing = outcome.missing.clone();
                received.collected.end(outcome);
                (missing, None)
            }
            Err(error) => (received.missing(), Some(Arc::new(error))),
        };
        missing.extend(excess);
        if source.is_none() {
            if missing.is_empty() {
                return Ok(received.collected);
            }
            if excess.is_none()
                && let Some(whole) = self.reloaded(&received).await
            {
                return Ok(whole);
            }
        }
        Err(Box::new(IncompleteTurn { collected: received.collected, missing, source }))
    }

    /// Cancels this turn and waits until it has stopped.
    ///
    /// A prompt that was not sent yet is withdrawn. A turn that has ended stays as it is, and nothing is sent: other turns
    /// of the session are not affected. [`Session::cancel`] cancels any turn of the session.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the turn does not stop within
    /// [`ClientTimeouts::cancel`](crate::ClientTimeouts#structfield.cancel).
    pub async fn cancel(&self) -> Result<(), Error> {
        if self.outcome.borrow().is_some() {
            return Ok(());
        }
        let client = self.session.client();
        if self.is_fed {
            return client.cancel(self.session.id()).await;
        }
        let stopping = async {
            // A turn that moves to another session is cancelled there.
            while let Some(end) = client.inner().hub.cancel_turn(&self.current.id(), &self.queue) {
                end.passed().await;
            }
            Ok(())
        };
        client.stopped(stopping).await
    }

    /// The turn is read by a method that returns no requests, so requests that wait here are refused.
    fn read_reports(&mut self) {
        if self.reading == Reading::NotYet {
            self.reading = Reading::Reports;
            let hub = &self.session.client().inner().hub;
            for request in hub.stop_deciding(&self.current.id(), &self.queue) {
                request.or_refuse(hub);
            }
        }
    }
}

impl Stream for Turn {
    type Item = Update;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.read_reports();
        loop {
            match self.queue.poll(context) {
                Poll::Ready(Some(item)) => {
                    if let Some(update) = item.or_refuse(&self.session.client().inner().hub) {
                        return Poll::Ready(Some(update));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Marks the session as cancelling, so that the next prompt waits.
impl Drop for Turn {
    fn drop(&mut self) {
        let inner = self.session.client().inner();
        let is_running = self.outcome.borrow().is_none() && self.outcome.has_changed().is_ok();
        if is_running {
            inner.hub.drop_turn(&self.current.id(), &self.queue, inner.options.drop_policy);
        }
        // Requests that wait here are cancelled.
        self.queue.abandon();
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = self.outcome.borrow().is_some();
        f.debug_struct("Turn").field("session", &self.session).field("over", &over).finish_non_exhaustive()
    }
}
