//! The memory of sessions that nothing uses, within one budget.

use std::sync::Arc;

use super::Hub;
use super::state::State;

/// A guard: a session is in use while it exists, so that its state is not forgotten.
#[derive(Debug)]
pub(crate) struct SessionHandle {
    hub: Arc<Hub>,
    id: Arc<str>,
}

impl Hub {
    /// This client creates or names the session. Its agent requests are not thereby addressed to this client.
    pub(crate) fn name(self: &Arc<Self>, id: &str) -> SessionHandle {
        self.lock().session(id).handles += 1;
        SessionHandle { hub: Arc::clone(self), id: id.into() }
    }
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        if let Some(session) = state.sessions.get_mut(&self.id) {
            session.handles -= 1;
        }
        state.measure(&self.id);
    }
}

/// The memory of the sessions that this client has named and that nothing uses.
#[derive(Debug)]
pub(super) struct Unused {
    /// How many bytes they may take.
    limit: usize,
    bytes: usize,
    /// How many sessions have become unused so far.
    count: u64,
    /// The sessions that were in use without a handle, by a subscriber or a call, when they were measured last, and those
    /// that were not measured yet.
    lingering: Vec<Arc<str>>,
}

impl Unused {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, count: 0, lingering: Vec::new() }
    }
}

/// The share of a session in the memory of unused sessions.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Its size, if nothing used it when it was measured.
    bytes: usize,
    /// How many sessions had become unused before it.
    since: u64,
    /// Whether it is in the list of sessions in use without a handle.
    pub(super) lingers: bool,
}

impl State {
    /// This client names a session that it has not named before. Sessions in use without a handle are measured again,
    /// because nothing reports when their use ends.
    pub(super) fn begin_naming(&mut self, id: &str) {
        let lingering = std::mem::take(&mut self.unused.lingering);
        for id in lingering {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.share.lingers = false;
            }
            self.measure(&id);
        }
        self.unused.lingering.push(id.into());
    }

    /// Counts the memory of a session that this client has named, if nothing uses it. If unused sessions take too much,
    /// some are forgotten.
    pub(super) fn measure(&mut self, id: &str) {
        let Some((id, _)) = self.sessions.get_key_value(id) else { return };
        let id = Arc::clone(id);
        let Some(session) = self.sessions.get_mut(&id).filter(|session| session.is_named) else { return };
        let bytes = if session.is_watched() { 0 } else { session.bytes() + id.len() };
        let before = std::mem::replace(&mut session.share.bytes, bytes);
        if before == 0 && bytes > 0 {
            self.unused.count += 1;
            session.share.since = self.unused.count;
        }
        self.unused.bytes = self.unused.bytes - before + bytes;
        if bytes == 0 && session.handles == 0 && !std::mem::replace(&mut session.share.lingers, true) {
            self.unused.lingering.push(id);
        }
        if self.unused.bytes > self.unused.limit {
            self.forget_unused(self.unused.limit);
        }
    }

    /// Forgets unused sessions until they take no more than this: ended ones first, and those first that have been unused
    /// for longest. One that is named again gets a new state.
    fn forget_unused(&mut self, limit: usize) {
        let mut unused = Vec::new();
        for (id, session) in &mut self.sessions {
            if session.share.bytes == 0 {
                continue;
            }
            if session.is_watched() {
                // It is in use again.
                self.unused.bytes -= std::mem::take(&mut session.share.bytes);
                if session.handles == 0 && !std::mem::replace(&mut session.share.lingers, true) {
                    self.unused.lingering.push(Arc::clone(id));
                }
            } else {
                unused.push((!session.is_over(), session.share.since, Arc::clone(id)));
            }
        }
        unused.sort_unstable();
        for (_, _, id) in unused {
            if self.unused.bytes <= limit {
                return;
            }
            if let Some(session) = self.sessions.remove(&id) {
                self.unused.bytes -= session.share.bytes;
            }
            tracing::debug!(session = &*id, limit, "the state of a session that nothing uses is forgotten");
        }
    }
}
