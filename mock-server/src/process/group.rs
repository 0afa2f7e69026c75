//! A child process and the process group it leads.

use std::io;
use std::os::unix::process::ExitStatusExt;

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::agent::ExitStatus;

/// A running child that leads a process group of its own.
///
/// The group is only signalled while the leader has not been reaped, or right after: until then its number
/// cannot belong to anyone else. Dropping a group that has not ended kills all of it.
#[derive(Debug)]
pub(super) struct Group {
    /// The leader. Its id is known until it has been reaped.
    leader: Child,
    /// The leader's process id, which is also the group's.
    id: Pid,
}

/// The three pipes to a process.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

impl Group {
    /// Starts `command` at the head of a new process group, with all three streams piped.
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

    /// Waits for the leader, then kills whatever it left in its group.
    pub(super) async fn wait(&mut self) -> ExitStatus {
        let ended = self.leader.wait().await;
        self.signal_group(Signal::SIGKILL);
        match ended {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => ExitStatus::Code(code),
                (None, Some(signal)) => ExitStatus::Signal(signal),
                // A process that was waited for has exited or was signalled; there is no third way.
                (None, None) => ExitStatus::Code(UNKNOWN_CODE),
            },
            Err(error) => {
                tracing::warn!(pid = %self.id, %error, "the agent's exit status could not be read");
                ExitStatus::Code(UNKNOWN_CODE)
            }
        }
    }

    /// Asks every process of the group to end.
    pub(super) fn terminate(&self) {
        self.signal_unless_reaped(Signal::SIGTERM);
    }

    /// Ends every process of the group.
    pub(super) fn kill(&self) {
        self.signal_unless_reaped(Signal::SIGKILL);
    }

    fn signal_unless_reaped(&self, signal: Signal) {
        if self.leader.id().is_some() {
            self.signal_group(signal);
        }
    }

    fn signal_group(&self, signal: Signal) {
        // The only failures are an empty group, which is what is wanted, and a group whose processes have
        // all changed their user, about which nothing can be done.
        if let Err(error) = killpg(self.id, signal) {
            tracing::trace!(group = %self.id, %signal, %error, "signal not delivered");
        }
    }
}

/// Stands for an exit code that the system did not tell.
const UNKNOWN_CODE: i32 = -1;

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
