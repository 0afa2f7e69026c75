//! How sessions are kept, among the options of a client.

use std::sync::Arc;

use crate::ClientOptions;
use crate::sessions::{Attachment, RecorderOptions, SessionStore};

impl ClientOptions {
    /// Where [sessions](crate::SandboxAgentClient::sessions) are kept. Without one they are kept in memory.
    pub fn store(self, store: impl SessionStore) -> Self {
        self.shared_store(Arc::new(store))
    }

    /// Where sessions are kept, for a store that others use too.
    pub fn shared_store(mut self, store: Arc<dyn SessionStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// How events get to the store.
    pub fn recorder(mut self, options: RecorderOptions) -> Self {
        self.recorder = options;
        self
    }

    /// How many events of its history an agent is told at most that has to take up a session it does not know.
    /// Default 50; the newest count.
    pub fn replay_max_events(mut self, events: usize) -> Self {
        self.replay.max_events = events;
        self
    }

    /// How many characters these may have. Default 12,000.
    pub fn replay_max_chars(mut self, chars: usize) -> Self {
        self.replay.max_chars = chars;
        self
    }

    /// Whether a suspended session may also be taken up by telling its history to a new session of the agent. By default
    /// it may not: only an agent that can resume or load sessions takes it up again.
    pub fn resume_by_replay(mut self, allowed: bool) -> Self {
        self.replay.resumes = allowed;
        self
    }

    /// Goes on where another client left a session: [`StoredSession::detach`](crate::sessions::StoredSession::detach). It takes
    /// the store, too, that the other one used.
    pub fn attach(mut self, attachment: Attachment) -> Self {
        self.attachment = Some(attachment);
        self
    }
}
