//! Requests of sessions of which it is not known yet whose they are.

use std::collections::VecDeque;

use acp_http_client as wire;
use serde_json::Value;
use tokio::time::{Duration, Instant};

use crate::client::pump::place;

/// How long the name of a session may come after what the session asks, before the agent is taken to wait for an answer.
pub(super) const NAMING: Duration = Duration::from_secs(2);
/// How many requests may wait.
const SEATS: usize = 256;

/// A request of the agent, with the means to answer it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) params: Value,
    /// The size of the parameters, as they came.
    pub(super) size: usize,
    pub(super) responder: wire::Responder,
    /// What every client that sees it knows it by: its id, and what it asks.
    pub(super) place: Option<String>,
}

impl Asked {
    /// An error, with the responder, if the parameters cannot be read.
    pub(super) fn new(
        request: &wire::AgentRequest,
        responder: wire::Responder,
    ) -> Result<Self, (wire::JsonError, wire::Responder)> {
        let (method, params) = (request.method().to_owned(), request.params());
        let (id, content) = (request.id().as_json().as_bytes(), params.as_bytes());
        let place = Some(format!("{}-{}", place(0, id), place(0, content)));
        match params.to_value() {
            Ok(params) => Ok(Self { method, size: content.len(), params, responder, place }),
            Err(error) => Err((error, responder)),
        }
    }

    /// The session that asks.
    pub(super) fn session(&self) -> Option<&str> {
        self.params.get("sessionId").and_then(Value::as_str)
    }

    /// Leaves it to somebody else, or to nobody.
    pub(super) fn leave(self) {
        // If nobody waits for it any more, that is as well.
        let _ = self.responder.ignore();
    }
}

/// Requests that wait for the name of a session, the oldest first.
#[derive(Debug, Default)]
pub(super) struct WaitingRoom {
    waiting: VecDeque<(Instant, Asked)>,
    /// Whether it was told that there is no room.
    full: bool,
}

impl WaitingRoom {
    pub(super) fn enter(&mut self, asked: Asked) {
        if self.waiting.len() < SEATS {
            return self.stay(Instant::now(), asked);
        }
        asked.leave();
        if !std::mem::replace(&mut self.full, true) {
            tracing::warn!(
                bound = SEATS,
                "more requests of unknown sessions than can wait; they are left to other clients"
            );
        }
    }

    pub(super) fn stay(&mut self, since: Instant, asked: Asked) {
        self.waiting.push_back((since, asked));
    }

    /// All of them.
    pub(super) fn leave(&mut self) -> VecDeque<(Instant, Asked)> {
        std::mem::take(&mut self.waiting)
    }

    /// Since when the oldest has waited.
    pub(super) fn since(&self) -> Option<Instant> {
        self.waiting.front().map(|(since, _)| *since)
    }
}
