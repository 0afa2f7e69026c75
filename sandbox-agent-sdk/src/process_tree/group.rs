//! Signals the process group, on systems without `/proc`.

use rustix::process::{Signal, kill_process_group, test_kill_process_group};

use super::kill_group;
use super::membership::Membership;

/// Whether no member of the group is alive.
pub(super) fn is_empty(membership: &Membership) -> bool {
    test_kill_process_group(membership.leader()).is_err()
}

/// Sends SIGTERM to every member.
pub(super) fn terminate(membership: &Membership) {
    // A stopped process handles SIGTERM only after SIGCONT.
    for signal in [Signal::TERM, Signal::CONT] {
        // An error means that the group has no live process.
        let _ = kill_process_group(membership.leader(), signal);
    }
}

/// Kills every member.
pub(super) fn kill(trees: &[&Membership]) -> bool {
    trees.iter().for_each(|membership| kill_group(membership.leader()));
    true
}
