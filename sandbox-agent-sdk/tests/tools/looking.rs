//! A look at the processes of this machine.

use std::path::Path;

/// Whether a process runs: it is on the system's list and not a mere remnant of one that has ended.
pub(crate) fn runs(pid: &str) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, Some("Z" | "X") | None)
}

/// Whether a process is on the system's list, be it as a remnant.
pub(crate) fn is_listed(pid: &str) -> bool {
    Path::new("/proc").join(pid).exists()
}

/// The processes that run in a directory.
pub(crate) fn running_below(directory: &Path) -> Vec<String> {
    let directory = directory.canonicalize().unwrap();
    let pids = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let below = std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&directory));
        below.then(|| entry.file_name().into_string().unwrap())
    });
    pids.filter(|pid| runs(pid)).collect()
}
