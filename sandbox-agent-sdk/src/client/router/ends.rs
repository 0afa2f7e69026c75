//! Releases what belongs to an ended session.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use acp_http_client::AcpHttpClient;
use tokio::sync::Notify;

use crate::client::hub::EndListener;

/// Closes the agent requests of a session when it ends, and queues the session for its handlers.
#[derive(Debug)]
pub(super) struct Ends {
    wire: AcpHttpClient,
    /// Guards the ended sessions that the handlers have not released yet; held for a push or a pop. A session is here
    /// once for each of its ends.
    sessions: Mutex<VecDeque<String>>,
    more: Notify,
}

impl Ends {
    pub(super) fn new(wire: AcpHttpClient) -> Self {
        Self { wire, sessions: Mutex::default(), more: Notify::new() }
    }

    /// Returns the next session that has ended. It has one caller.
    pub(super) async fn next(&self) -> String {
        loop {
            let next = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match next {
                Some(session) => return session,
                None => self.more.notified().await,
            }
        }
    }
}

impl EndListener for Ends {
    fn session_ended(&self, id: &str) {
        self.wire.control().forget_agent_requests(Some(id));
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push_back(id.to_owned());
        self.more.notify_one();
    }
}
