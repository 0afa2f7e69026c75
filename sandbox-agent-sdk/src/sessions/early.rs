//! Events of sessions that are being created.

use serde_json::Value;
use std::collections::BTreeMap;

use super::entry::Entry;
use crate::client::event::Hold;

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
    held: BTreeMap<String, Held>,
    bytes: usize,
    /// The gaps. The missing messages may belong to any session.
    gaps: Vec<Entry>,
    /// The first event of a session that is not among them because there was no room, and how many there were.
    overflow: Option<(Entry, u64)>,
}

/// The events of one session.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) entries: Vec<Entry>,
    /// The first event that did not fit, and the number of such events.
    pub(super) lost: Option<(Entry, u64)>,
    /// The hold on the latest event, if events are held back until they are stored.
    latest: Option<Hold>,
}

impl Held {
    /// A session without events since these gaps.
    fn behind(gaps: &[Entry]) -> Self {
        Self { entries: gaps.to_vec(), ..Self::default() }
    }
}

impl Early {
    /// Holds an event of an unknown session. Returns whether it has to be stored, itself or by the mark of a loss.
    pub(super) fn hold(&mut self, session: &str, entry: Entry, latest: Option<Hold>) -> bool {
        let has_room = self.bytes + entry.weight <= MAX_BYTES;
        let lost = if has_room || self.held.contains_key(session) {
            let gaps = &self.gaps;
            let held = self.held.entry(session.to_owned()).or_insert_with(|| Held::behind(gaps));
            held.latest = latest;
            if has_room && held.entries.len() < MAX_EVENTS && held.lost.is_none() {
                self.bytes += entry.weight;
                held.entries.push(entry);
                return true;
            }
            &mut held.lost
        } else {
            // An agent may name any number of sessions.
            &mut self.overflow
        };
        if let Some((_, count)) = lost {
            *count += 1;
            return false;
        }
        *lost = Some((Entry { payload: Value::Null, ..entry }, 1));
        true
    }

    /// Messages are missing. They may belong to any session that is being created.
    pub(super) fn miss(&mut self, gap: &Entry) {
        if self.creating == 0 || self.gaps.len() == MAX_EVENTS {
            return;
        }
        // Their number is limited, and they are small.
        let gap = Entry { weight: 0, ..gap.clone() };
        for held in self.held.values_mut() {
            match &mut held.lost {
                // It follows events that did not fit, and is counted with them.
                Some((_, count)) => *count += 1,
                None => held.entries.push(gap.clone()),
            }
        }
        self.gaps.push(gap);
    }

    /// The hold on the latest event of a session.
    pub(super) fn latest(&self, session: &str) -> Option<&Hold> {
        self.held.get(session)?.latest.as_ref()
    }

    /// Returns the events of a session whose id is now known.
    pub(super) fn claim(&mut self, session: &str) -> Held {
        let held = self.held.remove(session).unwrap_or_else(|| {
            // Events of this session may be among those for which there was no room.
            let lost = self.overflow.clone();
            if let Some((first, _)) = &mut self.overflow {
                (first.is_held, first.holder) = (false, None);
            }
            Held { lost, ..Held::behind(&self.gaps) }
        });
        self.bytes -= held.entries.iter().map(|entry| entry.weight).sum::<usize>();
        held
    }

    /// The creation of a session has succeeded or failed. If no other session is being created, returns the unclaimed
    /// events: they belong to sessions that are not stored.
    pub(super) fn end_creating(&mut self) -> Vec<Entry> {
        self.creating -= 1;
        if self.creating > 0 {
            return Vec::new();
        }
        self.bytes = 0;
        self.gaps.clear();
        let unclaimed = std::mem::take(&mut self.held).into_values();
        let unclaimed =
            unclaimed.flat_map(|held| held.entries.into_iter().chain(held.lost.map(|(first, _)| first)));
        unclaimed.chain(self.overflow.take().map(|(first, _)| first)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Early, Entry, MAX_BYTES};
    use crate::sessions::store::StoredEventKind;

    #[test]
    fn invented_sessions_take_no_more_room_than_there_is_and_a_loss_is_counted() {
        let mut early = Early { creating: 1, ..Early::default() };
        let entry =
            || Entry { weight: MAX_BYTES / 4, ..Entry::own(StoredEventKind::Update, json!({"a": 1})) };
        for n in 0..1000 {
            assert_eq!(early.hold(&format!("invented-{n}"), entry(), None), n <= 4, "{n}");
        }
        assert_eq!(early.held.len(), 4);
        let held = early.claim("created");
        assert_eq!((held.entries.len(), held.lost.map(|(_, count)| count)), (0, Some(996)));
        assert_eq!(early.claim("invented-1").entries.len(), 1);
        assert_eq!(early.end_creating().len(), 4);
        assert!(early.held.is_empty() && early.bytes == 0 && early.overflow.is_none());
    }
}
