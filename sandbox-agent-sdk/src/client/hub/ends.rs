//! How sessions end, and begin again.

use std::fmt;
use std::sync::{Arc, Weak};

use tokio::sync::watch;

use super::book::SessionBook;
use super::taking_up::TakingUp;
use super::{Hub, Numbered};
use crate::event::{Origin, SessionEnded};
use crate::termination::TerminationReport;
use crate::{Event, TerminationInfo};

/// Is called when a session has ended, without any lock of the hub. It must not wait.
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
    pub(super) fn tell_end(&self, id: &str) {
        let listeners: Vec<_> = self.lock().listeners.iter().filter_map(Weak::upgrade).collect();
        for listener in listeners {
            listener.session_ended(id);
        }
    }

    /// Marks a session as being loaded or resumed, until the guard is dropped.
    pub(in crate::client) fn take_up(self: &Arc<Self>, id: &str) -> TakingUp {
        let now = self.now();
        let mut state = self.lock();
        let book = state.book(id);
        book.taking_up += 1;
        book.past_end |= book.ended.borrow().is_some();
        book.snapshot.load(now);
        TakingUp { hub: Arc::clone(self), id: id.into() }
    }

    /// Whether the session has ended and no call is loading or resuming it.
    pub(in crate::client) fn is_deserted(&self, id: &str) -> bool {
        self.lock().sessions.get(id).is_some_and(SessionBook::is_deserted)
    }

    /// Marks a session as active: it was created, loaded or resumed.
    pub(crate) fn revive(&self, id: &str) {
        let mut state = self.lock();
        let book = state.book(id);
        book.stop_requested = false;
        book.open = true;
        book.past_end = false;
        book.ended.send_replace(None);
    }

    /// This client is about to request the end of a session.
    pub(crate) fn request_stop(&self, id: &str) {
        self.lock().book(id).stop_requested = true;
    }

    /// The request to end a session failed.
    pub(crate) fn withdraw_stop(&self, id: &str) {
        self.lock().book(id).stop_requested = false;
    }

    /// Returns how a session ended.
    pub(crate) fn ended(&self, id: &str) -> Option<TerminationInfo> {
        self.lock().sessions.get(id).and_then(|book| book.ended.borrow().clone())
    }

    /// Watches the end of a session.
    pub(crate) fn watch_end(&self, id: &str) -> watch::Receiver<Option<TerminationInfo>> {
        self.lock().book(id).ended.subscribe()
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
        let (info, deserted) = {
            let mut state = self.lock();
            if !state.sessions.contains_key(id) {
                if id.len() > self.longest_id {
                    return report.into_info();
                }
                if !state.remembers_unknown() {
                    drop(state);
                    let info = report.into_info();
                    self.publish_at(&ended_event(id, &info, Origin::Live), at);
                    return info;
                }
            }
            let book = state.known_or_unnamed(id);
            if let Some(info) = &*book.ended.borrow() {
                return info.clone();
            }
            let requested = book.stop_requested;
            let report = if requested { report.merge(TerminationReport::requested()) } else { report };
            let info = report.into_info();
            book.ended.send_replace(Some(info.clone()));
            book.open = false;
            self.usage.end_process(id);
            (info, book.is_deserted())
        };
        if deserted {
            self.tell_end(id);
        }
        self.publish_at(&ended_event(id, &info, Origin::Live), at);
        info
    }

    /// The call that loads or resumes a session reports its end. If it had ended before, this is another end.
    pub(in crate::client) fn end_again(&self, id: &str, report: TerminationReport) -> TerminationInfo {
        {
            let mut state = self.lock();
            let book = state.book(id);
            if std::mem::take(&mut book.past_end) {
                book.ended.send_replace(None);
            }
        }
        self.end_session(id, report)
    }

    /// Ends every session of this client that exists or that a call waits for, because the agent is gone. Returns them.
    /// A session that was only named does not end, because it may not exist.
    pub(crate) fn end_all(&self, report: &TerminationReport) -> Vec<Arc<str>> {
        let mut ids: Vec<Arc<str>> = {
            let state = self.lock();
            let there = |book: &SessionBook| book.open || book.is_busy();
            let ends = |book: &SessionBook| book.is_named && there(book) && book.ended.borrow().is_none();
            let ours = state.sessions.iter().filter(|(_, book)| ends(book));
            ours.map(|(id, _)| Arc::clone(id)).collect()
        };
        ids.sort();
        for id in &ids {
            self.end_session(id, report.clone());
        }
        ids
    }

    /// Publishes further details about the end of these sessions.
    pub(in crate::client) fn complete_ends(&self, ids: &[Arc<str>], report: &TerminationReport) {
        for id in ids {
            let completed = {
                let mut state = self.lock();
                let book = state.book(id);
                let report = match book.stop_requested {
                    true => report.clone().merge(TerminationReport::requested()),
                    false => report.clone(),
                };
                let info = report.into_info();
                let says_more =
                    |known: &Option<TerminationInfo>| known.as_ref().is_some_and(|known| *known != info);
                let completes = says_more(&book.ended.borrow());
                completes.then(|| {
                    book.ended.send_replace(Some(info.clone()));
                    info
                })
            };
            if let Some(termination) = completed {
                let ended = SessionEnded { session_id: id.to_string(), termination, origin: Origin::Live };
                self.publish(&Event::TerminationDetails(Box::new(ended)));
            }
        }
    }
}

pub(crate) fn ended_event(id: &str, info: &TerminationInfo, origin: Origin) -> Event {
    Event::SessionEnded(Box::new(SessionEnded {
        session_id: id.to_owned(),
        termination: info.clone(),
        origin,
    }))
}
