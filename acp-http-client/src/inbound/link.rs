//! The streams of a connection, as the rest of the client sees them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::{
    sync::watch,
    time::{Duration, Instant},
};

use super::reader;
use crate::{Error, EventSource, client::Core};

/// Where a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// It has not been open yet.
    Opening,
    Live {
        since: Instant,
    },
    /// It was lost and is being opened again.
    Down,
    Ended,
}

impl LinkState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Live { .. } => "live",
            Self::Down => "down",
            Self::Ended => "ended",
        }
    }
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Link {
    source: EventSource,
    state: watch::Sender<LinkState>,
    born: Instant,
    /// When the last message came, in microseconds since `born`; 0 for none yet.
    last_message: AtomicU64,
    /// When the unfinished event began, and when its last bytes came, in the same way; 0 for none.
    unfinished: (AtomicU64, AtomicU64),
    /// The number of the last event up to which nothing is missing, plus one; 0 for none yet.
    last_number: AtomicU64,
    /// The reader keeps messages back: nobody may act as if they had been delivered.
    holding: AtomicBool,
    /// Guards what is seldom needed: an id that is no number, and why the stream ended; held for a copy.
    rare: Mutex<Rare>,
}

#[derive(Debug, Default)]
struct Rare {
    opaque_id: Option<String>,
    failure: Option<Error>,
}

impl Link {
    fn new(source: EventSource) -> Self {
        Self {
            source,
            state: watch::Sender::new(LinkState::Opening),
            born: Instant::now(),
            last_message: AtomicU64::new(0),
            unfinished: (AtomicU64::new(0), AtomicU64::new(0)),
            last_number: AtomicU64::new(0),
            holding: AtomicBool::new(false),
            rare: Mutex::default(),
        }
    }

    pub(crate) fn source(&self) -> &EventSource {
        &self.source
    }

    pub(crate) fn session(&self) -> Option<&Arc<str>> {
        match &self.source {
            EventSource::Connection => None,
            EventSource::Session(session) => Some(session),
        }
    }

    pub(crate) fn state(&self) -> LinkState {
        *self.state.borrow()
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
        self.rare().failure = Some(error);
        self.set_state(LinkState::Ended);
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.rare().failure.clone()
    }

    pub(crate) fn message_arrived(&self, at: Instant) {
        self.last_message.store(self.to_micros(at), Ordering::Release);
    }

    /// When the event began that is on its way, and when its last bytes came; `None` if none is.
    pub(crate) fn set_unfinished(&self, event: Option<(Instant, Instant)>) {
        let (began, last) =
            event.map_or((0, 0), |(began, last)| (self.to_micros(began), self.to_micros(last)));
        self.unfinished.0.store(began, Ordering::Release);
        self.unfinished.1.store(last, Ordering::Release);
    }

    /// When the event began that is on its way, and when its last bytes came.
    pub(crate) fn unfinished(&self) -> Option<(Instant, Instant)> {
        let (began, last) = &self.unfinished;
        let began = self.to_instant(began.load(Ordering::Acquire))?;
        Some((began, self.to_instant(last.load(Ordering::Acquire))?))
    }

    fn to_micros(&self, at: Instant) -> u64 {
        let micros = at.saturating_duration_since(self.born).as_micros();
        u64::try_from(micros).unwrap_or(u64::MAX).max(1)
    }

    fn to_instant(&self, micros: u64) -> Option<Instant> {
        (micros > 0).then(|| self.born + Duration::from_micros(micros))
    }

    pub(crate) fn set_holding(&self, holding: bool) {
        self.holding.store(holding, Ordering::Release);
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.holding.load(Ordering::Acquire)
    }

    pub(crate) fn moved_to(&self, (number, opaque): (Option<u64>, Option<&String>)) {
        if let Some(number) = number {
            self.last_number.store(number.saturating_add(1), Ordering::Release);
        } else if let Some(opaque) = opaque {
            self.rare().opaque_id = Some(opaque.clone());
        }
    }

    pub(crate) fn last_message(&self) -> Option<Instant> {
        self.to_instant(self.last_message.load(Ordering::Acquire))
    }

    /// The id of the last event up to which nothing is missing.
    pub(crate) fn last_event_id(&self) -> Option<String> {
        match self.last_number.load(Ordering::Acquire) {
            0 => self.rare().opaque_id.clone(),
            number => Some((number - 1).to_string()),
        }
    }

    fn rare(&self) -> MutexGuard<'_, Rare> {
        self.rare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All streams of a connection.
#[derive(Debug)]
pub(crate) struct Links {
    connection: Arc<Link>,
    started: AtomicBool,
    /// Guards the streams of sessions; held for a look-up.
    sessions: Mutex<HashMap<Arc<str>, Arc<Link>>>,
}

impl Links {
    pub(crate) fn new() -> Self {
        Self {
            connection: Arc::new(Link::new(EventSource::Connection)),
            started: AtomicBool::new(false),
            sessions: Mutex::default(),
        }
    }

    pub(crate) fn connection(&self) -> &Arc<Link> {
        &self.connection
    }

    /// The stream that carries a session's updates.
    pub(crate) fn get(&self, session: Option<&Arc<str>>) -> Arc<Link> {
        let own = session.and_then(|session| self.sessions_mut().get(session).cloned());
        own.unwrap_or_else(|| self.connection.clone())
    }

    /// Starts reading the connection's stream; `true` the first time.
    pub(crate) fn start_connection(&self, core: &Arc<Core>) -> bool {
        if self.started.load(Ordering::Acquire) || self.started.swap(true, Ordering::AcqRel) {
            return false;
        }
        core.tasks.spawn(reader::run(core.clone(), self.connection.clone()));
        true
    }

    /// The stream of a session, started if it is not being read.
    pub(crate) fn start_session(&self, core: &Arc<Core>, session: &Arc<str>) -> Arc<Link> {
        let mut sessions = self.sessions_mut();
        if let Some(link) = sessions.get(session).filter(|link| link.state() != LinkState::Ended) {
            return link.clone();
        }
        let link = Arc::new(Link::new(EventSource::Session(session.clone())));
        sessions.insert(session.clone(), link.clone());
        drop(sessions);
        if !core.tasks.spawn(reader::run(core.clone(), link.clone())) {
            link.set_state(LinkState::Ended);
        }
        link
    }

    /// Whether a session's stream is being read.
    pub(crate) fn has_session(&self, session: &Arc<str>) -> bool {
        self.sessions_mut().get(session).is_some_and(|link| link.state() != LinkState::Ended)
    }

    /// Stops reading a session's stream.
    pub(crate) fn stop_session(&self, session: &Arc<str>) {
        if let Some(link) = self.sessions_mut().remove(session) {
            link.set_state(LinkState::Ended);
        }
    }

    /// Marks every stream as ended.
    pub(crate) fn end(&self) {
        self.connection.set_state(LinkState::Ended);
        for (_, link) in self.sessions_mut().drain() {
            link.set_state(LinkState::Ended);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Link>> {
        let mut links = vec![self.connection.clone()];
        links.extend(self.sessions_mut().values().cloned());
        links
    }

    fn sessions_mut(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Link>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
