//! A process and the group it leads.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout_at};

/// How often it is looked whether a group is empty.
const LOOK: Duration = Duration::from_millis(20);
/// How long what was killed may take to be gone.
const KILLED: Duration = Duration::from_secs(2);

/// A process and whatever it started. All of it is killed when this is dropped before it was ended.
#[derive(Debug)]
pub(super) struct Group {
    leader: Child,
    id: Pid,
    ended: bool,
}

impl Group {
    /// Starts a command at the head of a group of its own.
    pub(super) fn spawn(command: &mut Command) -> io::Result<(Self, ChildStdout, ChildStderr)> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut leader = command.process_group(0).kill_on_drop(true).spawn()?;
        let id = leader.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        match (id, leader.stdout.take(), leader.stderr.take()) {
            (Some(id), Some(stdout), Some(stderr)) => Ok((Self { leader, id, ended: false }, stdout, stderr)),
            _ => Err(io::Error::other("the process started without its pipes")),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.id.as_raw_pid().unsigned_abs()
    }

    /// Waits for the end of the leader.
    pub(super) async fn wait(&mut self) -> Option<ExitStatus> {
        self.leader.wait().await.ok()
    }

    /// Ends everything: asks first, and kills what is left after the grace. Gives how the leader ended.
    pub(super) async fn end(&mut self, grace: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + grace;
        self.signal(Signal::TERM);
        let status = timeout_at(deadline, self.leader.wait()).await;
        while !self.is_empty() && Instant::now() < deadline {
            sleep(LOOK).await;
        }
        if !self.is_empty() {
            self.signal(Signal::KILL);
            let deadline = Instant::now() + KILLED;
            while !self.is_empty() && Instant::now() < deadline {
                sleep(LOOK).await;
            }
        }
        let status = match status {
            Ok(status) => status,
            Err(_) => self.leader.wait().await,
        };
        self.ended = true;
        status.ok()
    }

    /// Whether nobody of the group is alive.
    fn is_empty(&self) -> bool {
        test_kill_process_group(self.id).is_err()
            || (cfg!(target_os = "linux") && living_members(self.id()) == 0)
    }

    fn signal(&self, signal: Signal) {
        // The only failures are an empty group, which is what is wanted, and processes of another user.
        if let Err(error) = kill_process_group(self.id, signal) {
            tracing::trace!(group = ?self.id, ?signal, %error, "signal not delivered");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.ended {
            self.signal(Signal::KILL);
        }
    }
}

/// The members of a group that are no zombies: where nobody reaps orphans, the dead stay in their group.
fn living_members(group: u32) -> usize {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let stats = entries.flatten().filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let living = stats.filter(|stat| {
        // The name of the program may hold anything; the state, the parent and the group follow it.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let (state, _parent, of) = (fields.next(), fields.next(), fields.next());
        !matches!(state, Some("Z" | "X")) && of.and_then(|of| of.parse().ok()) == Some(group)
    });
    living.count()
}
