//! The agent requests that have a response.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
};

use super::Arrival;
use crate::MessageId;

/// How many requests with a response are remembered. Replay buffers of known servers hold 1024 events.
pub(super) const ANSWERED: usize = 1024;

/// Remembers requests that have a response, so that a replayed one gets no second response.
///
/// On a shared endpoint most of them are requests of other clients, so each takes 40 bytes, whatever its ids are: keyed
/// hashes stand for them. Agent requests are rare, and a search takes less than a microsecond.
#[derive(Debug, Default)]
pub(super) struct AnsweredRequests {
    /// The requests in the order of their responses; one for each id.
    recent: VecDeque<Answered>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Answered {
    id: u64,
    session: u64,
    /// The method and the parameters.
    content: u64,
    /// The id of the event; 0 for none.
    event: u64,
    reopenings: u32,
    /// Whether the agent or the turn that sent the request may have ended.
    ended: bool,
}

impl AnsweredRequests {
    /// Whether a request already has a response, and is not from a restarted agent that reuses ids.
    ///
    /// The same event is the same request. So is another event while the agent and the turn run, because a server may
    /// resend requests that it considers open. After that, another event is another request. If events have no ids,
    /// only a stream that was not reopened in between is known to repeat nothing.
    pub(super) fn contains(&self, id: &MessageId, again: &Arrival) -> bool {
        let id = self.hasher.hash_one(id);
        let Some(first) = self.recent.iter().find(|first| first.id == id) else { return false };
        let again = self.answered(id, None, again);
        if first.content != again.content || !first.ended {
            return first.content == again.content;
        }
        match (first.event, again.event) {
            (0, _) | (_, 0) => first.reopenings != again.reopenings,
            (first, again) => first == again,
        }
    }

    pub(super) fn insert(&mut self, id: &MessageId, session: Option<&str>, arrival: &Arrival) {
        self.remove(id);
        if self.recent.len() == ANSWERED {
            self.recent.pop_front();
        }
        let answered = self.answered(self.hasher.hash_one(id), session, arrival);
        self.recent.push_back(answered);
    }

    pub(super) fn remove(&mut self, id: &MessageId) {
        let id = self.hasher.hash_one(id);
        if let Some(place) = self.recent.iter().position(|answered| answered.id == id) {
            self.recent.remove(place);
        }
    }

    /// Records that the agent or the turn of a session, or of all sessions, may have ended.
    pub(super) fn mark_ended(&mut self, session: Option<&str>) {
        let wanted = self.hasher.hash_one(session);
        for answered in &mut self.recent {
            answered.ended |= session.is_none() || answered.session == wanted;
        }
    }

    pub(super) fn clear(&mut self) {
        self.recent.clear();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.recent.len()
    }

    fn answered(&self, id: u64, session: Option<&str>, arrival: &Arrival) -> Answered {
        Answered {
            id,
            session: self.hasher.hash_one(session),
            content: self.hasher.hash_one((&arrival.method, arrival.print)),
            event: arrival.event_id.as_ref().map_or(0, |event| self.hasher.hash_one(event).max(1)),
            reopenings: arrival.reopenings as u32,
            ended: false,
        }
    }
}
