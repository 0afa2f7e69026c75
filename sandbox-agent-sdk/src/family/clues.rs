//! By what the members of a family are known.

#[cfg(target_os = "linux")]
use std::hash::{BuildHasher, RandomState};

use rustix::process::Pid;
#[cfg(target_os = "linux")]
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use tokio::process::Command;

#[cfg(target_os = "linux")]
use super::table::{self, Entry};
use crate::random::random_id;

/// What all members of a family have in common. Each clue alone is enough; a process would have to get rid of all of
/// them to be overlooked.
///
/// | clue | outlives |
/// |---|---|
/// | the session | a group of its own (`timeout`, job control), a lost parent, an environment that is cleared |
/// | a variable in the environment | a session of its own (`setsid`, daemons), a lost parent |
/// | a limit | all of that: only somebody who sets this very limit loses it |
/// | the parent | everything, as long as the parent lives |
///
/// The limit is that on the processor time of real-time threads. With a number of some hundred years it limits nobody,
/// the system hands it on to every child and to every program, and anybody may read it.
#[derive(Debug)]
pub(super) struct Clues {
    leader: Pid,
    variable: String,
    /// Nobody of the family can be older.
    #[cfg(target_os = "linux")]
    since: u64,
    /// `None` where the limit is in use already, as it is for programs that run in such a family themselves.
    #[cfg(target_os = "linux")]
    mark: Option<u64>,
}

impl Clues {
    pub(super) fn new() -> Self {
        Self {
            // No such process; `started` puts in the real one.
            leader: Pid::INIT,
            // The name is the clue, so that families in families do not replace each other's.
            variable: format!("SANDBOX_AGENT_SDK_{}", random_id()),
            #[cfg(target_os = "linux")]
            since: 0,
            #[cfg(target_os = "linux")]
            mark: None,
        }
    }

    pub(super) fn prepare(&self, command: &mut Command) {
        command.env(&self.variable, "1");
    }

    /// Takes note of the leader, as soon as it runs.
    ///
    /// The limit is set a moment after the start. What the leader has started by then is still its child, or has its
    /// session or its environment, and is found by that; nobody gets rid of all of them in that moment who is not made
    /// for it.
    pub(super) fn started(&mut self, leader: Pid) {
        self.leader = leader;
        #[cfg(target_os = "linux")]
        {
            self.mark = mark(leader);
            if let Some(mark) = self.mark {
                table::children(leader).into_iter().for_each(|child| set_mark(child, mark));
            }
            self.since = Entry::read(leader).map_or(0, |entry| entry.started);
        }
    }

    pub(super) fn leader(&self) -> Pid {
        self.leader
    }

    /// Whether a process is of the family by itself, whoever its parent is.
    #[cfg(target_os = "linux")]
    pub(super) fn fit(&self, entry: &Entry) -> bool {
        entry.pid == self.leader
            || entry.session == self.leader.as_raw_pid()
            || self.mark.is_some_and(|mark| table::has_limit(entry.pid, mark))
            || table::has_variable(entry.pid, &self.variable)
    }

    /// Whether a process can be of the family at all.
    #[cfg(target_os = "linux")]
    pub(super) fn could_fit(&self, entry: &Entry) -> bool {
        entry.started >= self.since
    }
}

/// Sets the limit of a process to a number that no other process has.
#[cfg(target_os = "linux")]
fn mark(leader: Pid) -> Option<u64> {
    /// About 140 years in microseconds; programs that read it into a floating-point number do not round it.
    const FLOOR: u64 = 1 << 52;
    let inherited = getrlimit(Resource::Rttime);
    if inherited.current.is_some() || inherited.maximum.is_some() {
        return None;
    }
    let mark = FLOOR | (RandomState::new().hash_one(0u8) & (FLOOR - 1));
    set_mark(leader, mark);
    Some(mark)
}

#[cfg(target_os = "linux")]
fn set_mark(process: Pid, mark: u64) {
    let limit = Rlimit { current: Some(mark), maximum: Some(mark) };
    // A program of another user, such as one that makes itself the superuser's, is known by the other clues.
    if let Err(error) = prlimit(Some(process), Resource::Rttime, limit) {
        tracing::trace!(?process, %error, "a process is not marked");
    }
}
