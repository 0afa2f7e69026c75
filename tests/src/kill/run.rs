//! A world of a seed: its rounds, and what it reports.

use std::path::Path;
use std::sync::Arc;

use sandbox_agent_sdk::sessions::StoredEvent;
use sandbox_agent_sdk::sessions::store::{EventQuery, SessionStore};
use sdk_examples::{Cluster, Schema};

use super::agent::Ability;
use super::check::{Losses, violations};
use super::process::{Process, Programs};
use super::program::{Drive, Task, open_store};
use super::words::session_name;
use crate::sim::random::Random;
use crate::{LIMIT, within};

/// How long a program runs before something is killed, at most.
const BEFORE_MS: u64 = 700;
/// How long it runs behind the kill of something else, at most.
const BEHIND_MS: u64 = 700;

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The program that uses the store.
    Program,
    /// The server with its agents.
    Server,
    /// The database.
    Database,
}

/// Where the sessions are stored.
#[derive(Debug, Clone)]
pub enum Backend {
    /// A file. There is no database process.
    Sqlite,
    /// A database that was started with `synchronous_commit=on`.
    Postgres(Arc<Cluster>),
}

/// What is run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Decides whom each round kills, when, and what the agent can do.
    pub seed: u64,
    /// How many sessions are busy.
    pub sessions: usize,
    /// How many rounds there are. Each kills these in turn.
    pub rounds: usize,
    /// What is killed.
    pub targets: Vec<Target>,
    /// In how many rounds of a thousand something is killed before all sessions are busy.
    pub early_per_mille: u64,
    /// Where the sessions are stored.
    pub backend: Backend,
}

/// What a run found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The stored turns.
    pub turns: usize,
    /// The turns among them whose end is a failure, which only a killed server or an unsent prompt explains.
    pub failed_turns: usize,
    /// The stored words.
    pub words: usize,
    /// The stored gaps.
    pub gaps: usize,
    /// The files that the agent had written.
    pub writes: usize,
    /// What does not hold.
    pub violations: Vec<String>,
}

/// Runs the rounds of a plan, with this binary as server and program, and checks what is stored in the end.
///
/// `round` is called behind each round.
///
/// # Panics
/// If a process cannot be started.
pub async fn run(binary: &Path, plan: &Plan, mut round: impl FnMut()) -> Report {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let programs = Programs { binary: binary.to_owned(), directory: directory.path().to_owned() };
    let schema = match &plan.backend {
        Backend::Sqlite => None,
        Backend::Postgres(cluster) => Some(cluster.schema().await),
    };
    let store = schema.as_ref().map_or_else(
        || format!("sqlite:{}", directory.path().join("sessions.db").display()),
        |schema| schema.url.clone(),
    );
    let mut world = World::start(plan, programs, store).await;
    let mut report = Report::default();
    for number in 0..plan.rounds {
        if let Err(stuck) = world.round(number).await {
            report.violations.push(stuck);
            break;
        }
        round();
    }
    report.add(world.settle().await);
    // If it did not settle, what is stored may say why.
    report.add(world.check().await);
    drop(world);
    if !report.violations.is_empty() {
        let kept = directory.keep();
        report.violations.push(format!("what was stored and logged is kept in {}", kept.display()));
        return report;
    }
    if let Some(schema) = schema {
        Schema::remove(schema).await;
    }
    report
}

struct World<'a> {
    plan: &'a Plan,
    random: Random,
    programs: Programs,
    ability: Ability,
    store: String,
    url: String,
    server: Process,
    runs: u64,
}

impl<'a> World<'a> {
    async fn start(plan: &'a Plan, programs: Programs, store: String) -> Self {
        let mut random = Random::labelled(plan.seed, "kill");
        let ability = random.pick(&Ability::ALL);
        let mut server = programs.server(0, ability).expect("the server starts");
        let url = within("the server", server.line()).await.expect("the server starts");
        Self { plan, random, programs, ability, store, url, server, runs: 0 }
    }

    /// Starts a program, kills something while it prompts, and kills the program in the end.
    async fn round(&mut self, number: usize) -> Result<(), String> {
        let target = self.plan.targets[number % self.plan.targets.len()];
        let mut program = self.program(Task::Prompt).await;
        if !self.random.per_mille(self.plan.early_per_mille) {
            let busy = tokio::time::timeout(LIMIT, program.line()).await;
            let busy = busy.map(|busy| busy.expect("the program runs"));
            if busy.as_deref() != Ok("busy") {
                let lines = self.programs.last_lines();
                return Err(format!(
                    "round {number}: not every session begins a turn in {LIMIT:?}:\n{lines}"
                ));
            }
        }
        tokio::time::sleep(self.random.millis(BEFORE_MS)).await;
        match target {
            Target::Program => {}
            Target::Server => {
                self.server.kill().expect("the server can be killed");
                tokio::time::sleep(self.random.millis(BEHIND_MS / 4)).await;
                self.restart_server().await;
            }
            Target::Database => match &self.plan.backend {
                Backend::Sqlite => {}
                Backend::Postgres(cluster) => cluster.restart_killed().await,
            },
        }
        if target != Target::Program {
            tokio::time::sleep(self.random.millis(BEHIND_MS)).await;
        }
        program.kill().expect("the program can be killed");
        Ok(())
    }

    async fn restart_server(&mut self) {
        let port = self.url.rsplit(':').next().and_then(|port| port.trim_end_matches('/').parse().ok());
        let port = port.expect("a port");
        self.server = self.programs.server(port, self.ability).expect("the server starts");
        let url = within("the server", self.server.line()).await.expect("the server starts");
        assert_eq!(url, self.url);
    }

    async fn program(&mut self, task: Task) -> Process {
        let (url, store) = (self.url.clone(), self.store.clone());
        let drive = Drive { url, store, sessions: self.plan.sessions, run: self.runs, task };
        self.runs += 1;
        let mut program = self.programs.program(&drive).expect("the program starts");
        let begun = within("the program", program.line()).await.expect("the program starts");
        assert_eq!(begun, "begun", "{}", self.programs.last_lines());
        program
    }

    /// Has a last program acquire all sessions and end by itself.
    async fn settle(&mut self) -> Report {
        let ended = self.program(Task::Settle).await.ended().await.expect("the program ends");
        let mut report = Report::default();
        if !ended.success() {
            let lines = self.programs.last_lines();
            report.violations.push(format!("the last program fails ({ended}):\n{lines}"));
        }
        report
    }

    async fn check(&self) -> Report {
        let losses = match self.plan.targets.contains(&Target::Server) {
            true => Losses::WithTheServer,
            false => Losses::None,
        };
        let store = open_store(&self.store).await.expect("the store opens");
        let mut report = Report::default();
        for number in 0..self.plan.sessions {
            let id = session_name(number);
            let events = stored(&*store, &id).await;
            let open = store.open(&id).await.expect("the store is there");
            let mut found = violations(&id, &events, losses);
            if !open.is_empty() {
                found.violations.push(format!("{id}: open in the end: {open:?}"));
            }
            if !found.violations.is_empty() {
                self.programs.write_down(&id, &events);
            }
            report.add(found);
        }
        let executed = self.programs.executed();
        report.writes = executed.len();
        for (path, times) in executed.iter().filter(|(_, times)| **times > 1) {
            report.violations.push(format!("{path} was written {times} times"));
            let id = path.trim_start_matches('/').split('.').next().unwrap_or_default();
            self.programs.write_down(id, &stored(&*store, id).await);
        }
        store.close().await;
        report
    }
}

impl Report {
    /// Adds what was found elsewhere.
    pub fn add(&mut self, other: Self) {
        self.turns += other.turns;
        self.failed_turns += other.failed_turns;
        self.words += other.words;
        self.gaps += other.gaps;
        self.writes += other.writes;
        self.violations.extend(other.violations);
    }
}

async fn stored(store: &dyn SessionStore, id: &str) -> Vec<StoredEvent> {
    let mut all = Vec::new();
    let mut query = EventQuery::of(id);
    loop {
        let page = store.events(&query).await.expect("the events are there");
        all.extend(page.events);
        match page.next {
            Some(next) => query = query.after(next),
            None => return all,
        }
    }
}
