//! The entries of a turn's queue.

use super::{Outcome, TurnOutcome};
use crate::client::event::{Class, Queue, Weight};
use crate::client::hub::Hub;
use crate::requests::QuestionRequest;
use crate::update::Missed;
use crate::{Error, PermissionRequest, Update};

/// An event of a turn, returned by [`Turn::next_event`](crate::Turn::next_event).
///
/// Serializes like the [`Event`](crate::Event) of the same kind, to an object with a `type` field. The end of the turn has
/// no `sessionId` and no `requestId`, unlike [`Event::TurnEnded`](crate::Event::TurnEnded).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TurnEvent {
    /// An update of the session.
    Update(Update),
    /// The agent requests a permission and waits for the decision.
    Permission(PermissionRequest),
    /// The agent asks a question and waits for the answer.
    Question(QuestionRequest),
    /// The turn ended. This is the last event.
    Ended(Result<TurnOutcome, Error>),
}

/// An entry of a turn's queue.
#[derive(Debug, Clone)]
pub(crate) enum TurnItem {
    Update(Update),
    Permission(PermissionRequest),
    Question(QuestionRequest),
}

impl TurnItem {
    /// Refuses a request that the reader does not decide, and returns any other entry.
    pub(in crate::client) fn or_refuse(self, hub: &Hub) -> Option<Update> {
        match self {
            Self::Update(update) => return Some(update),
            Self::Permission(request) => hub.refuse(request),
            Self::Question(request) => drop(request),
        }
        None
    }
}

impl Queue<TurnItem> {
    /// Returns what is missing because the reader of the turn fell behind.
    pub(super) fn missed(&self) -> Option<Missed> {
        Some(self.dropped()).filter(|dropped| *dropped > 0).map(Missed::Lagged)
    }
}

impl From<TurnItem> for TurnEvent {
    fn from(item: TurnItem) -> Self {
        match item {
            TurnItem::Update(update) => Self::Update(update),
            TurnItem::Permission(request) => Self::Permission(request),
            TurnItem::Question(request) => Self::Question(request),
        }
    }
}

impl From<Outcome> for TurnEvent {
    fn from(outcome: Outcome) -> Self {
        Self::Ended(outcome)
    }
}

impl Weight for TurnItem {
    fn weight(&self) -> usize {
        match self {
            Self::Update(update) => update.weight(),
            Self::Permission(request) => request.size(),
            Self::Question(request) => request.size(),
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Update(update) => update.class(),
            Self::Permission(_) | Self::Question(_) => Class::Request,
        }
    }

    fn lagged(count: u64) -> Self {
        Self::Update(Update::lagged(count))
    }
}
