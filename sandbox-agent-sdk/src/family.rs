//! A process and everything that came of it.
//!
//! ```text
//! clues    by what its members are known, whatever they do to hide
//! table    the processes of this machine, as /proc lists them (Linux)
//! sweep    finding, freezing and killing until nothing is left (Linux)
//! group    the process group, which is all there is elsewhere
//! ```

mod clues;
#[cfg(not(target_os = "linux"))]
mod group;
#[cfg(target_os = "linux")]
mod sweep;
#[cfg(target_os = "linux")]
mod table;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use process_wrap::tokio::{CommandWrap, CommandWrapper, ProcessSession};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid};
use tokio::process::{Child, Command};

use self::clues::Clues;
#[cfg(not(target_os = "linux"))]
use self::group as means;
#[cfg(target_os = "linux")]
use self::sweep as means;

/// A process at the head of a session of its own, and whatever it started, directly or not.
///
/// Whoever has the [`Child`] must not wait for it before [`finish`](Self::finish): as long as the head of a family is
/// on the system's list, living or dead, its number is nobody else's.
#[derive(Debug)]
pub(crate) struct Family {
    leader: Pid,
    /// Guards the right to signal the family; held while it is made use of, which takes as long as it takes to look at
    /// every process of the machine a few times. `None` once the family is finished.
    clues: Mutex<Option<Clues>>,
}

impl Family {
    /// Starts a command at the head of a family. It has no terminal to talk to, and is killed when it is dropped.
    pub(crate) fn start(mut command: Command) -> io::Result<(Child, Arc<Self>)> {
        let mut clues = Clues::new();
        clues.prepare(&mut command);
        // The hook uses nothing of the wrapper that it is given.
        ProcessSession.pre_spawn(&mut command, &CommandWrap::with_new("", |_| {}))?;
        let child = command.kill_on_drop(true).spawn()?;
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // A process that was not waited for has an id.
        let leader = leader.ok_or_else(|| io::Error::other("a process without an id"))?;
        clues.started(leader);
        Ok((child, Arc::new(Self { leader, clues: Mutex::new(Some(clues)) })))
    }

    /// The process that was started.
    pub(crate) fn leader(&self) -> Pid {
        self.leader
    }

    /// How the leader ended, if it has. It stays on the system's list.
    pub(crate) fn exit(&self) -> io::Result<Option<WaitIdStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(self.leader), options)?)
    }

    /// Whether nobody of the family lives.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().as_ref().is_none_or(means::is_empty)
    }

    /// Asks everybody in the family to end, also those who are stopped.
    pub(crate) fn ask(&self) {
        if let Some(clues) = &*self.lock() {
            means::ask(clues);
        }
    }

    /// Kills the process group of the leader. Others of the family may be left; it takes no time at all.
    #[cfg_attr(not(feature = "terminals"), allow(dead_code))]
    pub(crate) fn strike(&self) {
        // Whoever holds the lock is about to do the same, or is followed by somebody who is.
        if let Ok(clues) = self.clues.try_lock()
            && let Some(clues) = &*clues
        {
            strike(clues.leader());
        }
    }

    /// Kills everybody in the family.
    #[cfg_attr(not(feature = "terminals"), allow(dead_code))]
    pub(crate) fn kill(&self) {
        if let Some(clues) = &*self.lock() {
            means::kill(&[clues]);
        }
    }

    /// Kills everybody in the family, and lets go of it.
    pub(crate) fn finish(&self) {
        Self::finish_all([self]);
    }

    /// Kills everybody in these families, and lets go of them: one look at the machine serves all of them. Of two who
    /// do this at once for several families, none may be in the hands of both.
    pub(crate) fn finish_all<'a>(families: impl IntoIterator<Item = &'a Self>) {
        // They are held to the end: who finds them finished may wait for their leaders.
        let mut held: Vec<_> = families.into_iter().map(Self::lock).collect();
        let clues: Vec<_> = held.iter().filter_map(|clues| clues.as_ref()).collect();
        if !clues.is_empty() {
            means::kill(&clues);
        }
        held.iter_mut().for_each(|clues| **clues = None);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Clues>> {
        self.clues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Kills a process group. The system does it at one stroke: nobody in it can get away by starting another process.
fn strike(group: Pid) {
    // A group without a living process is as it should be.
    let _ = kill_process_group(group, Signal::KILL);
}

/// Looks at processes, which blocks, where that harms nobody.
pub(crate) async fn off_the_runtime<T: Send + 'static>(
    family: &Arc<Family>,
    work: impl FnOnce(&Family) -> T + Send + Copy + 'static,
) -> T {
    let copy = Arc::clone(family);
    match tokio::task::spawn_blocking(move || work(&copy)).await {
        Ok(result) => result,
        // The runtime is shutting down, and this is the last chance to do it.
        Err(_) => work(family),
    }
}
