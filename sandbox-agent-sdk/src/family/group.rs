//! The process group: all that there is to find a family by on systems without `/proc`.

use rustix::process::{Signal, kill_process_group, test_kill_process_group};

use super::clues::Clues;
use super::strike;

/// Whether nobody of the group lives.
pub(super) fn is_empty(clues: &Clues) -> bool {
    test_kill_process_group(clues.leader()).is_err()
}

/// Asks everybody to end.
pub(super) fn ask(clues: &Clues) {
    // Whoever is stopped hears it when he goes on.
    for signal in [Signal::TERM, Signal::CONT] {
        // A group without a living process is as it should be.
        let _ = kill_process_group(clues.leader(), signal);
    }
}

/// Kills everybody.
pub(super) fn kill(families: &[&Clues]) -> bool {
    families.iter().for_each(|clues| strike(clues.leader()));
    true
}
