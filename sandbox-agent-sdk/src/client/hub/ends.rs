//! How sessions end, and are opened again.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tokio::sync::watch;

use super::resuming::Resuming;
use super::session_state::SessionState;
use super::state::State;
use super::{Hub, Numbered};
use crate::event::{Origin, SessionEnded};
use crate::termination::TerminationReport;
use crate::{Event, TerminationInfo, Update};

/// A listener for the ends of sessions. It is called without any lock of the hub, and must not wait.
pub(in crate::client) trait EndListener: fmt::Debug + Send + Sync {
    /// The session has ended, and no call is loading or resuming it.
    fn session_ended(&self, id: &str);
}

impl Hub {
    /// Registers a listener for the ends of sessions, for as long as it lives.
    pub(in crate::client) fn listen(&self, listener: &Arc<impl EndListener + 'static>) {
        let listener: Weak<dyn EndListener> = Arc::downgrade(listener) as Weak<dyn EndListener>;
        let mut state = self.lock();
        state.listeners.retain(|listener| listener.strong_count() > 0);
        state.listeners.push(listener);
    }

    /// Notifies the listeners that a session has ended.
    pub(super) fn notify_end(&self, id: &str) {
        let listeners: Vec<_> = self.lock().listeners.iter().filter_map(Weak::upgrade).collect();
        for listener in listeners {
            listener.session_ended(id);
        }
    }

    /// Marks a session as being loaded or resumed, until the guard is dropped. `loads` is whether the agent replays the
    /// conversation. `None` if it does while a turn of this client runs: the conversation would belong to the turn.
    pub(in crate::client) fn begin_resume(self: &Arc<Self>, id: &str, loads: bool) -> Option<Resuming> {
        let now = self.now();
        let mut state = self.lock();
        let session = state.session(id);
        if loads && session.is_prompted {
            return None;
        }
        self.loads.fetch_add(usize::from(loads), Ordering::AcqRel);
        session.resuming += 1;
        if loads {
            session.loads.send_modify(|loads| *loads += 1);
        }
        session.replays_late &= *session.loads.borrow() > 1;
        session.past_end |= session.ended.borrow().is_some();
        session.snapshot.load(now);
        Some(Resuming { hub: Arc::clone(self), id: id.into(), loads })
    }

    /// Whether the agent replayed a part of the conversation after its response to a load.
    pub(in crate::client) fn replays_late(&self, id: &str) -> bool {
        self.lock().session(id).replays_late
    }

    /// Whether a live update is replayed by the agent: after its response to a load, or before its response to a fork.
    pub(in crate::client) fn is_replay(&self, update: &Update) -> bool {
        // Most updates arrive while no session is being loaded.
        if self.loads.load(Ordering::Acquire) == 0 || !update.is_conversation() {
            return false;
        }
        let mut state = self.lock();
        if state.is_fork(update.session_id()) {
            let forks = state.forks.clone();
            state.known_or_unnamed(update.session_id()).histories = forks;
            return true;
        }
        let Some(session) = state.sessions.get_mut(update.session_id()) else { return false };
        let is_replay = *session.loads.borrow() > 0 && !session.is_prompted;
        session.replays_late |= is_replay;
        is_replay
    }

    /// Whether the session has ended and no call is loading or resuming it.
    pub(in crate::client) fn is_over(&self, id: &str) -> bool {
        self.lock().sessions.get(id).is_some_and(SessionState::is_over)
    }

    /// Marks a session as active: it was created, loaded or resumed.
    pub(crate) fn revive(&self, id: &str) {
        let mut state = self.lock();
        let session = state.session(id);
        session.stop_requested = false;
        session.open = true;
        session.past_end = false;
        session.ended.send_replace(None);
    }

    /// This client is about to request the end of a session.
    pub(crate) fn request_stop(&self, id: &str) {
        self.lock().session(id).stop_requested = true;
    }

    /// The request to end a session failed.
    pub(crate) fn withdraw_stop(&self, id: &str) {
        self.lock().session(id).stop_requested = false;
    }

    /// Returns how a session ended.
    pub(crate) fn ended(&self, id: &str) -> Option<TerminationInfo> {
        self.lock().sessions.get(id).and_then(|session| session.ended.borrow().clone())
    }

    /// Watches the end of a session.
    pub(crate) fn watch_end(&self, id: &str) -> watch::Receiver<Option<TerminationInfo>> {
        self.lock().session(id).ended.subscribe()
    }

    /// Ends a session. Only the first end counts and is published.
    pub(crate) fn end_session(&self, id: &str, report: TerminationReport) -> TerminationInfo {
        self.end_session_at(id, report, None)
    }

    /// Ends a session by a notification of the stream.
    pub(crate) fn end_session_at(
        &self,
        id: &str,
        report: TerminationReport,
        at: Option<Numbered<'_>>,
    ) -> TerminationInfo {
        let end = self.end_in(&mut self.lock(), id, report, at);
        self.notify(end).termination
    }

    /// The call that loads or resumes a session reports its end. If it had ended before, this is another end.
    pub(in crate::client) fn end_again(&self, id: &str, report: TerminationReport) -> TerminationInfo {
        let end = {
            let mut state = self.lock();
            let session = state.session(id);
            if std::mem::take(&mut session.past_end) {
                session.ended.send_replace(None);
            }
            self.end_in(&mut state, id, report, None)
        };
        self.notify(end).termination
    }

    fn notify(&self, end: SessionEnd) -> SessionEnd {
        if end.is_over {
            self.notify_end(&end.id);
        }
        end
    }

    /// Ends a session and publishes the end, in one step: otherwise a session that is revived in between would end
    /// again for its subscribers. A later report of the same end adds the details that the first one lacks.
    fn end_in(
        &self,
        state: &mut State,
        id: &str,
        report: TerminationReport,
        at: Option<Numbered<'_>>,
    ) -> SessionEnd {
        let end = |number, termination, is_over| SessionEnd { id: id.into(), number, termination, is_over };
        if !state.sessions.contains_key(id) {
            let is_too_long = id.len() > self.longest_id;
            if is_too_long || !state.remembers_unknown() {
                let info = report.into_info();
                if !is_too_long {
                    self.publish_in(state, &ended_event(id, &info, Origin::Live), at);
                }
                return end(0, info, false);
            }
        }
        let session = state.known_or_unnamed(id);
        let known = session.ended.borrow().clone();
        if let Some(known) = known {
            let number = session.ends;
            let info = TerminationReport::from_info(known.clone()).with_details(report).into_info();
            if info != known {
                session.ended.send_replace(Some(info.clone()));
                self.publish_in(state, &details_event(id, &info), at);
            }
            return end(number, info, false);
        }
        let requested = session.stop_requested;
        let report = if requested { report.merge(TerminationReport::requested()) } else { report };
        let info = report.into_info();
        session.ended.send_replace(Some(info.clone()));
        session.ends += 1;
        session.open = false;
        let (number, is_over) = (session.ends, session.is_over());
        state.usage.end_process(id);
        self.publish_in(state, &ended_event(id, &info, Origin::Live), at);
        end(number, info, is_over)
    }

    /// Ends every session of this client that exists or that a call waits for, because the agent is gone. Returns them.
    /// A session that was only named does not end, because it may not exist.
    pub(in crate::client) fn end_all(&self, report: &TerminationReport) -> Vec<SessionEnd> {
        let mut ids: Vec<Arc<str>> = {
            let state = self.lock();
            let there = |session: &SessionState| session.open || session.is_busy();
            let ends = |session: &SessionState| {
                session.is_named && there(session) && session.ended.borrow().is_none()
            };
            let ours = state.sessions.iter().filter(|(_, session)| ends(session));
            ours.map(|(id, _)| Arc::clone(id)).collect()
        };
        ids.sort();
        let end = |id: Arc<str>| {
            let end = self.end_in(&mut self.lock(), &id, report.clone(), None);
            self.notify(end)
        };
        ids.into_iter().map(end).collect()
    }

    /// Publishes further details about these ends. A session may have been opened again since: its state does not
    /// change then.
    pub(in crate::client) fn complete_ends(&self, ends: &[SessionEnd], report: &TerminationReport) {
        for SessionEnd { id, number, termination: before, .. } in ends {
            let mut state = self.lock();
            let session = state.session(id);
            let report = match before.requested {
                true => report.clone().merge(TerminationReport::requested()),
                false => report.clone(),
            };
            let termination = report.into_info();
            let is_last = session.ends == *number;
            let known = session.ended.borrow().clone().filter(|_| is_last);
            if known.as_ref().unwrap_or(before) == &termination {
                continue;
            }
            if known.is_some() {
                session.ended.send_replace(Some(termination.clone()));
            }
            self.publish_in(&mut state, &details_event(id, &termination), None);
        }
    }
}

/// One end of a session.
#[derive(Debug, Clone)]
pub(in crate::client) struct SessionEnd {
    id: Arc<str>,
    /// Which of its ends this is.
    number: u64,
    termination: TerminationInfo,
    /// Whether listeners must be notified.
    is_over: bool,
}

fn details_event(id: &str, termination: &TerminationInfo) -> Event {
    Event::TerminationDetails(Box::new(session_ended(id, termination, Origin::Live)))
}

pub(crate) fn ended_event(id: &str, info: &TerminationInfo, origin: Origin) -> Event {
    Event::SessionEnded(Box::new(session_ended(id, info, origin)))
}

fn session_ended(id: &str, info: &TerminationInfo, origin: Origin) -> SessionEnded {
    SessionEnded { session_id: id.to_owned(), termination: info.clone(), origin }
}
