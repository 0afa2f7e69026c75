//! Recognises the members of a process tree.

use std::io;

use rustix::process::Pid;
#[cfg(target_os = "linux")]
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use tokio::process::Command;

#[cfg(target_os = "linux")]
use super::table::{self, Entry};
#[cfg(target_os = "linux")]
use crate::client::random::random_bytes;
use crate::client::random::random_id;

/// The marks by which members of a tree are recognised. Each mark alone is sufficient.
///
/// | mark | survives |
/// |---|---|
/// | the session | a new process group (`timeout`, job control), a lost parent, a cleared environment |
/// | a variable in the environment | a new session (`setsid`, daemons), a lost parent |
/// | a resource limit | all of these, unless a process sets this limit itself |
/// | the parent | everything, while the parent is alive |
///
/// The limit is `RLIMIT_RTTIME`, the processor time of real-time threads. Its value of more than 100 years
/// restricts no process, and every child and program inherits it. Every user may read it and set it, so it marks
/// only processes of this user. A command that starts a new session, loses its parent, clears its environment and
/// sets this limit is not found, except in a sandbox.
#[derive(Debug)]
pub(super) struct Membership {
    leader: Pid,
    variable: String,
    /// The earliest start time of a member.
    #[cfg(target_os = "linux")]
    since: u64,
    /// `None` if the limit is already in use, as in programs that are members of such a tree themselves.
    #[cfg(target_os = "linux")]
    mark: Option<u64>,
}

impl Membership {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            // A placeholder; `started` sets the actual leader.
            leader: Pid::INIT,
            // The name is the mark, so that nested trees do not overwrite each other's.
            variable: format!("SANDBOX_AGENT_SDK_{}", random_id()?),
            #[cfg(target_os = "linux")]
            since: 0,
            #[cfg(target_os = "linux")]
            mark: unused_mark()?,
        })
    }

    pub(super) fn prepare(&self, command: &mut Command) {
        command.env(&self.variable, "1");
    }

    /// Records the leader immediately after its start.
    ///
    /// The limit is set shortly after the start. Processes that the leader has started before are found by
    /// parent, session or environment.
    pub(super) fn started(&mut self, leader: Pid) {
        self.leader = leader;
        #[cfg(target_os = "linux")]
        {
            if let Some(mark) = self.mark {
                set_mark(leader, mark);
                table::children(leader).into_iter().for_each(|child| set_mark(child, mark));
            }
            self.since = Entry::read(leader).map_or(0, |entry| entry.started);
        }
    }

    pub(super) fn leader(&self) -> Pid {
        self.leader
    }

    /// Whether a process carries a mark, regardless of its parent.
    #[cfg(target_os = "linux")]
    pub(super) fn fit(&self, entry: &Entry) -> bool {
        entry.pid == self.leader
            || entry.session == self.leader.as_raw_pid()
            || self.mark.is_some_and(|mark| table::has_limit(entry.pid, mark) && table::is_own(entry.pid))
            || table::has_variable(entry.pid, &self.variable)
    }

    /// Whether a process can be a member.
    #[cfg(target_os = "linux")]
    pub(super) fn could_fit(&self, entry: &Entry) -> bool {
        entry.started >= self.since
    }
}

/// A unique value of the limit, unless the limit is already in use.
#[cfg(target_os = "linux")]
fn unused_mark() -> io::Result<Option<u64>> {
    /// About 140 years in microseconds, exactly representable as a floating-point number.
    const FLOOR: u64 = 1 << 52;
    let inherited = getrlimit(Resource::Rttime);
    if inherited.current.is_some() || inherited.maximum.is_some() {
        return Ok(None);
    }
    Ok(Some(FLOOR | (u64::from_le_bytes(random_bytes()?) & (FLOOR - 1))))
}

#[cfg(target_os = "linux")]
fn set_mark(process: Pid, mark: u64) {
    let limit = Rlimit { current: Some(mark), maximum: Some(mark) };
    // A setuid program belongs to another user; the other marks identify it.
    if let Err(error) = prlimit(Some(process), Resource::Rttime, limit) {
        tracing::trace!(?process, %error, "limit not set");
    }
}
