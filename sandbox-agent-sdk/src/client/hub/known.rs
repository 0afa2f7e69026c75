//! The known state of a client's sessions, and the pending calls about them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::pending_call::Forking;
use super::session_state::SessionState;
use super::{Hub, OpenRequest, Opening, PendingCall};
use crate::OpenSession;
use crate::client::event::Queue;
use crate::client::snapshot::{Patch, SessionSnapshot};
use crate::update::{ConfigOption, ToolCall};
use crate::usage::UsageTable;

impl Hub {
    /// Returns the snapshot of a session.
    pub(in crate::client) fn snapshot(&self, id: &str) -> Arc<SessionSnapshot> {
        self.lock().session(id).snapshot.get()
    }

    /// Applies the response to a call about a session; `began` is when the call began.
    pub(crate) fn answered(&self, id: &str, patch: Patch, began: u64) {
        self.change(id, |session, now| session.snapshot.answer(patch, began, now));
    }

    /// Applies the options in the response to a call that set one of them and began at this time.
    pub(crate) fn set_option(&self, id: &str, options: Vec<ConfigOption>, set: &str, began: u64) {
        self.change(id, |session, now| session.snapshot.set_option(options, set, began, now));
    }

    /// Applies the response that created the session.
    pub(crate) fn begun(&self, id: &str, patch: Patch, began: u64) {
        self.change(id, |session, now| session.snapshot.begin(patch, began, now));
    }

    /// Changes the snapshot of a session.
    fn change(&self, id: &str, with: impl FnOnce(&mut SessionState, u64)) {
        let now = self.tick();
        let mut state = self.lock();
        with(state.session(id), now);
        state.measure(id);
    }

    /// This client sets the mode of a session. The agent may report it as text, until the next prompt.
    pub(in crate::client) fn expect_mode(&self, id: &str, mode: &str) {
        let mut state = self.lock();
        let expected = &mut state.session(id).expected_modes;
        if !expected.iter().any(|known| known == mode) {
            expected.push(mode.to_owned());
        }
    }

    /// The mode was not set, or was reported; `false` if this client has not set it.
    pub(in crate::client) fn take_expected_mode(&self, id: &str, mode: &str) -> bool {
        let mut state = self.lock();
        let Some(session) = state.sessions.get_mut(id) else { return false };
        let place = session.expected_modes.iter().position(|known| known == mode);
        place.map(|place| session.expected_modes.remove(place)).is_some()
    }

    /// Sets the agent of a session.
    pub(crate) fn assign(&self, id: &str, agent: &str) {
        let mut state = self.lock();
        state.session(id).agent = Some(agent.into());
        state.usage.assign(id, agent);
    }

    /// Reads or changes the usage of sessions.
    pub(in crate::client) fn usage<T>(&self, with: impl FnOnce(&mut UsageTable) -> T) -> T {
        with(&mut self.lock().usage)
    }

    /// Stores how this client opened a session.
    pub(in crate::client) fn opened(&self, id: &str, with: OpenSession) {
        self.lock().session(id).opened_with = Some(Arc::new(with));
    }

    /// Returns how this client opened a session.
    pub(in crate::client) fn opened_with(&self, id: &str) -> Option<Arc<OpenSession>> {
        self.lock().sessions.get(id)?.opened_with.clone()
    }

    /// Returns the agent of a session, if known.
    pub(crate) fn agent_of(&self, id: &str) -> Option<Arc<str>> {
        self.lock().sessions.get(id)?.agent.clone()
    }

    /// The session has responded, so it exists.
    pub(crate) fn confirm(&self, id: &str) {
        let mut state = self.lock();
        let session = state.session(id);
        session.open = session.ended.borrow().is_none();
    }

    /// The session has no handle, so its end is not reported when the agent ends.
    pub(crate) fn disown(&self, id: &str) {
        self.lock().session(id).open = false;
    }

    /// Whether this client has created or named the session.
    pub(in crate::client) fn is_named(&self, id: &str) -> bool {
        self.lock().sessions.get(id).is_some_and(|session| session.is_named)
    }

    /// Whether this client knows that the session exists or existed.
    pub(crate) fn is_there(&self, id: &str) -> bool {
        self.lock().sessions.get(id).is_some_and(|session| session.open || session.ended.borrow().is_some())
    }

    /// Counts a call of this client about a session as pending, until the guard is dropped.
    pub(in crate::client) fn pending_call(self: &Arc<Self>, id: &str) -> PendingCall {
        self.lock().session(id).pending_calls += 1;
        PendingCall { hub: Arc::clone(self), id: id.into() }
    }

    /// Counts a call of this client that creates a session as pending, until the guard is dropped.
    pub(in crate::client) fn open(self: &Arc<Self>) -> Opening {
        self.lock().openings += 1;
        Opening(Arc::clone(self))
    }

    /// Counts a call of this client that forks a session as pending, until the guard is dropped.
    pub(in crate::client) fn fork(self: &Arc<Self>) -> Forking {
        let replayed = Arc::new(Queue::new(self.budget));
        self.loads.fetch_add(1, Ordering::AcqRel);
        let opening = self.open();
        self.lock().forks.push(Arc::clone(&replayed));
        Forking { opening, replayed }
    }

    /// Whether other clients have sessions on the stream of the connection.
    pub(in crate::client) fn set_shared(&self, shared: bool) {
        self.lock().shared = shared;
    }

    /// Whether other processes can read the stream of the connection by its event numbers.
    pub(crate) fn set_numbered(&self, numbered: bool) {
        self.is_numbered.store(numbered, Ordering::Release);
    }

    /// Counts an agent request of a session as open, until the guard is dropped.
    pub(in crate::client) fn open_request(&self, id: &str) -> Option<OpenRequest> {
        self.lock().sessions.get(id).map(|session| OpenRequest::new(&session.progress))
    }

    /// Whether a call of this client about a session is pending.
    pub(in crate::client) fn has_pending_call(&self, id: &str) -> bool {
        self.lock().sessions.get(id).is_some_and(|session| session.pending_calls > 0)
    }

    /// Returns whether no warning was logged for this session yet; `None` if this client has not named it.
    pub(in crate::client) fn warn_of(&self, id: &str) -> Option<bool> {
        let mut state = self.lock();
        let session = state.sessions.get_mut(id).filter(|session| session.is_named)?;
        Some(!std::mem::replace(&mut session.warned, true))
    }

    /// Returns a tool call of a session by its id.
    pub(in crate::client) fn tool_call(&self, session: &str, id: &str) -> Option<ToolCall> {
        self.lock().sessions.get(session)?.tool_calls.get(id)
    }
}
