//! All processes.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use serde::Deserialize;

use super::{
    limits::Limits,
    process::{Process, lock},
    spawn::spawn,
};
use crate::{
    control::files::{Root, VirtualPath},
    problem::Problem,
};

/// A process to start.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Order {
    pub(super) command: String,
    #[serde(default)]
    pub(super) args: Vec<String>,
    #[serde(default)]
    pub(super) cwd: Option<String>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) tty: bool,
    #[serde(default)]
    pub(super) interactive: bool,
}

/// All processes of a control plane. Dropping it kills the running ones.
pub(in crate::control) struct Processes {
    served: bool,
    pub(super) root: Root,
    /// Guards table and limits, never across an await.
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    limits: Limits,
    /// How many starts were attempted.
    count: u64,
    /// By id, in lexical order.
    processes: BTreeMap<String, Arc<Process>>,
}

impl Processes {
    pub(in crate::control) fn new(root: Root, served: bool) -> Self {
        Self { served, root, table: Mutex::default() }
    }

    /// Whether processes are served.
    pub(in crate::control) fn are_served(&self) -> bool {
        self.served
    }

    pub(super) fn limits(&self) -> Limits {
        lock(&self.table).limits.clone()
    }

    pub(super) fn set_limits(&self, limits: Limits) -> Result<Limits, Problem> {
        let limits = limits.checked()?;
        lock(&self.table).limits = limits.clone();
        Ok(limits)
    }

    pub(super) fn create(&self, order: Order) -> Result<Arc<Process>, Problem> {
        require_command(&order)?;
        let directory = self.directory(order.cwd.as_deref())?;
        let mut table = lock(&self.table);
        let limit = table.limits.max_concurrent_processes;
        if table.processes.values().filter(|process| process.is_running()).count() >= limit {
            return Err(Problem::conflict(format!("max concurrent process limit reached ({limit})")));
        }
        table.count += 1;
        let id = format!("proc_{}", table.count);
        let log_limit = table.limits.max_log_bytes_per_process;
        let process = spawn(id.clone(), order, &directory, self.root.path(), log_limit)
            .map_err(|error| not_started(&error))?;
        table.processes.insert(id, Arc::clone(&process));
        Ok(process)
    }

    pub(super) fn all(&self) -> Vec<Arc<Process>> {
        lock(&self.table).processes.values().cloned().collect()
    }

    pub(super) fn get(&self, id: &str) -> Result<Arc<Process>, Problem> {
        lock(&self.table).processes.get(id).cloned().ok_or_else(|| Problem::not_found("process", id))
    }

    pub(super) fn delete(&self, id: &str) -> Result<(), Problem> {
        let mut table = lock(&self.table);
        let process = table.processes.get(id).ok_or_else(|| Problem::not_found("process", id))?;
        if process.is_running() {
            return Err(Problem::conflict("process is still running; stop or kill it before delete"));
        }
        process.end();
        table.processes.remove(id);
        Ok(())
    }

    /// Returns where a process starts: below the root, with links resolved.
    pub(super) fn directory(&self, cwd: Option<&str>) -> Result<PathBuf, Problem> {
        let Some(cwd) = cwd else { return Ok(self.root.path().to_owned()) };
        let path = VirtualPath::parse(cwd)?;
        let inner = self.root.dir().canonicalize(path.inner()).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                Problem::invalid_request(format!("path is outside the root: {cwd}"))
            }
            _ => not_started(&error),
        })?;
        Ok(self.root.path().join(inner))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        lock(&self.table).processes.values().for_each(|process| process.end());
    }
}

impl fmt::Debug for Processes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Processes").field("served", &self.served).finish_non_exhaustive()
    }
}

pub(super) fn require_command(order: &Order) -> Result<(), Problem> {
    if order.command.trim().is_empty() {
        return Err(Problem::invalid_request("command must not be empty"));
    }
    Ok(())
}

pub(super) fn not_started(error: &std::io::Error) -> Problem {
    Problem::stream_error(format!("failed to spawn process: {error}"))
}
