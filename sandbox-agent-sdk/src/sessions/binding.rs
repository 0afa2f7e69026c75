//! A kept session and its session of the agent.

use std::collections::HashSet;
use std::time::SystemTime;

use serde_json::Value;

use super::entry::Entry;
use super::strangers::Stored;
use crate::store::number_of;

use crate::event::Origin;
use crate::session::Timestamp;
use crate::{Error, Event, TurnOutcome};

/// A kept session and its session of the agent.
#[derive(Debug, Clone)]
pub(super) struct Binding {
    pub(super) agent_session: String,
    /// How often the session had been taken up when it was taken up here.
    pub(super) epoch: u64,
    /// When the session was made: one of the same id that was made later is another one.
    pub(super) made_at: Timestamp,
    /// Whether the agent has the session, as far as is known.
    pub(super) live: bool,
    /// Whether there was no connection since, so that something may have come which is not stored: what comes now waits
    /// until the session is taken up, so that it comes behind that.
    pub(super) is_behind: bool,
    /// The last number of the stream that was taken down of it here.
    pub(super) seen_to: Option<u64>,
    /// What the agent has to be told first.
    pub(super) owed: Owed,
    pub(super) last_active: Timestamp,
    /// Whether a turn that was begun here is not over.
    pub(super) in_turn: bool,
    /// How often the stream had been lost when the agent was asked for it.
    losses: u64,
    /// Places that somebody else has stored who had the session before.
    pub(super) stored: HashSet<String>,
}

/// How a session is taken up.
#[derive(Debug)]
pub(super) struct TakenUp<'a> {
    pub(super) id: &'a str,
    pub(super) agent_session: &'a str,
    /// When the session was made.
    pub(super) made_at: Timestamp,
    /// How often it has been taken up now, and the last index it had before.
    pub(super) epoch: u64,
    pub(super) since: u64,
    pub(super) owed: Owed,
    /// Whether the agent has it.
    pub(super) live: bool,
    /// When the agent was asked for it.
    pub(super) asked: Moment,
    /// What others have stored of it, where they see the same stream: what came and they have not is stored from here.
    pub(super) stored: Option<Stored<'a>>,
    /// What is stored of how it was taken up, if it was.
    pub(super) restored: Option<Value>,
}

/// A moment, by what had happened to all sessions then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moment {
    /// How often the stream of events had been lost.
    pub(super) losses: u64,
    /// How often everything that the agent had was.
    pub(super) endings: u64,
    /// How often the server had begun anew.
    pub(super) restarts: u64,
}

/// Whether the agent has to be told the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owed {
    Nothing,
    History,
    /// It is being told; with whether the agent has said anything since.
    Telling {
        heard: bool,
    },
}

impl Binding {
    pub(super) fn new(taken: &TakenUp<'_>, stored: HashSet<String>) -> Self {
        Self {
            agent_session: taken.agent_session.to_owned(),
            epoch: taken.epoch,
            made_at: taken.made_at,
            live: taken.live,
            is_behind: false,
            seen_to: None,
            owed: taken.owed,
            last_active: SystemTime::now().into(),
            in_turn: false,
            losses: taken.asked.losses,
            stored,
        }
    }

    /// Takes in that something happened.
    pub(super) fn notice(&mut self, event: &Event) {
        if event.origin() != Origin::Live {
            return;
        }
        self.last_active = SystemTime::now().into();
        match event {
            Event::SessionEnded(_) => self.live = false,
            Event::Update(_) => {
                if let Owed::Telling { heard } = &mut self.owed {
                    *heard = true;
                }
            }
            _ => {}
        }
    }

    /// Something of the stream is taken down.
    pub(super) fn see(&mut self, entry: &Entry) {
        self.seen_to = self.seen_to.max(entry.place.as_deref().and_then(number_of));
    }

    /// The server began anew. What was asked for since the stream was lost was asked of the new one.
    pub(super) fn lose_if_older(&mut self, losses: u64) {
        self.live &= self.losses >= losses;
    }

    /// A turn begins.
    pub(super) fn begin_turn(&mut self) {
        self.last_active = SystemTime::now().into();
        self.in_turn = true;
        if self.owed == Owed::History {
            self.owed = Owed::Telling { heard: false };
        }
    }

    /// A turn is over. Tells whether the agent knows the history now and did not before.
    ///
    /// An agent that has answered, or said anything, has read what it was told. Where a failure leaves that open, it is
    /// told again: to be told twice does less harm than to know nothing.
    pub(super) fn end_turn(&mut self, outcome: &Result<TurnOutcome, Error>) -> bool {
        self.last_active = SystemTime::now().into();
        self.in_turn = false;
        let Owed::Telling { heard } = self.owed else { return false };
        let told = heard || outcome.is_ok();
        self.owed = if told { Owed::Nothing } else { Owed::History };
        told
    }
}
