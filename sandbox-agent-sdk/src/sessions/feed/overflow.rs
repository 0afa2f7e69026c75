//! Events that do not fit into the mailbox of a tracker.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Entry, Mailbox, Pushed};

/// Passes entries to mailboxes and counts those that do not fit, until they are reported.
#[derive(Debug, Default)]
pub(super) struct Overflow {
    /// Guards the counts by session; held to add or take them.
    lost: Mutex<BTreeMap<String, u64>>,
    /// Notified when an entry was lost, or the feed has other work.
    pub(super) news: Notify,
}

impl Overflow {
    pub(super) fn give(&self, inbox: &Mailbox, entry: Entry) -> Pushed {
        self.count(inbox, 1, inbox.push(entry))
    }

    /// Counts entries as lost at their position. This was the first of them.
    pub(super) fn lose(&self, inbox: &Mailbox, first: Entry, count: u64) -> Pushed {
        self.count(inbox, count, inbox.lose(first, count))
    }

    /// The number of lost entries by session since the last call.
    pub(super) fn take(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut *self.lock())
    }

    fn count(&self, inbox: &Mailbox, count: u64, pushed: Pushed) -> Pushed {
        if matches!(pushed, Pushed::FirstLost | Pushed::Lost) {
            *self.lock().entry(inbox.session().to_owned()).or_default() += count;
            self.news.notify_one();
        }
        pushed
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
