//! Connecting and disconnecting, including concurrently.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::connection::Connection;
use super::deadline::deadline_after;
use super::event::Origin;
use super::hub::Hub;
use super::network::check_runtime;
use super::probe;
use super::stream::LogRecord;
use super::tasks::Tasks;
use crate::connection::Capabilities;
use crate::control::ControlPlane;
use crate::error::LostReason;
use crate::requests::Requests;
use crate::{ClientOptions, ConnectionState, Error, Event};

type Outcome = Result<Arc<Capabilities>, Error>;

/// What all handles of a client share.
pub(crate) struct Inner {
    pub(crate) options: Arc<ClientOptions>,
    pub(super) control: ControlPlane,
    pub(crate) hub: Arc<Hub>,
    pub(super) requests: Requests,
    http: reqwest::Client,
    /// Guards the state of the one connection; held for a look-up or a change, and while the change is published, so
    /// that changes are published in order.
    lifecycle: Mutex<Lifecycle>,
    /// Guards the tasks, which end with the last handle; `None` then. Held to start one.
    tasks: Mutex<Option<JoinSet<()>>>,
    /// Read the late details of an agent's end, until the application disconnects.
    late: Tasks,
    /// Close connections after the time to disconnect is over.
    closing: Tasks,
}

#[derive(Debug)]
struct Lifecycle {
    phase: Phase,
    previous: Previous,
}

impl Lifecycle {
    /// Whether there is no connection, and none is being opened or closed.
    fn is_idle(&self) -> bool {
        let Previous { cancelled, closing } = &self.previous;
        matches!(self.phase, Phase::Idle(_)) && cancelled.is_none() && closing.is_none()
    }
}

/// What must end before the next attempt begins, so that its messages and events do not mix with those of the next one.
#[derive(Debug, Clone, Default)]
struct Previous {
    /// An attempt that was cancelled and has not ended yet.
    cancelled: Option<Arc<Attempt>>,
    /// A connection that is being closed.
    closing: Option<Closing>,
}

/// A connection that is being closed.
#[derive(Debug, Clone)]
struct Closing {
    connection: Arc<Connection>,
    /// Whether the application requested it. Then the end is published.
    requested: bool,
}

impl Closing {
    fn is_of(&self, connection: &Arc<Connection>) -> bool {
        Arc::ptr_eq(&self.connection, connection)
    }
}

#[derive(Debug)]
enum Phase {
    /// There is no connection. If connecting in the background failed, the next call tries again.
    Idle(Option<Failed>),
    Connecting(Arc<Attempt>),
    Connected(Arc<Connection>),
}

/// An attempt that failed.
#[derive(Debug)]
struct Failed {
    agent: String,
    error: Error,
}

/// An attempt to connect.
#[derive(Debug)]
pub(super) struct Attempt {
    agent: String,
    cancelled: watch::Sender<bool>,
    outcome: watch::Sender<Option<Outcome>>,
}

impl Attempt {
    fn new(agent: String) -> Arc<Self> {
        Arc::new(Self { agent, cancelled: watch::Sender::new(false), outcome: watch::Sender::new(None) })
    }

    /// Waits until the attempt is over.
    pub(super) async fn finished(&self) -> Outcome {
        match self.outcome.subscribe().wait_for(Option::is_some).await.map(|outcome| outcome.clone()) {
            Ok(Some(outcome)) => outcome,
            // The sender is `self`, so waiting cannot fail.
            _ => Err(Error::NotConnected),
        }
    }

    /// Waits until the attempt is over or the deadline has passed. Its own caller gets the outcome.
    async fn finished_by(&self, deadline: Instant) {
        let _ = tokio::time::timeout_at(deadline, self.finished()).await;
    }
}

/// The task of an attempt. Its drop settles the attempt, also when its runtime ends.
struct Running {
    inner: Arc<Inner>,
    attempt: Arc<Attempt>,
    trigger: Trigger,
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.attempt.outcome.borrow().is_none() {
            let gone = "connecting stopped because its tokio runtime was shut down or its client was dropped";
            self.inner.settle(&self.attempt, Err(Error::config(gone)), self.trigger);
        }
    }
}

/// Why a connection is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    /// A call that connects, and waits for the outcome.
    Call,
    /// The option to connect in the background, or another call that needs a connection. If it fails, the next call
    /// tries again.
    Background,
}

/// The state of a reconnect.
#[derive(Debug)]
pub(super) enum Reconnect {
    /// This call started it.
    Started(Arc<Attempt>),
    /// Another call started it.
    Joined(Arc<Attempt>),
    /// Another call has completed it.
    Done(Arc<Connection>),
}

impl Inner {
    pub(super) fn new(options: ClientOptions, control: ControlPlane, http: reqwest::Client) -> Self {
        let hub = Arc::new(Hub::with_limits(options.event_budget, &options.limits));
        hub.usage(|usage| usage.set_budget(None, options.budget.clone()));
        let requests = Requests::default();
        options.parts.register(&requests);
        Self {
            control,
            hub,
            requests,
            http,
            lifecycle: Mutex::new(Lifecycle { phase: Phase::Idle(None), previous: Previous::default() }),
            tasks: Mutex::new(Some(JoinSet::new())),
            late: Tasks::default(),
            closing: Tasks::default(),
            options: Arc::new(options),
        }
    }

    /// Starts to connect, unless there is a connection or an attempt.
    pub(super) fn begin(self: &Arc<Self>, agent: &str, trigger: Trigger) -> Result<Arc<Attempt>, Error> {
        if agent.trim().is_empty() {
            return Err(Error::config("connecting requires an agent name"));
        }
        check_runtime()?;
        let attempt = Attempt::new(agent.trim().to_owned());
        let previous = {
            let mut lifecycle = self.lifecycle();
            match &lifecycle.phase {
                Phase::Connecting(_) => return Err(Error::AlreadyConnected),
                Phase::Connected(connection) if connection.is_usable() => {
                    return Err(Error::AlreadyConnected);
                }
                Phase::Connected(dead) => {
                    lifecycle.previous.closing =
                        Some(Closing { connection: Arc::clone(dead), requested: false });
                }
                Phase::Idle(_) => {}
            }
            lifecycle.phase = Phase::Connecting(Arc::clone(&attempt));
            lifecycle.previous.clone()
        };
        self.start(&attempt, trigger, previous);
        Ok(attempt)
    }

    /// Closes the connection in any state and starts to connect again.
    pub(super) fn reconnect(
        self: &Arc<Self>,
        old: &Arc<Connection>,
        trigger: Trigger,
    ) -> Result<Reconnect, Error> {
        check_runtime()?;
        let attempt = Attempt::new(old.agent().to_owned());
        let previous = {
            let mut lifecycle = self.lifecycle();
            match &lifecycle.phase {
                Phase::Connected(present) if Arc::ptr_eq(present, old) => {}
                Phase::Connected(present) => return Ok(Reconnect::Done(Arc::clone(present))),
                Phase::Connecting(attempt) => return Ok(Reconnect::Joined(Arc::clone(attempt))),
                Phase::Idle(_) => return Err(Error::NotConnected),
            }
            lifecycle.previous.closing = Some(Closing { connection: Arc::clone(old), requested: false });
            lifecycle.phase = Phase::Connecting(Arc::clone(&attempt));
            lifecycle.previous.clone()
        };
        self.start(&attempt, trigger, previous);
        Ok(Reconnect::Started(attempt))
    }

    fn start(self: &Arc<Self>, attempt: &Arc<Attempt>, trigger: Trigger, previous: Previous) {
        let running = Running { inner: Arc::clone(self), attempt: Arc::clone(attempt), trigger };
        // A task that is not started is dropped, which settles the attempt.
        self.spawn(async move { running.inner.run(&running.attempt, trigger, previous).await });
    }

    async fn run(self: &Arc<Self>, attempt: &Arc<Attempt>, trigger: Trigger, previous: Previous) {
        let Previous { cancelled, closing } = previous;
        if let Some(old) = cancelled {
            // Its own caller gets the outcome.
            let _ = old.finished().await;
        }
        if let Some(old) = closing {
            self.finish_closing(&old.connection, self.disconnect_deadline()).await;
        }
        self.hub.connection(ConnectionState::Connecting);
        let mut opening = None;
        let mut cancelled = attempt.cancelled.subscribe();
        let outcome = tokio::select! {
            biased;
            _ = cancelled.wait_for(|cancelled| *cancelled) => Err(Error::Disconnected { what: "connect".to_owned() }),
            outcome = self.establish(&attempt.agent, &mut opening) => outcome,
        };
        let outcome = match (outcome, &opening) {
            (Ok(capabilities), Some(connection)) if self.install(attempt, connection) => Ok(capabilities),
            (outcome, opening) => {
                if let Some(connection) = opening {
                    // The server may have started an agent for this client.
                    connection.close(self.disconnect_deadline()).await;
                }
                Err(outcome.err().unwrap_or_else(|| Error::Disconnected { what: "connect".to_owned() }))
            }
        };
        self.settle(attempt, outcome, trigger);
    }

    async fn establish(&self, agent: &str, opening: &mut Option<Arc<Connection>>) -> Outcome {
        let endpoint = probe::find(&self.options, self.control.http()).await?;
        let connection = Connection::open(
            &self.options,
            (&self.hub, &self.requests),
            (&self.late, &self.closing),
            &self.http,
            &endpoint,
            agent,
        )?;
        opening.insert(Arc::new(connection)).initialize().await
    }

    /// Makes this the current connection, unless the attempt was cancelled.
    fn install(&self, attempt: &Arc<Attempt>, connection: &Arc<Connection>) -> bool {
        let mut lifecycle = self.lifecycle();
        let present = matches!(&lifecycle.phase, Phase::Connecting(present) if Arc::ptr_eq(present, attempt));
        if present {
            lifecycle.phase = Phase::Connected(Arc::clone(connection));
            self.hub.connection(ConnectionState::Connected);
        }
        present
    }

    fn settle(&self, attempt: &Arc<Attempt>, outcome: Outcome, trigger: Trigger) {
        if let Err(error) = &outcome {
            let mut lifecycle = self.lifecycle();
            if lifecycle.previous.cancelled.as_ref().is_some_and(|cancelled| Arc::ptr_eq(cancelled, attempt))
            {
                lifecycle.previous.cancelled = None;
            }
            if matches!(&lifecycle.phase, Phase::Connecting(present) if Arc::ptr_eq(present, attempt)) {
                let failed = || Failed { agent: attempt.agent.clone(), error: error.clone() };
                lifecycle.phase = Phase::Idle((trigger == Trigger::Background).then(failed));
            }
            self.hub.connection(ConnectionState::Disconnected);
        }
        attempt.outcome.send_replace(Some(outcome));
    }

    /// Cancels an attempt whose caller was dropped.
    pub(super) fn cancel_attempt(&self, attempt: &Arc<Attempt>) {
        let mut lifecycle = self.lifecycle();
        if matches!(&lifecycle.phase, Phase::Connecting(present) if Arc::ptr_eq(present, attempt)) {
            lifecycle.phase = Phase::Idle(None);
            lifecycle.previous.cancelled = Some(Arc::clone(attempt));
        }
        drop(lifecycle);
        attempt.cancelled.send_replace(true);
    }

    /// Closes the connection, or cancels the attempt, within a deadline.
    pub(crate) async fn disconnect(&self) -> Result<(), Error> {
        let result = self.disconnect_by(self.disconnect_deadline()).await;
        // What closing the connection reported has been read.
        self.late.end();
        result
    }

    fn disconnect_deadline(&self) -> Instant {
        deadline_after(self.options.timeouts.disconnect)
    }

    async fn disconnect_by(&self, deadline: Instant) -> Result<(), Error> {
        let (phase, previous) = {
            let mut lifecycle = self.lifecycle();
            if !lifecycle.is_idle() {
                check_runtime()?;
            }
            let phase = std::mem::replace(&mut lifecycle.phase, Phase::Idle(None));
            match &phase {
                Phase::Connected(connection) => {
                    lifecycle.previous.closing =
                        Some(Closing { connection: Arc::clone(connection), requested: true });
                }
                Phase::Connecting(attempt) => lifecycle.previous.cancelled = Some(Arc::clone(attempt)),
                Phase::Idle(_) => {}
            }
            (phase, lifecycle.previous.clone())
        };
        match phase {
            Phase::Connecting(attempt) => {
                attempt.cancelled.send_replace(true);
                attempt.finished_by(deadline).await;
            }
            Phase::Connected(connection) => self.finish_closing(&connection, deadline).await,
            Phase::Idle(_) => {
                if let Some(cancelled) = previous.cancelled {
                    cancelled.finished_by(deadline).await;
                }
                match previous.closing {
                    Some(closing) => self.finish_closing(&closing.connection, deadline).await,
                    // The state does not change, but layers must know that the application wants no connection.
                    None => {
                        let wanted = Event::Connection(ConnectionState::Disconnected);
                        self.hub.log(LogRecord::Event(wanted), None, Origin::Live);
                    }
                }
            }
        }
        Ok(())
    }

    /// Closes the connection if no call is pending and no turn is running. A turn that begins at the same time either
    /// keeps the connection open or is not sent.
    pub(crate) async fn disconnect_if_idle(&self) -> bool {
        if check_runtime().is_err() {
            return false;
        }
        let connection = {
            let mut lifecycle = self.lifecycle();
            let Phase::Connected(connection) = &lifecycle.phase else { return false };
            let connection = Arc::clone(connection);
            if !connection.is_quiet() || !self.hub.is_quiet() {
                return false;
            }
            lifecycle.phase = Phase::Idle(None);
            lifecycle.previous.closing =
                Some(Closing { connection: Arc::clone(&connection), requested: true });
            connection
        };
        self.finish_closing(&connection, self.disconnect_deadline()).await;
        true
    }

    async fn finish_closing(&self, connection: &Arc<Connection>, deadline: Instant) {
        connection.close(deadline).await;
        let mut lifecycle = self.lifecycle();
        if let Some(closing) = lifecycle.previous.closing.take_if(|closing| closing.is_of(connection))
            && closing.requested
        {
            self.hub.connection(ConnectionState::Disconnected);
        }
    }

    /// Returns the connection, and waits for it while connecting. If connecting in the background failed, this tries
    /// again once, unless this call has waited for the failed attempt.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        check_runtime()?;
        let mut tried = false;
        loop {
            let attempt = match &self.lifecycle().phase {
                Phase::Connected(connection) => return Ok(Arc::clone(connection)),
                Phase::Idle(Some(failed)) if tried => return Err(failed.error.clone()),
                Phase::Idle(Some(failed)) => Err(failed.agent.clone()),
                Phase::Idle(None) => return Err(Error::NotConnected),
                Phase::Connecting(attempt) => Ok(Arc::clone(attempt)),
            };
            tried = true;
            let attempt = match attempt {
                Ok(attempt) => attempt,
                Err(agent) => match self.begin(&agent, Trigger::Background) {
                    Ok(attempt) => attempt,
                    // Another call has started to connect.
                    Err(Error::AlreadyConnected) => continue,
                    Err(error) => return Err(error),
                },
            };
            // The phase shows success and failure.
            let _ = attempt.finished().await;
        }
    }

    /// Makes a call on the connection. Reconnects and repeats it once if the server has forgotten the connection, and
    /// so certainly did not execute the call. Not for calls about a session, which has ended with the connection.
    pub(super) async fn call<T, F>(self: &Arc<Self>, call: impl Fn(Arc<Connection>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let connection = self.connection().await?;
        match call(Arc::clone(&connection)).await {
            Err(error) if is_gone(&error) => call(self.reconnected(&connection).await?).await,
            result => result,
        }
    }

    /// Reconnects after the server has forgotten the connection, once for all callers.
    async fn reconnected(self: &Arc<Self>, gone: &Arc<Connection>) -> Result<Arc<Connection>, Error> {
        match self.reconnect(gone, Trigger::Background)? {
            Reconnect::Started(attempt) | Reconnect::Joined(attempt) => {
                attempt.finished().await?;
                self.connection().await
            }
            Reconnect::Done(connection) => Ok(connection),
        }
    }

    /// Returns the current connection, if there is one.
    pub(crate) fn present(&self) -> Option<Arc<Connection>> {
        match &self.lifecycle().phase {
            Phase::Connected(connection) => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    pub(super) fn state(&self) -> ConnectionState {
        let connection = match &self.lifecycle().phase {
            Phase::Idle(_) => return ConnectionState::Disconnected,
            Phase::Connecting(_) => return ConnectionState::Connecting,
            Phase::Connected(connection) => Arc::clone(connection),
        };
        connection.state()
    }

    /// Starts a task that ends with the last handle. Returns `false` if there is no handle or no runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(tasks), Ok(runtime)) = (tasks.as_mut(), tokio::runtime::Handle::try_current()) else {
            return false;
        };
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &runtime);
        true
    }

    /// Ends everything at once, without closing the connection on the server.
    pub(super) fn shut_down(&self) {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        let phase = std::mem::replace(&mut self.lifecycle().phase, Phase::Idle(None));
        drop((tasks, phase));
        self.late.end();
        self.closing.end();
        self.hub.close();
    }

    fn lifecycle(&self) -> MutexGuard<'_, Lifecycle> {
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a call was certainly not executed because the server has forgotten the connection.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::ConnectionEnded { reason: LostReason::ServerGone, sent: false, .. })
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("state", &self.state()).finish_non_exhaustive()
    }
}
