//! Which incarnation of the server the open stream reads.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::{FUTILE, Fingerprint, Flow, Held, Hole, Prints, Sequence, Sequenced};

/// How many events are remembered since the server was last proven to be the same one. A reopened stream starts with
/// an event that proves it.
const UNPROVEN: usize = 1024;

/// How many events of reported gaps wait for a proof that the server is the same one. Further events, and large ones,
/// are delivered without the proof.
pub(super) const LATE: usize = 256;

/// What the open stream has shown about the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing yet.
    Unknown,
    /// It sent an event that was seen before: the server is the same one.
    Same,
    /// It began after the requested event. The server no longer has the events that were seen before, so nothing can
    /// show whether it is the same one.
    Ahead,
}

impl<T> Sequence<T> {
    /// Whether the open stream has shown if the server is the same one, or can no longer show it.
    pub(in crate::sse) fn is_decided(&self) -> bool {
        self.standing != Standing::Unknown
    }

    /// Whether an old number was never seen: it is in a reported gap, or was swapped with the first event.
    pub(super) fn is_late(&self, n: u64) -> bool {
        self.gaps.iter().any(|(from, to)| (*from..=*to).contains(&n))
            || (self.openings == self.first_opening && self.first.is_some_and(|first| n < first))
    }

    /// Whether this event was delivered before the server was known to be another one.
    pub(super) fn was_early(&self, n: u64, print: Fingerprint) -> bool {
        self.early.get(&n) == Some(&print)
    }

    /// Remembers an event that was seen for the first time.
    pub(super) fn note(&mut self, n: u64, print: Fingerprint) {
        self.prints.insert(n, print);
        if let Some(unproven) = &mut self.unproven {
            if unproven.len() == UNPROVEN {
                unproven.pop_first();
            }
            unproven.insert(n, (print, self.since));
        }
    }

    /// An event that was seen before arrives again.
    pub(super) fn recognised(&mut self, n: u64, out: &mut Vec<Sequenced<T>>) {
        if n > self.seen_at_opening {
            // The open stream itself sent it before.
            return;
        }
        self.standing = Standing::Same;
        match self.unproven.as_mut().and_then(|unproven| Some((unproven.get(&n)?.1, unproven))) {
            // The same one as in that opening, and so in all openings since then.
            Some((since, unproven)) if since < self.since => {
                unproven.values_mut().for_each(|(_, opening)| *opening = since.min(*opening));
                self.since = since;
            }
            Some(_) => {}
            None => self.unproven = None,
        }
        self.give_late(out);
    }

    /// Delivers late events, now that the server is known to be the same one.
    pub(super) fn give_late(&mut self, out: &mut Vec<Sequenced<T>>) {
        for (n, (print, item)) in std::mem::take(&mut self.late) {
            self.note(n, print);
            self.fill_gap(n);
            self.first = self.first.map(|first| first.min(n));
            let item = Some(item).filter(|_| !self.was_early(n, print));
            out.extend(item.map(Sequenced::Late));
        }
    }

    /// The open stream reads another incarnation, as this event shows. It is read from its beginning.
    pub(super) fn restarted(
        &mut self,
        n: u64,
        print: Fingerprint,
        item: Option<T>,
        out: &mut Vec<Sequenced<T>>,
    ) -> Flow {
        let since = self.since;
        let unproven = self.unproven.take().unwrap_or_default();
        // The opening with another event under this number, and those before it, read other incarnations.
        let other = unproven.get(&n).map_or(0, |(_, opening)| *opening);
        let is_current = |held: &Held<T>| held.opening >= since;
        let mut early: BTreeMap<u64, Fingerprint> = BTreeMap::new();
        let mut seen: Vec<(u64, Fingerprint)> =
            std::mem::take(&mut self.late).into_iter().map(|(n, (print, _))| (n, print)).collect();
        for (number, (print, brought_by)) in unproven {
            if brought_by == since {
                seen.push((number, print));
            }
            let comes_again = |held: &Held<T>| is_current(held) && held.item.is_some();
            if brought_by > other && !self.held.get(&number).is_some_and(comes_again) {
                early.insert(number, print);
            }
        }
        // Held events of this incarnation arrive again.
        self.held.retain(|_, held| !is_current(held));
        let delivered = seen.iter().any(|(number, _)| early.contains_key(number));
        match self.held.last_key_value() {
            // A newer event was delivered, so the held events can no longer be delivered in order.
            Some((&to, _)) if delivered => self.report_gap(self.last.unwrap_or(0) + 1, to, out),
            _ => self.give_up(out),
        }
        self.held.clear();
        let reread = self.assumed_repeat || !seen.is_empty();
        self.start_over(out);
        self.early = early;
        for (number, print) in seen {
            self.prints.insert(number, print);
        }
        let flow = self.accept_number(n, print, None, item, out);
        if reread && self.futile < FUTILE { Flow::Reopen } else { flow }
    }

    fn start_over(&mut self, out: &mut Vec<Sequenced<T>>) {
        self.first = Some(1);
        self.first_opening = u32::MAX;
        self.last = Some(0);
        self.reached = 0;
        self.seen_at_opening = 0;
        self.assumed_repeat = false;
        self.standing = Standing::Same;
        self.since = self.openings;
        self.prints = Prints::default();
        self.gaps.clear();
        self.hole = Hole::None;
        // A server that contradicts itself with each opening would be read from its beginning forever.
        self.restarts += 1;
        self.futile = if self.restarts > FUTILE { FUTILE } else { 0 };
        out.push(Sequenced::Restarted);
    }

    /// An event is delivered. Reports once if nothing shows yet that the server is the same one.
    pub(super) fn doubt(&mut self, out: &mut Vec<Sequenced<T>>) {
        if self.standing != Standing::Same && !std::mem::replace(&mut self.doubted, true) {
            out.push(Sequenced::Unproven);
        }
    }
}
