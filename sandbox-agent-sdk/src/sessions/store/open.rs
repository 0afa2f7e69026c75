//! The open turns and agent requests of a session.

use super::event::opens_request;
use super::{StoredEvent, StoredEventKind};

/// The turns and agent requests of a session that have no end yet.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct OpenEvents {
    /// The turns without an end, oldest first.
    pub turns: Vec<OpenTurn>,
    /// The agent requests that are not closed, oldest first.
    pub requests: Vec<OpenRequest>,
}

/// A turn without an end.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OpenTurn {
    /// The event of the kind `prompt`, with its turn id and request id.
    pub prompt: StoredEvent,
    /// The request ids with which the prompt was sent or was about to be sent, oldest first.
    pub rpc_ids: Vec<String>,
    /// The last event of the kind `prompt_resent`, if the prompt was sent again.
    pub resent: Option<StoredEvent>,
}

/// An agent request that is not closed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OpenRequest {
    /// The event of the request, with its request id.
    pub request: StoredEvent,
    /// The stored response, if there is one. It is unknown whether it was delivered.
    pub answer: Option<StoredEvent>,
}

impl OpenEvents {
    /// Groups the open events of a session, which must be ordered by index. For implementors of stores.
    #[must_use]
    pub fn of(events: impl IntoIterator<Item = StoredEvent>) -> Self {
        let mut open = Self::default();
        for event in events {
            match event.kind {
                StoredEventKind::Prompt => {
                    let rpc_ids = event.rpc_id.iter().cloned().collect();
                    open.turns.push(OpenTurn { prompt: event, rpc_ids, resent: None });
                }
                StoredEventKind::PromptResent => {
                    let turn = open.turns.iter_mut().find(|turn| turn.prompt.turn_id == event.turn_id);
                    if let Some(turn) = turn {
                        turn.rpc_ids.extend(event.rpc_id.clone());
                        turn.resent = Some(event);
                    }
                }
                StoredEventKind::Answered => {
                    let request = open.requests.iter_mut().rfind(|open| open.request.rpc_id == event.rpc_id);
                    if let Some(request) = request {
                        request.answer = Some(event);
                    }
                }
                _ if opens_request(&event.kind) => {
                    open.requests.push(OpenRequest { request: event, answer: None });
                }
                _ => {}
            }
        }
        open
    }

    /// Returns whether nothing is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.requests.is_empty()
    }
}
