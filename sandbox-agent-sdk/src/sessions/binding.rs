//! A kept session and its session of the agent.

use std::collections::HashSet;
use std::time::SystemTime;

use crate::{Error, Event, Origin, Timestamp, TurnOutcome};

/// A kept session and its session of the agent.
#[derive(Debug, Clone)]
pub(super) struct Binding {
    pub(super) agent_session: String,
    /// How often the session had been taken up when it was taken up here.
    pub(super) epoch: u64,
    /// Whether the agent has the session, as far as is known.
    pub(super) live: bool,
    /// What the agent has to be told first.
    pub(super) owed: Owed,
    pub(super) last_active: Timestamp,
    /// Whether a turn that was begun here is not over.
    pub(super) in_turn: bool,
    /// How often the stream had been lost when it was bound.
    losses: u64,
    /// Places that somebody else has stored who had the session before.
    pub(super) stored: HashSet<String>,
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
    pub(super) fn new(agent_session: &str, epoch: u64, owed: Owed, losses: u64) -> Self {
        Self {
            agent_session: agent_session.to_owned(),
            epoch,
            live: true,
            owed,
            last_active: SystemTime::now().into(),
            in_turn: false,
            losses,
            stored: HashSet::new(),
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

    /// The server began anew. What was bound since the stream was lost was bound to the new one.
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
