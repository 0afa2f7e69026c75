//! The streams of a connection, as the rest of the client sees them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{sync::watch, time::Instant};

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
    /// Guards when the last message came and what the position is; held for a copy.
    progress: Mutex<Progress>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Progress {
    pub(crate) last_message: Option<Instant>,
    pub(crate) last_event_id: Option<String>,
    failure: Option<Error>,
}

impl Link {
    fn new(source: EventSource) -> Self {
        Self { source, state: watch::Sender::new(LinkState::Opening), progress: Mutex::default() }
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
        self.progress_mut().failure = Some(error);
        self.set_state(LinkState::Ended);
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.progress_mut().failure.clone()
    }

    pub(crate) fn message_arrived(&self) {
        self.progress_mut().last_message = Some(Instant::now());
    }

    pub(crate) fn moved_to(&self, last_event_id: Option<String>) {
        self.progress_mut().last_event_id = last_event_id;
    }

    pub(crate) fn last_message(&self) -> Option<Instant> {
        self.progress_mut().last_message
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress_mut().clone()
    }

    fn progress_mut(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
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
        core.tasks.spawn(reader::run(core.clone(), link.clone()));
        link
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
