//! The routes of a feed.

use std::sync::Arc;

use super::{Mailbox, Offered};
use crate::client::event::Hold;
use crate::client::maps::HashMap;
use crate::session::Timestamp;
use crate::sessions::early::Early;
use crate::sessions::entry::Entry;
use crate::sessions::progress::Progress;
use crate::sessions::tracker::Command;
use crate::{ConnectionState, Event};

/// What a feed knows of the streams and of who gets their events.
#[derive(Debug, Default)]
pub(super) struct State {
    /// By the id of the agent's session.
    pub(super) routes: HashMap<String, Route>,
    /// Trackers that read the stream to find out whether the agent's session is still theirs, by its id. Each gets its
    /// events, beside the one that has the route.
    pub(super) candidates: HashMap<String, Vec<Mailbox>>,
    /// Routes that ended with the connection or the server: how their sessions ended may be reported later.
    pub(super) gone: HashMap<String, Route>,
    /// The turns of this process, by the id of the agent's session. Their end is delivered even after the route is gone.
    pub(super) turns: HashMap<String, RunningTurn>,
    /// Who waits for the response to a prompt on the stream, by its JSON-RPC id.
    pub(super) awaited: HashMap<String, Mailbox>,
    /// Agent requests of turns of other processes that are offered here, by session and id.
    pub(super) offered: HashMap<(String, String), Offered>,
    /// The turns of other processes that may be running in an agent's session, while its tracker finds out.
    pub(super) claimed: HashMap<String, Offered>,
    pub(super) early: Early,
    /// The trackers whose sessions were gone with the connection or the server, until they are bound again. What their
    /// sessions report meanwhile is not seen here, so that nothing counts as stored.
    pub(super) unseen: Vec<Mailbox>,
    pub(super) progress: Progress,
    /// Whether a turn has ended in its order on this stream, which only the response on the stream proves.
    pub(super) is_echoing: bool,
    pub(super) clock: u64,
    /// The clock when the stream was lost last.
    pub(super) lost_at: Option<u64>,
    pub(super) away: bool,
    /// What was bound before is gone with the agent, the server or the connection.
    pub(super) ended_before: u64,
    /// Incremented with every connection and every restart of the server: offsets of different streams do not compare.
    pub(super) stream: u64,
    pub(super) last_active: Option<Timestamp>,
}

/// A turn of this process.
#[derive(Debug)]
pub(super) struct RunningTurn {
    pub(super) id: String,
    /// The JSON-RPC id of its prompt, once that is being sent and until its response arrives on the stream.
    pub(super) request: Option<String>,
    /// Whether the response arrived without proof that everything before it had arrived.
    pub(super) is_unordered: bool,
    pub(super) inbox: Mailbox,
}

#[derive(Debug)]
pub(super) struct Route {
    pub(super) session: String,
    pub(super) inbox: Mailbox,
    pub(super) bound_at: u64,
    /// The hold on the latest event, if events are held back until they are stored.
    pub(super) latest: Option<Hold>,
    /// Whether its agent has ended: servers write the agent's last updates and the notice of its end concurrently, so that
    /// updates may follow until the next connection.
    pub(super) is_trailing: bool,
}

impl State {
    pub(super) fn withdraw(&mut self, inbox: &Mailbox) {
        self.candidates.retain(|_, candidates| {
            candidates.retain(|candidate| !Arc::ptr_eq(candidate, inbox));
            !candidates.is_empty()
        });
    }

    pub(super) fn settle(&mut self, (stream, offset): (u64, u64)) {
        if stream == self.stream {
            self.progress.settle(offset);
        }
    }

    /// The hold on the latest event of an agent's session.
    pub(super) fn latest_hold(&self, agent_session: &str) -> Option<Hold> {
        let of_route = self.routes.get(agent_session).and_then(|route| route.latest.as_ref());
        let latest = of_route.or_else(|| self.early.latest(agent_session));
        latest.filter(|hold| hold.is_released().is_none()).cloned()
    }

    /// Whether what was bound then is gone.
    pub(super) fn is_gone(&self, bound_at: u64) -> bool {
        bound_at < self.ended_before
    }

    /// Ends every binding that is older than this, and begins another stream.
    pub(super) fn end_before(&mut self, before: u64, is_trailing: bool) {
        self.ended_before = before;
        self.stream += 1;
        self.progress = Progress::default();
        self.awaited.clear();
        self.is_echoing = false;
        let gone = self.routes.extract_if(|_, route| route.bound_at < before);
        for (id, route) in gone {
            route.inbox.note(Command::Gone);
            if !self.unseen.iter().any(|inbox| Arc::ptr_eq(inbox, &route.inbox)) {
                self.unseen.push(Arc::clone(&route.inbox));
            }
            self.gone.insert(id, Route { is_trailing, ..route });
        }
    }

    /// Something happened that is not of one session.
    pub(super) fn happened_to_all(&mut self, event: &Event) {
        match event {
            Event::Connection(ConnectionState::Reconnecting { .. }) if self.away => {}
            Event::Connection(ConnectionState::Reconnecting { .. }) => {
                self.away = true;
                self.clock += 1;
                self.lost_at = Some(self.clock);
            }
            Event::Reconnected { .. } => self.away = false,
            Event::ServerRestarted => {
                self.clock += 1;
                // What was bound since the stream was lost was bound on the new server.
                let before = self.lost_at.take().unwrap_or(self.clock);
                self.end_before(before, false);
            }
            Event::Connection(
                state @ (ConnectionState::AgentEnded(_)
                | ConnectionState::Disconnected
                | ConnectionState::Lost(_)),
            ) => {
                self.clock += 1;
                (self.away, self.lost_at) = (false, None);
                self.end_before(self.clock, matches!(state, ConnectionState::AgentEnded(_)));
            }
            Event::Connection(ConnectionState::Connecting) => {
                self.gone.values_mut().for_each(|route| route.is_trailing = false);
            }
            // Nothing says which session they were of.
            Event::Gap(_) | Event::Lagged(_) | Event::Malformed { lost: true, .. } => {
                let Some(entry) = Entry::of(event, None) else { return };
                let routed = self.routes.values().map(|route| &route.inbox);
                let proposed = self.candidates.values().flatten();
                let mut reached: Vec<&Mailbox> = Vec::new();
                for inbox in routed.chain(proposed) {
                    if !reached.iter().any(|other| Arc::ptr_eq(other, inbox)) {
                        // What does not fit is counted in its position.
                        let _ = inbox.push(entry.clone());
                        reached.push(inbox);
                    }
                }
            }
            _ => {}
        }
    }
}
