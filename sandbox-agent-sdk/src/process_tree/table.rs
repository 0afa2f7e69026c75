//! The processes of this machine, from `/proc`.

use std::collections::HashSet;
use std::fs;

use rustix::process::{Pid, getpid, getuid};

/// The maximum number of scans. On a busy machine every scan may find a new process.
const SCANS: usize = 32;

/// One process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) pid: Pid,
    pub(super) parent: i32,
    /// Zero for a group or a session outside this container.
    pub(super) group: i32,
    pub(super) session: i32,
    /// When it was started, in ticks since boot. Identifies a process together with its id.
    pub(super) started: u64,
    /// Whether it is alive, that is, not a zombie.
    pub(super) lives: bool,
}

impl Entry {
    pub(super) fn read(pid: Pid) -> Option<Self> {
        parse(pid, &fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?)
    }

    /// Whether this very process is still alive.
    pub(super) fn is_alive(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.lives && now.started == self.started)
    }
}

/// One scan of the process table.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) entries: Vec<Entry>,
    /// Whether the scan found every process. A chain of processes, each of which starts the next one and
    /// exits, can escape every scan.
    pub(super) complete: bool,
}

impl Look {
    /// Scans until no new process has appeared.
    pub(super) fn new() -> Self {
        let (mut seen, mut look) = (HashSet::new(), Self::default());
        for _ in 0..SCANS {
            let mut fresh = numbers();
            fresh.retain(|number| seen.insert(*number));
            if fresh.is_empty() {
                look.complete = true;
                break;
            }
            look.entries.extend(fresh.into_iter().filter_map(Pid::from_raw).filter_map(Entry::read));
        }
        look
    }
}

/// Returns the id of the most recently started process, without a scan.
pub(super) fn newest() -> i32 {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().nth(4).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the ids of all processes. Empty if `/proc` belongs to another PID namespace and lists other
/// processes under our ids.
fn numbers() -> Vec<i32> {
    let me = fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse().ok());
    if me != Some(getpid().as_raw_pid()) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the children of a process, without a scan.
pub(super) fn children(of: Pid) -> Vec<Pid> {
    let pid = of.as_raw_pid();
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|child| child.parse().ok()).filter_map(Pid::from_raw).collect()
}

/// Whether a process has this limit for real-time threads.
pub(super) fn has_limit(pid: Pid, limit: u64) -> bool {
    let limits = fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_pid())).unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max realtime timeout"));
    line.is_some_and(|line| line.split_whitespace().any(|word| word.parse() == Ok(limit)))
}

/// Whether the real user of a process is that of this program.
///
/// The effective user may differ: a program with the setuid bit has that of its file.
pub(super) fn is_own(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    user == Some(getuid().as_raw())
}

/// Whether a process was started with a variable of this name. `false` for processes of other users.
pub(super) fn has_variable(pid: Pid, name: &str) -> bool {
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
    let is_it =
        |variable: &[u8]| variable.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
    environment.split(|byte| *byte == 0).any(is_it)
}

/// Parses a line of `/proc/PID/stat`.
fn parse(pid: Pid, stat: &[u8]) -> Option<Entry> {
    // The program's name may contain any bytes, including brackets and spaces. Numbers follow it.
    let behind_name = stat.rsplit(|byte| *byte == b')').next()?;
    let mut fields = std::str::from_utf8(behind_name).ok()?.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let threads: u64 = fields.nth(13)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // A process whose main thread has exited looks like a zombie but is running.
    let lives = !matches!(state, "Z" | "X" | "x") || threads > 1;
    Some(Entry { pid, parent, group, session, started, lives })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, getpid, getppid};

    use super::{Entry, Look, has_limit, has_variable, is_own, newest, parse};

    #[test]
    fn a_line_is_parsed_for_any_program_name() {
        let pid = Pid::from_raw(7).unwrap();
        for name in
            ["sh", "a b", ") Z 1 2 3", "((", "new\nline"].map(str::as_bytes).into_iter().chain([&b"\xd1"[..]])
        {
            let rest = b") S 3 7 5 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 98765 1000 1";
            let entry = parse(pid, &[b"7 (", name, rest].concat()).unwrap();
            assert_eq!(
                (entry.parent, entry.group, entry.session, entry.started, entry.lives),
                (3, 7, 5, 98765, true),
                "{name:?}"
            );
        }
        let state = |state: &str, threads: u32| {
            let line =
                format!("7 (sh) {state} 3 7 5 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 {threads} 0 98765 1000 1");
            parse(pid, line.as_bytes()).unwrap().lives
        };
        assert!(state("T", 1) && state("D", 1) && !state("Z", 1) && !state("X", 1));
        assert!(state("Z", 3), "only its main thread has exited");
        for broken in ["", "7", "7 (sh)", "7 (sh) S x", "7 (sh) S 1 2 3"] {
            assert_eq!(parse(pid, broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn this_process_is_on_the_list() {
        let me = Entry::read(getpid()).unwrap();
        assert_eq!(Pid::from_raw(me.parent), getppid());
        assert!(me.lives && Look::new().entries.contains(&me));
        assert!(newest() > 0);
        assert!(has_variable(getpid(), "PATH") && !has_variable(getpid(), "PAT"));
        assert!(!has_limit(getpid(), 12345));
        assert!(is_own(getpid()));
    }

    #[test]
    fn group_and_session_leaders_are_identified() {
        let mut child = Command::new("setsid").args(["--wait", "sleep", "60"]).spawn().unwrap();
        let own = || Entry::read(Pid::from_child(&child)).unwrap();
        let (me, mut entry) = (Entry::read(getpid()).unwrap(), own());
        // A process is in our group until it has executed its program.
        while entry.session == me.session {
            std::thread::yield_now();
            entry = own();
        }
        let number = entry.pid.as_raw_pid();
        assert_eq!((entry.parent, entry.group, entry.session), (me.pid.as_raw_pid(), number, number));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
