//! Events of sessions that are being created.

use super::entry::Entry;
use crate::client::event::Hold;
use crate::client::maps::HashMap;

/// How many bytes are held for all sessions that are being created, and how many events of each.
const MAX_BYTES: usize = 32 << 20;
const MAX_EVENTS: usize = 8192;

/// Holds events of unknown sessions while sessions are being created: they may come before the response that names
/// the session.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// How many sessions are being created.
    pub(super) creating: usize,
    /// By the id of the agent's session.
    held: HashMap<String, Held>,
    bytes: usize,
}

/// The events of one session.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) entries: Vec<Entry>,
    /// The first event that did not fit, and how many there were.
    pub(super) lost: Option<(Entry, u64)>,
    /// The hold on the latest event, if events are held back until they are stored.
    latest: Option<Hold>,
}

impl Early {
    /// Holds an event of an unknown session. Returns whether it has to be stored, itself or by the mark of a loss.
    pub(super) fn hold(&mut self, session: &str, entry: Entry, latest: Option<Hold>) -> bool {
        let held = self.held.entry(session.to_owned()).or_default();
        held.latest = latest;
        if self.bytes + entry.weight <= MAX_BYTES && held.entries.len() < MAX_EVENTS && held.lost.is_none() {
            self.bytes += entry.weight;
            held.entries.push(entry);
            return true;
        }
        match &mut held.lost {
            Some((_, count)) => *count += 1,
            None => {
                held.lost = Some((entry, 1));
                return true;
            }
        }
        false
    }

    /// The hold on the latest event of a session.
    pub(super) fn latest(&self, session: &str) -> Option<&Hold> {
        self.held.get(session)?.latest.as_ref()
    }

    /// Gives the events of a session that is known now.
    pub(super) fn claim(&mut self, session: &str) -> Held {
        let held = self.held.remove(session).unwrap_or_default();
        self.bytes -= held.entries.iter().map(|entry| entry.weight).sum::<usize>();
        held
    }

    /// A session is created, or could not be. After the last one, what nothing claimed is given back: it is of sessions
    /// that are not stored.
    pub(super) fn end_creating(&mut self) -> Vec<Entry> {
        self.creating -= 1;
        if self.creating > 0 {
            return Vec::new();
        }
        self.bytes = 0;
        let unclaimed = std::mem::take(&mut self.held).into_values();
        unclaimed.flat_map(|held| held.entries.into_iter().chain(held.lost.map(|(first, _)| first))).collect()
    }
}
