//! The server and the program as processes that can be killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use sandbox_agent_sdk::sessions::StoredEvent;

use super::agent::Ability;
use super::program::{Drive, Task, WRITES};

/// The binary that is both, and where its processes write what goes wrong.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    pub(super) binary: PathBuf,
    pub(super) directory: PathBuf,
}

impl Programs {
    /// Starts the server, on any port if this is 0.
    pub(super) fn server(&self, port: u16, ability: Ability) -> io::Result<Process> {
        self.start(&["serve", &port.to_string(), ability.name()])
    }

    pub(super) fn program(&self, drive: &Drive) -> io::Result<Process> {
        let task = if drive.task == Task::Settle { "settle" } else { "prompt" };
        let (sessions, run) = (drive.sessions.to_string(), drive.run.to_string());
        self.start(&["drive", &drive.url, &drive.store, &sessions, &run, task])
    }

    fn start(&self, arguments: &[&str]) -> io::Result<Process> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut child = Command::new(&self.binary)
            .args(arguments)
            .env("RUST_BACKTRACE", "0")
            .env(WRITES, self.writes())
            // A process whose parent has exited sees the end of its input.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let output = child.stdout.take().map(BufReader::new);
        Ok(Process { child, output })
    }

    fn writes(&self) -> PathBuf {
        self.directory.join("writes")
    }

    /// The writes that programs executed, with how often each was.
    pub(super) fn executed(&self) -> BTreeMap<String, usize> {
        let mut executed = BTreeMap::new();
        for line in std::fs::read_to_string(self.writes()).unwrap_or_default().lines() {
            *executed.entry(line.to_owned()).or_default() += 1;
        }
        executed
    }

    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Writes what is stored of a session into a file, a line for each event.
    pub(super) fn write_down(&self, session: &str, events: &[StoredEvent]) {
        let lines: Vec<String> = events.iter().map(|event| serde_json::json!(event).to_string()).collect();
        // It only helps to understand a failure.
        let _ = std::fs::write(self.directory.join(session), lines.join("\n"));
    }

    /// The last lines that the processes wrote.
    pub(super) fn last_lines(&self) -> String {
        last_lines(&self.log())
    }
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// A process. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// The next line of its output; empty behind the last one.
    pub(super) async fn line(&mut self) -> io::Result<String> {
        let mut output = self.output.take().ok_or_else(|| io::Error::other("its output is being read"))?;
        let reading = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            output.read_line(&mut line).map(|_| (line.trim_end().to_owned(), output))
        });
        let (line, output) = reading.await.map_err(io::Error::other)??;
        self.output = Some(output);
        Ok(line)
    }

    /// Ends it with SIGKILL.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Waits until it has ended by itself.
    pub(super) async fn ended(mut self) -> io::Result<ExitStatus> {
        let waiting = tokio::task::spawn_blocking(move || {
            // Waiting would close it.
            let _input = self.child.stdin.take();
            self.child.wait()
        });
        waiting.await.map_err(io::Error::other)?
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}
