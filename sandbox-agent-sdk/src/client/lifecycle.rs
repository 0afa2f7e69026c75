//! Connecting and disconnecting, and what happens when they meet.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connection::Connection;
use super::event::Origin;
use super::hub::Hub;
use super::probe;
use super::stream::LogRecord;
use crate::connection::Capabilities;
use crate::control::ControlPlane;
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
    /// Guards where the one connection stands; held for a look or a change, and for telling of the change, so that
    /// changes are told in the order in which they happen.
    life: Mutex<Life>,
    /// Guards the tasks, which end with the last handle; `None` then. Held to start one.
    tasks: Mutex<Option<JoinSet<()>>>,
}

#[derive(Debug)]
struct Life {
    phase: Phase,
    /// A connection that was given up and is being closed: the next one waits for it.
    closing: Option<Closing>,
    /// An attempt that was given up and has not ended yet: the next one waits for it, so that neither its messages
    /// nor the news of its end come into the time of the next one.
    fading: Option<Arc<Attempt>>,
}

/// What has to be over before an attempt begins, as it was when somebody asked for it.
struct Before {
    fading: Option<Arc<Attempt>>,
    closing: Option<Closing>,
}

impl Life {
    fn before(&self) -> Before {
        Before { fading: self.fading.clone(), closing: self.closing.clone() }
    }
}

/// A connection that is being closed.
#[derive(Debug, Clone)]
struct Closing {
    connection: Arc<Connection>,
    /// Whether the program asked for that and hears when it is done.
    asked: bool,
}

impl Closing {
    fn is_of(&self, connection: &Arc<Connection>) -> bool {
        Arc::ptr_eq(&self.connection, connection)
    }
}

#[derive(Debug)]
enum Phase {
    /// There is no connection; with why, if the background attempt failed.
    Idle(Option<Error>),
    Connecting(Arc<Attempt>),
    Connected(Arc<Connection>),
}

/// An attempt to connect.
#[derive(Debug)]
pub(super) struct Attempt {
    agent: String,
    given_up: watch::Sender<bool>,
    outcome: watch::Sender<Option<Outcome>>,
}

impl Attempt {
    fn new(agent: String) -> Arc<Self> {
        Arc::new(Self { agent, given_up: watch::Sender::new(false), outcome: watch::Sender::new(None) })
    }

    /// Waits until the attempt is over.
    pub(super) async fn finished(&self) -> Outcome {
        match self.outcome.subscribe().wait_for(Option::is_some).await.map(|outcome| outcome.clone()) {
            Ok(Some(outcome)) => outcome,
            // The sender is `self`, so waiting cannot fail.
            _ => Err(Error::NotConnected),
        }
    }
}

/// Who asked for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The program, which waits for the outcome.
    ByProgram,
    /// The options: whoever makes the first call learns of a failure.
    ByOptions,
}

/// What became of the wish to connect again.
#[derive(Debug)]
pub(super) enum Again {
    /// It is being done.
    Ours(Arc<Attempt>),
    /// It is being done for somebody else who had the same wish.
    Theirs(Arc<Attempt>),
    /// Somebody else was quicker, and it is done.
    Done(Arc<Connection>),
}

impl Inner {
    pub(super) fn new(options: ClientOptions, control: ControlPlane, http: reqwest::Client) -> Self {
        let hub = Arc::new(Hub::with_limits(options.event_budget, &options.limits));
        hub.usage.set_budget(None, options.budget.clone());
        let requests = Requests::default();
        options.parts.register(&requests);
        Self {
            control,
            hub,
            requests,
            http,
            life: Mutex::new(Life { phase: Phase::Idle(None), closing: None, fading: None }),
            tasks: Mutex::new(Some(JoinSet::new())),
            options: Arc::new(options),
        }
    }

    /// Starts connecting, unless there is a connection or it is being made.
    pub(super) fn begin(self: &Arc<Self>, agent: &str, asked: Asked) -> Result<Arc<Attempt>, Error> {
        if agent.trim().is_empty() {
            return Err(Error::config("connecting needs the name of an agent"));
        }
        let attempt = Attempt::new(agent.trim().to_owned());
        let before = {
            let mut life = self.life();
            match &life.phase {
                Phase::Connecting(_) => return Err(Error::AlreadyConnected),
                Phase::Connected(connection) if connection.is_usable() => {
                    return Err(Error::AlreadyConnected);
                }
                Phase::Connected(dead) => {
                    life.closing = Some(Closing { connection: Arc::clone(dead), asked: false });
                }
                Phase::Idle(_) => {}
            }
            life.phase = Phase::Connecting(Arc::clone(&attempt));
            life.before()
        };
        self.start(&attempt, asked, before);
        Ok(attempt)
    }

    /// Ends the connection there is, whatever its state, and starts to make it again.
    pub(super) fn begin_again(self: &Arc<Self>, old: &Arc<Connection>) -> Result<Again, Error> {
        let attempt = Attempt::new(old.agent().to_owned());
        let before = {
            let mut life = self.life();
            match &life.phase {
                Phase::Connected(present) if Arc::ptr_eq(present, old) => {}
                Phase::Connected(present) => return Ok(Again::Done(Arc::clone(present))),
                Phase::Connecting(attempt) => return Ok(Again::Theirs(Arc::clone(attempt))),
                Phase::Idle(_) => return Err(Error::NotConnected),
            }
            life.closing = Some(Closing { connection: Arc::clone(old), asked: false });
            life.phase = Phase::Connecting(Arc::clone(&attempt));
            life.before()
        };
        self.start(&attempt, Asked::ByProgram, before);
        Ok(Again::Ours(attempt))
    }

    fn start(self: &Arc<Self>, attempt: &Arc<Attempt>, asked: Asked, before: Before) {
        let (inner, task) = (Arc::clone(self), Arc::clone(attempt));
        let started = self.spawn(async move { inner.run(&task, asked, before).await });
        if !started {
            self.settle(attempt, Err(Error::NotConnected), Asked::ByProgram);
        }
    }

    async fn run(self: Arc<Self>, attempt: &Arc<Attempt>, asked: Asked, before: Before) {
        let Before { fading, closing } = before;
        if let Some(old) = fading {
            // What became of it is told to whoever asked for it.
            let _ = old.finished().await;
        }
        if let Some(old) = closing {
            self.finish_closing(&old.connection).await;
        }
        self.hub.connection(ConnectionState::Connecting);
        let mut opening = None;
        let mut given_up = attempt.given_up.subscribe();
        let outcome = tokio::select! {
            biased;
            _ = given_up.wait_for(|given_up| *given_up) => Err(Error::Disconnected { what: "connect".to_owned() }),
            outcome = self.establish(&attempt.agent, &mut opening) => outcome,
        };
        let outcome = match (outcome, &opening) {
            (Ok(capabilities), Some(connection)) if self.install(attempt, connection) => Ok(capabilities),
            (outcome, opening) => {
                if let Some(connection) = opening {
                    // The server may have started an agent for us.
                    connection.close().await;
                }
                Err(outcome.err().unwrap_or_else(|| Error::Disconnected { what: "connect".to_owned() }))
            }
        };
        self.settle(attempt, outcome, asked);
    }

    async fn establish(&self, agent: &str, opening: &mut Option<Arc<Connection>>) -> Outcome {
        let endpoint = probe::find(&self.options, self.control.http()).await?;
        let connection =
            Connection::open(&self.options, (&self.hub, &self.requests), &self.http, &endpoint, agent)?;
        opening.insert(Arc::new(connection)).initialize().await
    }

    /// Makes a connection the one there is, unless the attempt was given up meanwhile.
    fn install(&self, attempt: &Arc<Attempt>, connection: &Arc<Connection>) -> bool {
        let mut life = self.life();
        let present = matches!(&life.phase, Phase::Connecting(present) if Arc::ptr_eq(present, attempt));
        if present {
            life.phase = Phase::Connected(Arc::clone(connection));
            self.hub.connection(ConnectionState::Connected);
        }
        present
    }

    fn settle(&self, attempt: &Arc<Attempt>, outcome: Outcome, asked: Asked) {
        if let Err(error) = &outcome {
            let mut life = self.life();
            if life.fading.as_ref().is_some_and(|fading| Arc::ptr_eq(fading, attempt)) {
                life.fading = None;
            }
            if matches!(&life.phase, Phase::Connecting(present) if Arc::ptr_eq(present, attempt)) {
                life.phase = Phase::Idle((asked == Asked::ByOptions).then(|| error.clone()));
            }
            self.hub.connection(ConnectionState::Disconnected);
        }
        attempt.outcome.send_replace(Some(outcome));
    }

    /// Gives an attempt up whose caller went away.
    pub(super) fn give_up(&self, attempt: &Arc<Attempt>) {
        let mut life = self.life();
        if matches!(&life.phase, Phase::Connecting(present) if Arc::ptr_eq(present, attempt)) {
            life.phase = Phase::Idle(None);
            life.fading = Some(Arc::clone(attempt));
        }
        drop(life);
        attempt.given_up.send_replace(true);
    }

    /// Ends the connection, or the attempt to make it, within a bound.
    pub(crate) async fn disconnect(&self) {
        let (phase, closing) = {
            let mut life = self.life();
            let phase = std::mem::replace(&mut life.phase, Phase::Idle(None));
            match &phase {
                Phase::Connected(connection) => {
                    life.closing = Some(Closing { connection: Arc::clone(connection), asked: true });
                }
                Phase::Connecting(attempt) => life.fading = Some(Arc::clone(attempt)),
                Phase::Idle(_) => {}
            }
            (phase, (life.closing.clone(), life.fading.clone()))
        };
        match phase {
            Phase::Connecting(attempt) => {
                attempt.given_up.send_replace(true);
                // What became of it is told to whoever asked for it.
                let _ = attempt.finished().await;
            }
            Phase::Connected(connection) => self.finish_closing(&connection).await,
            Phase::Idle(_) => {
                let (closing, fading) = closing;
                if let Some(fading) = fading {
                    let _ = fading.finished().await;
                }
                match closing {
                    Some(closing) => self.finish_closing(&closing.connection).await,
                    // There is no change to publish, but layers hear that no connection is wanted.
                    None => {
                        let wanted = Event::Connection(ConnectionState::Disconnected);
                        self.hub.log(LogRecord::Event(wanted), None, Origin::Live);
                    }
                }
            }
        }
    }

    /// Ends the connection, if no call is being made over it and no turn is running. A turn that begins at this moment
    /// either comes first, or finds no connection and is not sent.
    pub(crate) async fn disconnect_if_idle(&self) -> bool {
        let connection = {
            let mut life = self.life();
            let Phase::Connected(connection) = &life.phase else { return false };
            let connection = Arc::clone(connection);
            if !connection.is_quiet() || !self.hub.is_quiet() {
                return false;
            }
            life.phase = Phase::Idle(None);
            life.closing = Some(Closing { connection: Arc::clone(&connection), asked: true });
            connection
        };
        self.finish_closing(&connection).await;
        true
    }

    async fn finish_closing(&self, connection: &Arc<Connection>) {
        connection.close().await;
        let mut life = self.life();
        if let Some(closing) = life.closing.take_if(|closing| closing.is_of(connection))
            && closing.asked
        {
            self.hub.connection(ConnectionState::Disconnected);
        }
    }

    /// The connection, once it is made if it is being made. One that could not be made in the background is tried again
    /// once, unless this call has waited for an attempt that failed.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        let mut tried = false;
        loop {
            let attempt = match &self.life().phase {
                Phase::Connected(connection) => return Ok(Arc::clone(connection)),
                Phase::Idle(Some(error)) if tried => return Err(error.clone()),
                Phase::Idle(Some(_)) => None,
                Phase::Idle(None) => return Err(Error::NotConnected),
                Phase::Connecting(attempt) => Some(Arc::clone(attempt)),
            };
            tried = true;
            let attempt = match attempt {
                Some(attempt) => attempt,
                None => match self.begin(self.options.agent.as_deref().unwrap_or_default(), Asked::ByOptions)
                {
                    Ok(attempt) => attempt,
                    // Another call was quicker.
                    Err(Error::AlreadyConnected) => continue,
                    Err(error) => return Err(error),
                },
            };
            // Success and failure alike show in the phase.
            let _ = attempt.finished().await;
        }
    }

    /// The connection, if there is one now.
    pub(crate) fn present(&self) -> Option<Arc<Connection>> {
        match &self.life().phase {
            Phase::Connected(connection) => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    pub(super) fn state(&self) -> ConnectionState {
        let connection = match &self.life().phase {
            Phase::Idle(_) => return ConnectionState::Disconnected,
            Phase::Connecting(_) => return ConnectionState::Connecting,
            Phase::Connected(connection) => Arc::clone(connection),
        };
        connection.state()
    }

    /// Starts a task that ends with the last handle; `false` if that is gone, or there is no runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(tasks), Ok(runtime)) = (tasks.as_mut(), tokio::runtime::Handle::try_current()) else {
            return false;
        };
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &runtime);
        true
    }

    /// Ends everything at once, without telling the server.
    pub(super) fn shut_down(&self) {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        let phase = std::mem::replace(&mut self.life().phase, Phase::Idle(None));
        drop((tasks, phase));
        self.hub.close();
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("state", &self.state()).finish_non_exhaustive()
    }
}
