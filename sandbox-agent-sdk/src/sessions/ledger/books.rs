//! Who is who, and what has come.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::Event;
use crate::client::event::Queue;
use crate::session::Timestamp;
use crate::sessions::binding::{Binding, Moment, TakenUp};
use crate::sessions::entry::{Early, Entry};
use crate::sessions::own::Own;
use crate::sessions::strangers::Strangers;
use crate::sessions::stream::Stream;
use crate::store::number_of;

/// Who listens to a session, and to which of the agent's.
pub(super) type Follower = (Weak<Queue<Event>>, String);

/// What the ledger knows. Nothing here waits.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) bound: HashMap<String, Binding>,
    /// The kept session of each session of the agent, also of those that were its session before.
    pub(super) kept: HashMap<String, String>,
    /// Sessions that this program has let go of in the middle of a turn, whose end only it will know.
    pub(super) leaving: HashMap<String, String>,
    pub(super) early: Early,
    pub(super) strangers: Strangers,
    /// Who listens to which kept session, and to which session of the agent that is by now.
    pub(super) followers: HashMap<String, Vec<Follower>>,
    pub(super) stream: Stream,
    pub(super) gates: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// What has happened to all sessions so far, and whether the stream of events is lost now.
    pub(super) now: Moment,
    pub(super) away: bool,
    /// How often the stream had been lost when the server began anew last.
    pub(super) restarted_after: u64,
    /// By what this program knows what it has done itself: each has a name that is in the record.
    pub(super) own: Own,
    /// Whether there is no connection because nothing happened, or because it could not be made again: not because the
    /// program gave it up.
    pub(super) asleep: bool,
    /// Whether the session that the client attaches to was taken.
    pub(super) expected: bool,
    /// When something last happened in any session, kept or not.
    pub(super) last_active: Option<Timestamp>,
}

impl Books {
    pub(super) fn unbind(&mut self, id: &str) {
        let Some(binding) = self.bound.remove(id) else { return };
        self.kept.retain(|_, kept| kept != id);
        // What was seen of it until now is not remembered, and is somebody else's.
        if let Some(seen_to) = binding.seen_to {
            self.strangers.miss_of(&binding.agent_session, seen_to);
        }
        if binding.in_turn {
            self.leaving.insert(binding.agent_session, id.to_owned());
        }
    }

    /// Nothing that the agent had is there any more, as far as is known.
    pub(super) fn lose_all(&mut self) {
        self.now.endings += 1;
        self.away = false;
        // The next connection reads from the beginning what the server still has, and that may be another server.
        self.begin_stream();
        self.bound.values_mut().for_each(|binding| (binding.live, binding.is_behind) = (false, true));
    }

    /// The server began anew.
    pub(super) fn restart(&mut self) {
        self.begin_stream();
        self.now.restarts += 1;
        self.restarted_after = self.now.losses;
        let losses = self.now.losses;
        self.bound.values_mut().for_each(|binding| binding.lose_if_older(losses));
    }

    pub(super) fn begin_stream(&mut self) {
        self.stream = Stream::default();
        self.strangers.clear();
    }

    /// The stream has come to a place.
    pub(super) fn pass(&mut self, place: &str) {
        self.stream.pass(place);
        if let Some(number) = number_of(place).filter(|number| *number > 0) {
            self.strangers.pass(number);
        }
    }

    /// What came for a session before it was taken up, and nobody has stored.
    pub(super) fn recover(&mut self, agent_session: &str, taken: &TakenUp<'_>) -> Vec<Entry> {
        match &taken.stored {
            Some(stored) => self.strangers.recover(agent_session, stored, self.stream.reached()),
            None => Vec::new(),
        }
    }

    /// Those who listen to a session that was another one of the agent's.
    pub(super) fn followers_to_move(&mut self, id: &str, agent_session: &str) -> Vec<Follower> {
        let followers = self.followers.get_mut(id).into_iter().flatten();
        let others = followers.filter(|(_, session)| session != agent_session);
        let moved = others.map(|(follower, session)| {
            (Weak::clone(follower), std::mem::replace(session, agent_session.to_owned()))
        });
        moved.collect()
    }

    /// Whether what the agent was asked for then is gone.
    pub(super) fn has_ended_since(&self, then: Moment) -> bool {
        // What was asked for since the stream was lost was asked of the server that began anew.
        let of_old_server = then.restarts != self.now.restarts && then.losses < self.restarted_after;
        then.endings != self.now.endings || of_old_server
    }

    /// The stream of events is there, or is not.
    pub(super) fn notice(&mut self, away: bool) {
        self.now.losses += u64::from(away && !self.away);
        self.away = away;
    }
}
