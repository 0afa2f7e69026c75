//! Finding, freezing and killing until nothing is left.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};

use super::clues::Clues;
use super::strike;
use super::table::{Entry, Look, newest};

/// How long a family may take to die. Only the system can keep a process from dying: one that waits for a disk, say.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the system is given to end one that was killed, before it is looked again.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// How long nobody must have been seen for a chase to be over.
const QUIET: Duration = Duration::from_millis(20);
/// How many of those are looked at that were started before a chase.
const BEHIND: i32 = 8;

/// Whether nobody of a family lives.
pub(super) fn is_empty(clues: &Clues) -> bool {
    members(&[clues], Look::around().everybody).is_empty()
}

/// Asks everybody to end.
pub(super) fn ask(clues: &Clues) {
    // Whoever is stopped hears it when he goes on.
    for signal in [Signal::TERM, Signal::CONT] {
        // A group without a living process is as it should be.
        let _ = kill_process_group(clues.leader(), signal);
    }
    for entry in members(&[clues], Look::around().everybody) {
        let in_group = entry.group == clues.leader().as_raw_pid();
        if let Some(target) = Target::of(&entry).filter(|_| !in_group) {
            target.signal(Signal::TERM);
            target.signal(Signal::CONT);
        }
    }
}

/// Kills everybody in these families. `false` if somebody does not die.
///
/// Whoever is found is frozen first, and killed when nobody more is found: a parent that is frozen starts no other
/// child in place of one that was killed, and stays the parent of those it has.
pub(super) fn kill(families: &[&Clues]) -> bool {
    families.iter().for_each(|clues| strike(clues.leader()));
    let begun = Instant::now();
    loop {
        let frozen = freeze(families, begun);
        if frozen.is_empty() {
            return true;
        }
        frozen.values().for_each(|target| target.signal(Signal::KILL));
        if begun.elapsed() > PATIENCE {
            let left: Vec<_> = frozen.keys().map(|(pid, _)| pid.as_raw_pid()).collect();
            tracing::warn!(?left, "processes do not die");
            return false;
        }
        frozen.values().for_each(Target::ended);
    }
}

type Frozen = HashMap<(Pid, u64), Target>;

/// Stops everybody who is found, until nobody more is.
fn freeze(families: &[&Clues], begun: Instant) -> Frozen {
    let mut frozen = Frozen::new();
    let stop = |entry: &Entry, frozen: &mut Frozen| match Target::of(entry) {
        Some(target) => {
            target.signal(Signal::STOP);
            frozen.insert((entry.pid, entry.started), target);
            true
        }
        None => false,
    };
    loop {
        let (mut found, mut escaped) = (false, false);
        let look = Look::around();
        for entry in members(families, look.everybody) {
            if !frozen.contains_key(&(entry.pid, entry.started)) {
                found = true;
                escaped |= !stop(&entry, &mut frozen);
            }
        }
        // Somebody who has ended before it could be stopped may have started another one.
        if escaped || !look.complete {
            found |= chase(families, begun, |entry| {
                stop(entry, &mut frozen);
            });
        }
        if !found || begun.elapsed() > PATIENCE {
            return frozen;
        }
    }
}

/// Looks at whoever is started, as soon as it is, until none of these families was seen for a while, and tells whether
/// one was. Processes that start others and end are gone when a look at all is over.
fn chase(families: &[&Clues], begun: Instant, mut see: impl FnMut(&Entry)) -> bool {
    let (mut found, mut quiet) = (false, Instant::now());
    let mut last = (newest() - BEHIND).max(0);
    while quiet.elapsed() < QUIET && begun.elapsed() < PATIENCE {
        let now = newest();
        let started = (last + 1..=now).rev().filter_map(Pid::from_raw).filter_map(Entry::read);
        for entry in members(families, started.collect()) {
            see(&entry);
            (found, quiet) = (true, Instant::now());
        }
        last = now;
    }
    found
}

/// Those of these families who live.
fn members(families: &[&Clues], mut rest: Vec<Entry>) -> Vec<Entry> {
    let me = getpid();
    // The dead have no children, and nobody needs to look at them more closely.
    rest.retain(|entry| {
        entry.lives && entry.pid != me && families.iter().any(|clues| clues.could_fit(entry))
    });
    let fits = |entry: &Entry| families.iter().any(|clues| clues.could_fit(entry) && clues.fit(entry));
    let (mut members, mut rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(fits);
    let mut known: HashSet<i32> = members.iter().map(|entry| entry.pid.as_raw_pid()).collect();
    // The children of members are members, and so are theirs.
    loop {
        let (found, left): (Vec<_>, Vec<_>) =
            rest.into_iter().partition(|entry| known.contains(&entry.parent));
        if found.is_empty() {
            break;
        }
        known.extend(found.iter().map(|entry| entry.pid.as_raw_pid()));
        members.extend(found);
        rest = left;
    }
    members
}

/// A process that can be signalled, and no other in its place.
#[derive(Debug)]
struct Target {
    pid: Pid,
    /// `None` on systems too old to have them.
    handle: Option<OwnedFd>,
}

impl Target {
    /// `None` if it is gone.
    fn of(entry: &Entry) -> Option<Self> {
        let handle = match pidfd_open(entry.pid, PidfdFlags::empty()) {
            Ok(handle) => Some(handle),
            Err(rustix::io::Errno::SRCH) => return None,
            Err(_) => None,
        };
        // The number may have gone to somebody else between the look and the handle, but not since.
        let now = Entry::read(entry.pid)?;
        (now.started == entry.started).then_some(Self { pid: entry.pid, handle })
    }

    /// Waits until it has ended, for a moment at most.
    fn ended(&self) {
        match &self.handle {
            // However this ends, it is looked again.
            Some(handle) => drop(poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&PAUSE))),
            None => thread::yield_now(),
        }
    }

    fn signal(&self, signal: Signal) {
        let sent = match &self.handle {
            Some(handle) => pidfd_send_signal(handle, signal),
            None => kill_process(self.pid, signal),
        };
        if let Err(error) = sent {
            // It has ended meanwhile, or is a program of another user, which is told of if it stays.
            tracing::trace!(pid = ?self.pid, ?signal, %error, "signal not delivered");
        }
    }
}
