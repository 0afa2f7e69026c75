//! A process and every process that it started, directly or indirectly.
//!
//! ```text
//! membership   recognises members, even those that try to hide
//! table        the processes of this machine, from /proc (Linux)
//! sweep        finds, stops and kills members until none is left (Linux)
//! sockets      which members hold a listening socket (Linux)
//! group        the process group, the only means on other systems
//! environment  which variables a child process inherits
//! ```

mod environment;
#[cfg(not(target_os = "linux"))]
mod group;
mod membership;
#[cfg(target_os = "linux")]
mod sockets;
#[cfg(target_os = "linux")]
mod sweep;
#[cfg(target_os = "linux")]
mod table;

use std::io;
#[cfg(feature = "providers")]
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use process_wrap::tokio::{CommandWrap, CommandWrapper, ProcessSession};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid};
use tokio::process::{Child, Command};

pub(crate) use self::environment::Inherited;
#[cfg(not(target_os = "linux"))]
use self::group as platform;
use self::membership::Membership;
#[cfg(target_os = "linux")]
use self::sweep as platform;

/// The leader of a new session and every process that it started, directly or indirectly.
///
/// The owner of the [`Child`] must not wait for it before [`finish`](Self::finish): until then the leader's
/// process id cannot be reused, even if the leader has exited.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    leader: Pid,
    /// Guards the permission to signal the tree; held while signals are sent, for a few scans of the process
    /// table. `None` once the tree is finished.
    membership: Mutex<Option<Membership>>,
    /// Whether the tree is finished, readable without the lock.
    finished: AtomicBool,
    /// What held the sockets of a port when they were last searched for. Guards a list; held for a copy.
    #[cfg(target_os = "linux")]
    holders: Mutex<Option<(Owner, u16, Vec<sockets::Holder>)>>,
}

/// The process that has to hold the sockets that listen on a loopback port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A member of the tree.
    Member,
    /// This process, which relays connections to a member.
    #[cfg(feature = "providers")]
    ThisProcess,
}

/// The holder of the sockets that listen on a loopback port.
#[derive(Debug)]
pub(crate) enum Listener {
    /// No socket listens yet.
    None,
    /// The owner holds every such socket.
    Owner,
    /// Another process holds at least one of them.
    Foreign,
    /// This system does not expose the holder of a socket.
    #[cfg_attr(target_os = "linux", allow(dead_code))]
    Unknown,
}

impl ProcessTree {
    /// Starts a command as the leader of a tree. It has no controlling terminal and is killed on drop.
    pub(crate) fn start(mut command: Command) -> io::Result<(Child, Arc<Self>)> {
        let mut membership = Membership::new()?;
        membership.prepare(&mut command);
        // The hook does not use the wrapper that it receives.
        ProcessSession.pre_spawn(&mut command, &CommandWrap::with_new("", |_| {}))?;
        let child = command.kill_on_drop(true).spawn()?;
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // A process that was not waited for has an id.
        let leader = leader.ok_or_else(|| io::Error::other("the process has no id"))?;
        membership.started(leader);
        let tree = Self {
            leader,
            membership: Mutex::new(Some(membership)),
            finished: AtomicBool::new(false),
            #[cfg(target_os = "linux")]
            holders: Mutex::default(),
        };
        Ok((child, Arc::new(tree)))
    }

    /// Returns the leader's process id.
    pub(crate) fn leader(&self) -> Pid {
        self.leader
    }

    /// Returns the leader's exit status, if it has exited. The owner of the [`Child`] can still read it.
    pub(crate) fn exit(&self) -> io::Result<Option<WaitIdStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(self.leader), options)?)
    }

    /// Whether the leader has not exited. Never waits for a scan.
    pub(crate) fn is_leader_alive(&self) -> bool {
        // The leader's id is not reused before the tree is finished.
        !self.finished.load(Ordering::Acquire) && matches!(self.exit(), Ok(None))
    }

    /// Whether no member is alive.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().as_ref().is_none_or(platform::is_empty)
    }

    /// Whether the other side of a connection, `client`, is a socket of this user.
    #[cfg(feature = "providers")]
    pub(crate) fn is_client_own(client: SocketAddrV4, server: SocketAddrV4) -> io::Result<bool> {
        #[cfg(target_os = "linux")]
        return sockets::is_client_own(client, server);
        #[cfg(not(target_os = "linux"))]
        return Ok(client != server);
    }

    /// Whether this owner, running as this user, holds the sockets that listen on this loopback port.
    #[cfg(target_os = "linux")]
    pub(crate) fn listener(&self, owner: Owner, port: u16) -> io::Result<Listener> {
        if self.is_held(owner, port) {
            return Ok(Listener::Owner);
        }
        let (listener, found) = match &*self.lock() {
            Some(membership) => sockets::listener(membership, owner, port)?,
            None => return Ok(Listener::None),
        };
        *self.holders.lock().unwrap_or_else(PoisonError::into_inner) = Some((owner, port, found));
        Ok(listener)
    }

    /// Whether the sockets that this owner held at the last search are still held.
    #[cfg(target_os = "linux")]
    fn is_held(&self, owner: Owner, port: u16) -> bool {
        let known = self.holders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.is_some_and(|(by, of, known)| (by, of) == (owner, port) && sockets::are_held(&known))
    }

    /// Whether this owner holds the sockets that listen on this port, which this system does not expose.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn listener(&self, _: Owner, _: u16) -> io::Result<Listener> {
        Ok(Listener::Unknown)
    }

    /// Sends SIGTERM to every member, and SIGCONT to those that are stopped.
    pub(crate) fn terminate(&self) {
        if let Some(membership) = &*self.lock() {
            platform::terminate(membership);
        }
    }

    /// Kills the leader's process group without a scan. Other members may survive.
    #[cfg_attr(not(feature = "terminals"), allow(dead_code))]
    pub(crate) fn kill_group(&self) {
        // If the lock is held, its holder is about to kill the tree anyway.
        if let Ok(membership) = self.membership.try_lock()
            && let Some(membership) = &*membership
        {
            kill_group(membership.leader());
        }
    }

    /// Kills every member.
    #[cfg_attr(not(feature = "terminals"), allow(dead_code))]
    pub(crate) fn kill(&self) {
        if let Some(membership) = &*self.lock() {
            platform::kill(&[membership]);
        }
    }

    /// Kills every member and gives up the permission to signal the tree.
    pub(crate) fn finish(&self) {
        Self::finish_all([self]);
    }

    /// Finishes several trees with one scan of the process table. Two concurrent calls must not share a tree.
    pub(crate) fn finish_all<'a>(trees: impl IntoIterator<Item = &'a Self>) {
        // Held to the end: a caller that sees a finished tree may wait for its leader.
        let trees: Vec<_> = trees.into_iter().collect();
        let mut held: Vec<_> = trees.iter().map(|tree| tree.lock()).collect();
        let memberships: Vec<_> = held.iter().filter_map(|membership| membership.as_ref()).collect();
        if !memberships.is_empty() {
            platform::kill(&memberships);
        }
        trees.iter().for_each(|tree| tree.finished.store(true, Ordering::Release));
        held.iter_mut().for_each(|membership| **membership = None);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Membership>> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Kills a process group atomically: no member escapes by starting another process.
fn kill_group(group: Pid) {
    // An error means that the group has no live process.
    let _ = kill_process_group(group, Signal::KILL);
}

/// Runs blocking work on a tree on the blocking thread pool.
pub(crate) async fn run_blocking<T: Send + 'static>(
    tree: &Arc<ProcessTree>,
    work: impl FnOnce(&ProcessTree) -> T + Send + Copy + 'static,
) -> T {
    let copy = Arc::clone(tree);
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return work(tree) };
    match runtime.spawn_blocking(move || work(&copy)).await {
        Ok(result) => result,
        // The runtime is shutting down, so the work runs here.
        Err(_) => work(tree),
    }
}
