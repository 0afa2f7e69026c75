//! The streams of a connection, as the rest of the client sees them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::{
    sync::watch,
    time::{Duration, Instant},
};

use super::{
    order::{Moment, OrderedCore, Settings},
    reader::{self, Wake},
};
use crate::{Error, EventId, EventSource, client::Core};

/// The state of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// It has not been open yet.
    Opening,
    Live,
    /// It was lost and is being opened again.
    Down,
    Ended,
}

impl LinkState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Live => "live",
            Self::Down => "down",
            Self::Ended => "ended",
        }
    }
}

/// One stream: its ordered core, and its state for the rest of the client.
#[derive(Debug)]
pub(crate) struct Link {
    source: EventSource,
    state: watch::Sender<LinkState>,
    born: Instant,
    /// Guards the ordered core; held to pass it one input or to take its effects, never while effects are applied.
    core: Mutex<OrderedCore>,
    pub(super) wake: Wake,
    /// When the last message came, in microseconds since `born`; 0 for none yet.
    last_message: AtomicU64,
    /// Why the stream ended.
    failure: OnceLock<Error>,
}

impl Link {
    fn new(source: EventSource, core: &Core, born: Instant) -> Self {
        let first = source == EventSource::Connection;
        let (options, dialect) = (&core.options, &core.options.dialect);
        let times = &options.timeouts;
        let resume_from = options.resume_from.clone().filter(|_| first);
        let settings = Settings {
            barrier: dialect.barrier,
            event_ids: dialect.event_ids,
            limits: options.limits.clone(),
            backlog: first && resume_from.is_none() && dialect.shared,
            resume_from,
            order: times.order,
            order_limit: times.order_limit,
            quiet: times.quiet,
            learn: times.learn,
            unconfirmed: times.confirmation,
            unconfirmed_limit: times.confirmation_limit,
            backlog_quiet: times.backlog_quiet,
            backlog_limit: times.backlog_limit,
        };
        Self {
            source,
            state: watch::Sender::new(LinkState::Opening),
            born,
            core: Mutex::new(OrderedCore::new(settings, core.ids.clone())),
            wake: Wake::default(),
            last_message: AtomicU64::new(0),
            failure: OnceLock::new(),
        }
    }

    pub(crate) fn source(&self) -> &EventSource {
        &self.source
    }

    pub(crate) fn session(&self) -> Option<&Arc<str>> {
        match &self.source {
            EventSource::Connection => None,
            EventSource::Session(session) => Some(session.as_shared()),
        }
    }

    pub(crate) fn state(&self) -> LinkState {
        *self.state.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<LinkState> {
        self.state.subscribe()
    }

    /// Changes the state; a link that has ended stays so.
    pub(crate) fn set_state(&self, new: LinkState) {
        self.state.send_if_modified(|state| {
            let changes = *state != LinkState::Ended && *state != new;
            if changes {
                *state = new;
            }
            changes
        });
    }

    /// Waits until the first attempt to open the stream is over.
    pub(crate) async fn opened(&self) {
        let _ = self.state.subscribe().wait_for(|state| *state != LinkState::Opening).await;
    }

    pub(crate) async fn ended(&self) {
        let _ = self.state.subscribe().wait_for(|state| *state == LinkState::Ended).await;
    }

    /// Ends the stream for a reason that calls on it should know.
    pub(crate) fn fail(&self, error: Error) {
        let _ = self.failure.set(error);
        self.set_state(LinkState::Ended);
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    /// The ordered core, for the reader and for inputs.
    pub(crate) fn core(&self) -> MutexGuard<'_, OrderedCore> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the ordered core an input that did not come from the stream. Wakes the reader if a deadline is before
    /// the reader's own timer.
    pub(crate) fn input<T>(&self, input: impl FnOnce(&mut OrderedCore, Moment) -> T) -> T {
        let mut core = self.core();
        let output = input(&mut core, self.moment(Instant::now()));
        self.wake.before(core.deadline());
        output
    }

    pub(crate) fn moment(&self, at: Instant) -> Moment {
        at.saturating_duration_since(self.born)
    }

    pub(super) fn instant(&self, moment: Moment) -> Option<Instant> {
        self.born.checked_add(moment)
    }

    pub(crate) fn message_arrived(&self, at: Instant) {
        let micros = u64::try_from(self.moment(at).as_micros()).unwrap_or(u64::MAX).max(1);
        self.last_message.store(micros, Ordering::Release);
    }

    pub(crate) fn last_message(&self) -> Option<Instant> {
        let micros = self.last_message.load(Ordering::Acquire);
        (micros > 0).then(|| self.born + Duration::from_micros(micros))
    }

    /// The id of the last event before any missing event.
    pub(crate) fn last_event_id(&self) -> Option<EventId> {
        self.core().identity().last()
    }
}

/// All streams of a connection.
#[derive(Debug)]
pub(crate) struct Links {
    born: Instant,
    connection: OnceLock<Arc<Link>>,
    started: AtomicBool,
    /// Guards the streams of sessions and their users; held for a look-up.
    sessions: Mutex<HashMap<Arc<str>, SessionLink>>,
}

#[derive(Debug)]
struct SessionLink {
    link: Arc<Link>,
    /// How many calls are using it.
    users: usize,
    /// Whether a call about the session has succeeded: the stream stays open until the session is closed.
    established: bool,
}

impl Links {
    pub(crate) fn new() -> Self {
        Self {
            born: Instant::now(),
            connection: OnceLock::new(),
            started: AtomicBool::new(false),
            sessions: Mutex::default(),
        }
    }

    pub(crate) fn connection(&self, core: &Core) -> &Arc<Link> {
        self.connection.get_or_init(|| Arc::new(Link::new(EventSource::Connection, core, self.born)))
    }

    /// The stream that carries a session's updates.
    pub(crate) fn get(&self, core: &Core, session: Option<&Arc<str>>) -> Arc<Link> {
        let own =
            session.and_then(|session| self.sessions_mut().get(session).map(|entry| entry.link.clone()));
        own.unwrap_or_else(|| self.connection(core).clone())
    }

    /// Starts reading the connection's stream; `true` the first time.
    pub(crate) fn start_connection(&self, core: &Arc<Core>) -> bool {
        if self.started.load(Ordering::Acquire) || self.started.swap(true, Ordering::AcqRel) {
            return false;
        }
        core.tasks.spawn(reader::run(core.clone(), self.connection(core).clone()));
        true
    }

    /// Uses the stream of a session, which is started if it is not being read.
    pub(crate) fn use_session(&self, core: &Arc<Core>, session: &Arc<str>) -> SessionUse {
        let mut sessions = self.sessions_mut();
        let entry = sessions.get_mut(session).filter(|entry| entry.link.state() != LinkState::Ended);
        let link = match entry {
            Some(entry) => {
                entry.users += 1;
                entry.link.clone()
            }
            None => {
                let link = Arc::new(Link::new(EventSource::Session(session.clone().into()), core, self.born));
                let entry = SessionLink { link: link.clone(), users: 1, established: false };
                sessions.insert(session.clone(), entry);
                if !core.tasks.spawn(reader::run(core.clone(), link.clone())) {
                    link.set_state(LinkState::Ended);
                }
                link
            }
        };
        drop(sessions);
        SessionUse { core: core.clone(), session: session.clone(), link }
    }

    /// The session exists: its stream stays open.
    pub(crate) fn establish(&self, core: &Arc<Core>, session: &Arc<str>) {
        let using = self.use_session(core, session);
        if let Some(entry) = self.sessions_mut().get_mut(session) {
            entry.established = true;
        }
        drop(using);
    }

    /// The session was closed: its stream ends with its last user.
    pub(crate) fn close_session(&self, session: &Arc<str>) {
        if let Some(entry) = self.sessions_mut().get_mut(session) {
            entry.established = false;
        }
    }

    fn release(&self, session: &Arc<str>, link: &Arc<Link>) {
        let mut sessions = self.sessions_mut();
        if let Some(entry) = sessions.get_mut(session).filter(|entry| Arc::ptr_eq(&entry.link, link)) {
            entry.users -= 1;
            if entry.users == 0 && !entry.established {
                entry.link.set_state(LinkState::Ended);
                sessions.remove(session);
            }
        }
    }

    /// Marks every stream as ended and returns them.
    pub(crate) fn end(&self) -> Vec<Arc<Link>> {
        let mut links: Vec<_> = self.connection.get().cloned().into_iter().collect();
        links.extend(self.sessions_mut().drain().map(|(_, entry)| entry.link));
        for link in &links {
            link.set_state(LinkState::Ended);
        }
        links
    }

    pub(crate) fn all(&self) -> Vec<Arc<Link>> {
        let mut links: Vec<_> = self.connection.get().cloned().into_iter().collect();
        links.extend(self.sessions_mut().values().map(|entry| entry.link.clone()));
        links
    }

    fn sessions_mut(&self) -> MutexGuard<'_, HashMap<Arc<str>, SessionLink>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that needs a session's stream. The stream ends with its last user, unless the session exists.
#[derive(Debug)]
pub(crate) struct SessionUse {
    core: Arc<Core>,
    session: Arc<str>,
    pub(crate) link: Arc<Link>,
}

impl SessionUse {
    /// The call succeeded, so the session exists.
    pub(crate) fn establish(&self) {
        self.core.links.establish(&self.core, &self.session);
    }
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        self.core.links.release(&self.session, &self.link);
    }
}
