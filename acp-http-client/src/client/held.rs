//! An answer that waits for the updates before it.

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::core::{Core, Echo, Settled, Watch};
use crate::inbound::{Link, LinkState};

/// How long a server has to copy an answer to the stream before it is taken not to do so.
const LEARN: Duration = Duration::from_millis(500);
/// How soon a held answer looks again whether the reader still keeps messages back.
const HOLDING_CHECK: Duration = Duration::from_millis(10);
/// A wait without an end.
pub(super) const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// An answer that waits for the updates before it.
pub(super) struct Held {
    pub(super) answer: Settled,
    since: Instant,
    watch: Watch,
}

impl Held {
    pub(super) fn new(core: &Arc<Core>, session: Option<Arc<str>>, answer: Settled) -> Self {
        Self { answer, since: Instant::now(), watch: core.watch(session) }
    }

    /// When it is given even though its copy has not passed.
    pub(super) fn until(&self, core: &Core, session: Option<&Arc<str>>, now: Instant) -> Instant {
        let timeouts = &core.options.timeouts;
        let link = core.links.get(session);
        let since = match link.state() {
            LinkState::Ended => return now,
            LinkState::Live { since } => since,
            // A stream that is down gets a moment to come back, and no more.
            _ => return later(self.since, timeouts.order),
        };
        // The reader has messages that nobody has seen yet; it keeps them for a bounded time.
        if link.is_holding() {
            return now + HOLDING_CHECK;
        }
        let behind = |moment| behind_unfinished(&link, moment, timeouts.quiet);
        let quiet_since = self.watch.last().unwrap_or(self.since).max(self.since).max(since);
        let quiet = behind(later(quiet_since, timeouts.quiet));
        // It came on another stream than the updates: there will be no copy on this one.
        if self.answer.via.is_some() || core.echo() == Echo::BodyOnly {
            return quiet;
        }
        let learnt = behind(core.mark_answer().max(since) + LEARN);
        if core.echo() == Echo::Unknown && learnt <= now {
            core.learn_echo(Echo::BodyOnly);
            return quiet;
        }
        let full = behind(later(quiet_since, timeouts.order));
        if core.echo() == Echo::Unknown { full.min(learnt) } else { full }
    }
}

/// An event that was on its way at this moment, and still is, may be the one that is waited for: nothing is quiet before
/// its bytes stop coming. One that began later is not, so that the events of others hold nobody up.
fn behind_unfinished(link: &Link, moment: Instant, quiet: Duration) -> Instant {
    match link.unfinished() {
        Some((began, last)) if began <= moment => moment.max(later(last, quiet)),
        _ => moment,
    }
}

/// A moment so much later, or a very late one where time has no such moment.
fn later(moment: Instant, by: Duration) -> Instant {
    moment.checked_add(by).unwrap_or(moment + FOREVER)
}
