//! Finds, stops and kills members until none is left.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};

use super::kill_group;
use super::membership::Membership;
use super::table::{Entry, Look, newest};

/// How long killing a tree may take. A killed process stays alive only in the kernel, for example in disk
/// I/O.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for a killed process before the next scan.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// A chase ends after this time without a new member.
const QUIET: Duration = Duration::from_millis(20);
/// How many process ids below the newest a chase checks.
const BEHIND: i32 = 8;

/// Whether no member of a tree is alive.
pub(super) fn is_empty(membership: &Membership) -> bool {
    members(&[membership], Look::new().entries).is_empty()
}

/// Sends SIGTERM to every member.
pub(super) fn terminate(membership: &Membership) {
    // A stopped process handles SIGTERM only after SIGCONT.
    for signal in [Signal::TERM, Signal::CONT] {
        // An error means that the group has no live process.
        let _ = kill_process_group(membership.leader(), signal);
    }
    for entry in members(&[membership], Look::new().entries) {
        let in_group = entry.group == membership.leader().as_raw_pid();
        if let Some(target) = Target::of(&entry).filter(|_| !in_group) {
            target.signal(Signal::TERM);
            target.signal(Signal::CONT);
        }
    }
}

/// Kills every member of these trees. Returns `false` if a process does not die.
///
/// Members are stopped before any is killed: a stopped parent cannot start a child to replace a killed one,
/// and remains the parent of its children.
pub(super) fn kill(trees: &[&Membership]) -> bool {
    trees.iter().for_each(|membership| kill_group(membership.leader()));
    let begun = Instant::now();
    loop {
        let frozen = freeze(trees, begun);
        if frozen.is_empty() {
            return true;
        }
        frozen.values().for_each(|target| target.signal(Signal::KILL));
        if begun.elapsed() > KILL_TIMEOUT {
            let left: Vec<_> = frozen.keys().map(|(pid, _)| pid.as_raw_pid()).collect();
            tracing::warn!(?left, "processes do not exit");
            return false;
        }
        frozen.values().for_each(Target::ended);
    }
}

type Frozen = HashMap<(Pid, u64), Target>;

/// Stops members until no more are found.
fn freeze(trees: &[&Membership], begun: Instant) -> Frozen {
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
        let look = Look::new();
        for entry in members(trees, look.entries) {
            if !frozen.contains_key(&(entry.pid, entry.started)) {
                found = true;
                escaped |= !stop(&entry, &mut frozen);
            }
        }
        // A process that exited before it was stopped may have started another one.
        if escaped || !look.complete {
            found |= chase(trees, begun, |entry| {
                stop(entry, &mut frozen);
            });
        }
        if !found || begun.elapsed() > KILL_TIMEOUT {
            return frozen;
        }
    }
}

/// Checks new processes as they start, until none was a member for a while. Returns whether any was. A
/// process that starts another one and exits is gone before a full scan completes.
fn chase(trees: &[&Membership], begun: Instant, mut visit: impl FnMut(&Entry)) -> bool {
    let (mut found, mut quiet) = (false, Instant::now());
    let mut last = (newest() - BEHIND).max(0);
    while quiet.elapsed() < QUIET && begun.elapsed() < KILL_TIMEOUT {
        let now = newest();
        let started = (last + 1..=now).rev().filter_map(Pid::from_raw).filter_map(Entry::read);
        for entry in members(trees, started.collect()) {
            visit(&entry);
            (found, quiet) = (true, Instant::now());
        }
        last = now;
    }
    found
}

/// Returns the live members of these trees.
pub(super) fn members(trees: &[&Membership], mut rest: Vec<Entry>) -> Vec<Entry> {
    let me = getpid();
    // Zombies have no children.
    rest.retain(|entry| {
        entry.lives && entry.pid != me && trees.iter().any(|membership| membership.could_fit(entry))
    });
    let fits =
        |entry: &Entry| trees.iter().any(|membership| membership.could_fit(entry) && membership.fit(entry));
    let (mut members, mut rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(fits);
    let mut known: HashSet<i32> = members.iter().map(|entry| entry.pid.as_raw_pid()).collect();
    // Descendants of members are members.
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

/// A process that can be signalled without the risk of a reused process id.
#[derive(Debug)]
struct Target {
    pid: Pid,
    /// `None` on systems without process file descriptors.
    handle: Option<OwnedFd>,
}

impl Target {
    /// Returns `None` if the process has exited.
    fn of(entry: &Entry) -> Option<Self> {
        let handle = match pidfd_open(entry.pid, PidfdFlags::empty()) {
            Ok(handle) => Some(handle),
            Err(rustix::io::Errno::SRCH) => return None,
            Err(_) => None,
        };
        // The id may have been reused before the handle was opened, but not afterwards.
        let now = Entry::read(entry.pid)?;
        (now.started == entry.started).then_some(Self { pid: entry.pid, handle })
    }

    /// Waits briefly for the exit.
    fn ended(&self) {
        match &self.handle {
            // The next scan decides.
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
            // It has exited, or belongs to another user.
            tracing::trace!(pid = ?self.pid, ?signal, %error, "signal not delivered");
        }
    }
}
