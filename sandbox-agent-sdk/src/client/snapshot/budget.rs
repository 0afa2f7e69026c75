//! How much memory a snapshot may take.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use super::reported::{Reported, Worth};
use crate::convert::decoded::value_size;
use crate::limits::Limits;

/// How many unknown fields are stored per session.
const MEMBERS: usize = 1024;
/// The memory of an unknown field besides its value and the text of its name: two entries of tables.
const MEMBER: usize = 256;

/// The objects with unknown fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Group {
    Session,
    Models,
    Metadata,
}

/// The parts of a snapshot that are reported separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Modes,
    Mode,
    Models,
    Model,
    Options,
    Commands,
    Tools,
    Title,
    LastActivity,
    Context,
    Cost,
}

const PARTS: usize = Part::Cost as usize + 1;

/// When a part was reported, and its size in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Stored {
    reported: Reported,
    bytes: usize,
}

/// The times and sizes of all parts of a snapshot. Each unknown field is a separate part.
#[derive(Debug)]
pub(super) struct Budget {
    parts: [Stored; PARTS],
    members: HashMap<(Group, String), Stored>,
    /// The size of all parts.
    bytes: usize,
    limit: usize,
    /// Whether a warning was logged that a part was ignored.
    warned: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(Limits::default().snapshot)
    }
}

impl Budget {
    pub(super) fn new(limit: usize) -> Self {
        Self { parts: Default::default(), members: HashMap::new(), bytes: 0, limit, warned: false }
    }

    pub(super) fn reported(&self, part: Part) -> Reported {
        self.parts[part as usize].reported
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether an unknown field is stored.
    pub(super) fn has_member(&self, group: Group, name: &str) -> bool {
        self.members.contains_key(&(group, name.to_owned()))
    }

    /// Records a report of a part, and returns whether its value replaces the earlier one: it is newer, and fits.
    pub(super) fn accept(&mut self, part: Part, value: &impl Serialize, worth: Worth, now: u64) -> bool {
        let mut stored = self.parts[part as usize];
        if !stored.reported.accept(worth, now) {
            return false;
        }
        let size = serde_json::to_value(value).map_or(0, |value| value_size(&value));
        // Modes and models may be derived from the options, so these count twice.
        let size = if part == Part::Options { size.saturating_mul(2) } else { size };
        let fits = self.replace(stored.bytes, size);
        if fits {
            self.parts[part as usize] = Stored { bytes: size, ..stored };
        }
        fits
    }

    /// Like [`accept`](Self::accept), for an unknown field. `None` removes it.
    pub(super) fn accept_member(
        &mut self,
        (group, name): (Group, &str),
        value: Option<&Value>,
        worth: Worth,
        now: u64,
    ) -> bool {
        let key = (group, name.to_owned());
        let known = self.members.get(&key).copied();
        if known.is_none() && self.members.len() >= MEMBERS {
            self.warn();
            return false;
        }
        let mut stored = known.unwrap_or_default();
        if !stored.reported.accept(worth, now) {
            return false;
        }
        let size = MEMBER + 2 * name.len() + value.map_or(0, value_size);
        let fits = self.replace(stored.bytes, size);
        if fits {
            self.members.insert(key, Stored { bytes: size, ..stored });
        }
        fits
    }

    /// Forgets the parts that were not reported after this time.
    pub(super) fn forget(&mut self, until: u64) {
        for part in self.parts.iter_mut().filter(|part| !part.reported.is_after(until)) {
            *part = Stored::default();
        }
        self.members.retain(|_, member| member.reported.is_after(until));
        self.bytes = self.parts.iter().chain(self.members.values()).map(|part| part.bytes).sum();
    }

    /// Counts new bytes instead of old ones; `false` if they do not fit.
    fn replace(&mut self, old: usize, new: usize) -> bool {
        let sum = (self.bytes - old).saturating_add(new);
        // A value that is not larger than the one before always fits.
        let fits = sum <= self.limit.max(self.bytes);
        if fits {
            self.bytes = sum;
        } else {
            self.warn();
        }
        fits
    }

    /// Logs once that something was ignored: an agent can report any number of parts.
    fn warn(&mut self) {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                fields = MEMBERS,
                bytes = self.limit,
                "the state of a session exceeds its limit; what does not fit is ignored"
            );
        }
    }
}
