//! A child process and the process group it leads.

use std::io;
use std::os::unix::process::ExitStatusExt;

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::agent::ExitStatus;

/// A running child that leads its own process group.
///
/// The group is signalled only before the leader is reaped, or immediately afterwards: until then its id
/// cannot be reused. Dropping a running group kills all its processes.
#[derive(Debug)]
pub(super) struct Group {
    /// The leader. Its id is known until it was reaped.
    leader: Child,
    /// The leader's process id, which is also the group's.
    id: Pid,
}

/// The three pipes of a process.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

impl Group {
    /// Starts `command` as the leader of a new process group, with all three streams piped.
    pub(super) fn spawn(command: &mut Command) -> io::Result<(Self, Pipes)> {
        use std::process::Stdio;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut leader = command.process_group(0).kill_on_drop(true).spawn()?;
        let id = leader.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let pipes = (leader.stdin.take(), leader.stdout.take(), leader.stderr.take());
        match (id, pipes) {
            (Some(id), (Some(stdin), Some(stdout), Some(stderr))) => {
                Ok((Self { leader, id }, Pipes { stdin, stdout, stderr }))
            }
            _ => Err(io::Error::other("the process started without its pipes")),
        }
    }

    /// Waits for the leader, then kills the remaining processes in its group.
    pub(super) async fn wait(&mut self) -> ExitStatus {
        let ended = self.leader.wait().await;
        self.signal_group(Signal::SIGKILL);
        match ended {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => ExitStatus::Code(code),
                (None, Some(signal)) => ExitStatus::Signal(signal),
                // A process that was waited for has exited or was signalled; there is no other case.
                (None, None) => ExitStatus::Code(UNKNOWN_CODE),
            },
            Err(error) => {
                tracing::warn!(pid = %self.id, %error, "failed to read the agent's exit status");
                ExitStatus::Code(UNKNOWN_CODE)
            }
        }
    }

    /// Sends SIGTERM to every process of the group.
    pub(super) fn terminate(&self) {
        self.signal_unless_reaped(Signal::SIGTERM);
    }

    /// Sends SIGKILL to every process of the group.
    pub(super) fn kill(&self) {
        self.signal_unless_reaped(Signal::SIGKILL);
    }

    fn signal_unless_reaped(&self, signal: Signal) {
        if self.leader.id().is_some() {
            self.signal_group(signal);
        }
    }

    fn signal_group(&self, signal: Signal) {
        // The signal fails only if the group is already empty, or if all its processes changed their user. Nothing
        // can be done in either case.
        if let Err(error) = killpg(self.id, signal) {
            tracing::trace!(group = %self.id, %signal, %error, "signal not delivered");
        }
    }
}

/// Stands for an unknown exit code.
const UNKNOWN_CODE: i32 = -1;

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
