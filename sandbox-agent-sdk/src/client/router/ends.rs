//! The ends of sessions, for what the agent has asked and what runs for it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use acp_http_client::AcpHttpClient;
use tokio::sync::Notify;

use crate::client::hub::EndListener;

/// Closes what a session has asked when it ends, and keeps its name for the tools that end with it.
#[derive(Debug)]
pub(super) struct Ends {
    wire: AcpHttpClient,
    /// Guards the sessions whose tools are still to be ended; held for a push or a pop. A session stands here once for
    /// each of its ends, so that they are no more than there are books.
    sessions: Mutex<VecDeque<String>>,
    more: Notify,
}

impl Ends {
    pub(super) fn new(wire: AcpHttpClient) -> Self {
        Self { wire, sessions: Mutex::default(), more: Notify::new() }
    }

    /// The next session that has ended. There is one who waits.
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
