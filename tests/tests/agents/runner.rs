//! Runs cells, each in its own process and network namespace.

use std::{
    io::{IsTerminal, Write},
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};

use futures::StreamExt;
use sdk_tests::{
    Unavailable,
    agents::{Isolation, RealAgent},
    binary,
};

use crate::{
    cell::{Cell, RESULT, Seen, folder},
    known, page, rows,
    tally::{self, Tally},
};

/// How long one cell may take.
const CELL_LIMIT: Duration = Duration::from_secs(240);

/// The released server that is run.
pub(crate) const RELEASED: &str = "0.4.2";

/// What the command line asks for.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Whether all rows are run, and not only those of CI.
    all: bool,
    list: bool,
    /// Whether the result is written into the page.
    write: bool,
    runs: usize,
    jobs: usize,
    /// Words that the name of a cell has to contain.
    words: Vec<String>,
    /// Words that it must not contain.
    skipped: Vec<String>,
    /// Whether only ignored tests are run: no cell is one.
    only_ignored: bool,
}

/// Options of the usual test runner that have no meaning here: without and with a value.
const IGNORED: [&str; 7] =
    ["--nocapture", "--no-capture", "--show-output", "--quiet", "-q", "--exact", "--include-ignored"];
const IGNORED_WITH_VALUE: [&str; 2] = ["--format", "--color"];

impl Plan {
    /// Reads the arguments.
    ///
    /// # Errors
    /// Names the argument that is unknown or has no valid value.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut plan = Self { runs: 1, jobs: 2, ..Self::default() };
        let mut arguments = arguments.iter().map(String::as_str);
        while let Some(argument) = arguments.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value)),
                _ => (argument, None),
            };
            let mut text =
                || value.or_else(|| arguments.next()).ok_or_else(|| format!("{name} needs a value"));
            let number = |text: &str| match text.parse() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(format!("{name} needs a number above 0, not {text:?}")),
            };
            match name {
                "--all" => plan.all = true,
                "--list" => plan.list = true,
                "--write" => plan.write = true,
                "--runs" => plan.runs = number(text()?)?,
                "--jobs" | "--test-threads" => plan.jobs = number(text()?)?,
                "--skip" => plan.skipped.push(text()?.to_owned()),
                "--ignored" => plan.only_ignored = true,
                name if IGNORED.contains(&name) => {}
                name if IGNORED_WITH_VALUE.contains(&name) => drop(text()?),
                name if name.starts_with('-') => return Err(format!("unknown option {argument}")),
                word => plan.words.push(word.to_owned()),
            }
        }
        Ok(plan)
    }

    fn cells(&self) -> Vec<Cell> {
        let wanted = |cell: &Cell| {
            let name = cell.to_string();
            self.words.iter().all(|word| name.contains(word.as_str()))
                && !self.skipped.iter().any(|word| name.contains(word.as_str()))
                && (self.all || known::in_ci(cell))
        };
        crate::cells().into_iter().filter(wanted).collect()
    }
}

/// Checks that the options of the usual test runner are understood.
fn check() {
    let plan = |line: &str| Plan::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    for line in ["--ignored", "--list --format terse --ignored", "--list --format=terse --ignored codex"] {
        assert!(plan(line).is_ok_and(|plan| plan.only_ignored), "{line}");
    }
    for line in ["--include-ignored", "--list --format terse --exact --nocapture --test-threads=1"] {
        assert!(plan(line).is_ok_and(|plan| !plan.only_ignored), "{line}");
    }
    assert!(plan("--unknown").is_err());
}

/// Whether the environment asks for the cells of CI.
fn is_requested() -> bool {
    std::env::var("REAL_AGENTS").is_ok_and(|value| !value.is_empty() && value != "0")
}

/// Runs the cells of a plan.
pub(crate) async fn run(plan: Plan) -> ExitCode {
    check();
    if plan.only_ignored {
        return ExitCode::SUCCESS;
    }
    tally::check();
    page::check_lines();
    rows::chat::check();
    rows::failures::check();
    if !plan.write {
        page::check();
    }
    let cells = plan.cells();
    if plan.list {
        cells.iter().for_each(|cell| println!("{cell}: test"));
        return ExitCode::SUCCESS;
    }
    if !is_requested() && !plan.all {
        println!(
            "NOT RUN: {} cells with real agents; REAL_AGENTS=1 runs the {} stable ones, \
             `cargo test -p sdk-tests --test agents -- --all` all of them",
            crate::cells().len(),
            crate::cells().iter().filter(|cell| known::in_ci(cell)).count()
        );
        return ExitCode::SUCCESS;
    }
    if cells.is_empty() && plan.all {
        println!("no cell has all of these words in its name: {}", plan.words.join(" "));
        return ExitCode::FAILURE;
    }
    if cells.is_empty() {
        println!(
            "0 cells with real agents: none has all of these words in its name: {}",
            plan.words.join(" ")
        );
        return ExitCode::SUCCESS;
    }
    let node = match prepare(&cells).await {
        Ok(node) => node,
        Err(Unavailable(why)) => {
            // They were requested, by a variable or by an option.
            println!("FAILED: real agents cannot be run: {why}");
            return ExitCode::FAILURE;
        }
    };
    let isolation = Isolation::probe().await;
    if isolation == Isolation::Nothing {
        println!("this machine does not allow network namespaces: the agents can reach the network");
        if std::env::var_os("CI").is_some() {
            return ExitCode::FAILURE;
        }
    }
    let begun = Instant::now();
    let tallies = Tally::of(&run_all(&plan, &cells, isolation).await);
    let unexpected = report(&plan, &tallies, begun.elapsed());
    if plan.write {
        page::write(&tallies, &node);
    }
    if unexpected == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The oldest node that the agents run on.
const NODE: u32 = 20;

/// Fetches what the cells need, and returns the version of node.
async fn prepare(cells: &[Cell]) -> Result<String, Unavailable> {
    let version = tokio::process::Command::new("node").arg("--version").output().await;
    let version = version.map_err(|error| Unavailable(format!("node cannot be run: {error}")))?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    let major = version.trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major < Some(NODE) {
        return Err(Unavailable(format!("node is {version}, and the agents need {NODE}")));
    }
    binary(&folder(), RELEASED).await?;
    for agent in RealAgent::ALL {
        if cells.iter().any(|cell| cell.agent == agent) {
            agent.fetch(&folder()).await?;
        }
    }
    Ok(version)
}

/// What was seen of a cell in one run, and how long it took.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) cell: Cell,
    pub(crate) seen: Seen,
    pub(crate) took: Duration,
}

async fn run_all(plan: &Plan, cells: &[Cell], isolation: Isolation) -> Vec<Report> {
    let total = cells.len() * plan.runs;
    let work = (0..plan.runs).flat_map(|_| cells.iter().copied());
    let mut running =
        futures::stream::iter(work.map(|cell| run_cell(cell, isolation))).buffer_unordered(plan.jobs);
    let mut results: Vec<Report> = Vec::new();
    let begun = Instant::now();
    while let Some(result) = running.next().await {
        progress(&result, results.len() + 1, total, begun.elapsed());
        results.push(result);
    }
    results
}

fn progress(result: &Report, done: usize, total: usize, elapsed: Duration) {
    let Report { cell, seen, took } = result;
    let took = took.as_secs_f32();
    let verdict = match seen {
        Seen::Works => "ok".to_owned(),
        Seen::Note(text) => format!("ok: {text}"),
        Seen::Cannot(whose, text) => format!("cannot ({}): {text}", whose.name()),
        Seen::Rare(text) => {
            let why = known::rare(cell).map_or("a defect that known.rs does not name", |known| known.why);
            format!("ok, with a rare defect: {why}: {text}")
        }
        Seen::Failed(text) if known::failure(cell).is_some() => format!("fails as known: {text}"),
        Seen::Failed(text) => format!("FAILED: {text}"),
    };
    println!("{done:>4}/{total} {took:>5.1} s  {cell}  {verdict}");
    let mut terminal = std::io::stderr();
    if terminal.is_terminal() {
        let width = 40;
        let filled = width * done / total.max(1);
        let left = elapsed.as_secs() * (total - done) as u64 / done.max(1) as u64;
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(width - filled));
        // The rest of an earlier, longer line is erased. A failure to draw the bar is ignored.
        let _ = write!(terminal, "\r{bar} {done}/{total}, about {left} s left\x1b[K\r");
    }
}

async fn run_cell(cell: Cell, isolation: Isolation) -> Report {
    let begun = Instant::now();
    let program = std::env::current_exe().expect("this program");
    let mut command = isolation.command(&program, ["--cell", &cell.to_string()]);
    command
        .env("SDK_TESTS_AGENTS", folder())
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let output = tokio::time::timeout(CELL_LIMIT, command.output()).await;
    let seen = match output {
        Err(_) => Seen::Failed(format!("the cell took longer than {CELL_LIMIT:?}")),
        Ok(Err(error)) => Seen::Failed(format!("the cell cannot be run: {error}")),
        Ok(Ok(output)) => {
            let text = String::from_utf8_lossy(&output.stdout);
            if std::env::var_os("AGENTS_LOG").is_some() {
                eprintln!("{}", String::from_utf8_lossy(&output.stderr));
            }
            let result = text.lines().rev().find_map(|line| line.strip_prefix(RESULT));
            let seen = result.and_then(|json| Seen::from_json(&serde_json::from_str(json).ok()?));
            let errors = String::from_utf8_lossy(&output.stderr);
            match seen {
                Some(Seen::Rare(text)) if known::rare(&cell).is_none() => {
                    Seen::Failed(format!("a rare defect that known.rs does not name: {text}"))
                }
                Some(seen) => seen,
                None => Seen::Failed(format!("the cell ended without a result: {}", errors.trim())),
            }
        }
    };
    Report { cell, seen, took: begun.elapsed() }
}

/// Prints the sums, and returns how many cells failed or differ from the page.
fn report(plan: &Plan, tallies: &[Tally], elapsed: Duration) -> usize {
    let mut unexpected = 0;
    for Tally { cell, passed, rare, runs, seen } in tallies {
        if *runs > 1 {
            println!("{passed} of {runs} passed  {cell}");
        }
        if let (1.., Some(known)) = (rare, known::rare(cell)) {
            println!("RARE {cell}: {} ({} of {runs} runs)", known.why, rare);
        }
        match (seen, known::failure(cell)) {
            (Seen::Failed(text), None) => {
                unexpected += 1;
                println!("FAILED {cell}: {text}");
            }
            (Seen::Failed(_), Some(_)) | (_, None) => {}
            (_, Some(known)) => println!("PASSED although it is known to fail: {cell}: {}", known.why),
        }
    }
    let failed = tallies.iter().filter(|tally| matches!(tally.seen, Seen::Failed(_))).count();
    println!(
        "{} cells with real agents in {} s: {} passed, {} failed as known, {unexpected} failed",
        tallies.len(),
        elapsed.as_secs(),
        tallies.len() - failed,
        failed - unexpected
    );
    if plan.write {
        return unexpected;
    }
    let differences = page::differences(tallies);
    differences.iter().for_each(|difference| println!("DIFFERS {difference}"));
    unexpected.max(differences.len())
}
