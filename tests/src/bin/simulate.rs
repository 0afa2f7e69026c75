//! Runs seeds of the simulator. See `--help`.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use sdk_tests::sim::{Extent, Model, Report, run, run_stored};

const HELP: &str = "\
simulate: runs the client against a model of servers and networks, under a virtual clock.

USAGE: simulate [OPTIONS]

OPTIONS:
  --seeds N        Run N seeds (default 10000) and stop at the first that violates an invariant.
  --from SEED      Start with this seed (default 0).
  --seed SEED      Replay one seed with a trace.
  --dialect NAME   One of rpc, released, early, official, auto (default: each seed chooses one).
  --stored         Let several programs share stored sessions; programs, servers and the store fail.
  --stored-text    The same, without tool requests, slow decisions, slow loads and simultaneous acquires.
  --stored-disconnects  The same as --stored, and programs disconnect during turns.
  --stored-network The same as --stored, and the network fails as well.
  --help           Print this help.
";

struct Options {
    seeds: u64,
    from: u64,
    seed: Option<u64>,
    model: Option<Model>,
    stored: Option<Extent>,
}

impl Options {
    fn run(&self, seed: u64, traced: bool) -> Report {
        match self.stored {
            Some(extent) => run_stored(seed, extent, traced),
            None => run(seed, self.model, traced),
        }
    }
}

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(what) => {
            eprintln!("{what}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match options.seed {
        Some(seed) => replay(seed, &options),
        None => sweep(&options),
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options { seeds: 10_000, from: 0, seed: None, model: None, stored: None };
    while let Some(name) = arguments.next() {
        if name == "--help" {
            return Ok(None);
        }
        let stored = match name.as_str() {
            "--stored-text" => Some(Extent::Text),
            "--stored" => Some(Extent::Requests),
            "--stored-disconnects" => Some(Extent::Disconnects),
            "--stored-network" => Some(Extent::Network),
            _ => None,
        };
        if stored.is_some() {
            options.stored = stored;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} needs a number, not {value}"));
        match name.as_str() {
            "--seeds" => options.seeds = number()?,
            "--from" => options.from = number()?,
            "--seed" => options.seed = Some(number()?),
            "--dialect" => {
                let model = Model::ALL.into_iter().find(|model| model.name() == value);
                options.model = Some(model.ok_or_else(|| format!("unknown dialect {value}"))?);
            }
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(Some(options))
}

/// Runs one seed and prints its trace.
fn replay(seed: u64, options: &Options) -> ExitCode {
    let report = options.run(seed, true);
    for line in &report.trace {
        println!("{line}");
    }
    println!("seed {seed}, dialect {}: {} turns, {} calls", report.model.name(), report.turns, report.calls);
    for violation in &report.violations {
        println!("VIOLATION {violation}");
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs many seeds on all cores until one fails.
fn sweep(options: &Options) -> ExitCode {
    let progress = Progress::default();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let failed = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(options, &progress))).collect();
        scope.spawn(|| progress.show(options.seeds));
        let failed: Vec<Report> = workers.into_iter().filter_map(|worker| worker.join().ok()?).collect();
        progress.over.store(true, Ordering::Relaxed);
        failed.into_iter().min_by_key(|report| report.seed)
    });
    let (seeds, turns) = (progress.seeds.load(Ordering::Relaxed), progress.turns.load(Ordering::Relaxed));
    println!("{seeds} seeds, {turns} turns, {} calls", progress.calls.load(Ordering::Relaxed));
    match failed {
        None => ExitCode::SUCCESS,
        Some(report) => {
            println!("seed {} fails:", report.seed);
            replay(report.seed, options)
        }
    }
}

fn work(options: &Options, progress: &Progress) -> Option<Report> {
    while !progress.failed.load(Ordering::Relaxed) {
        let number = progress.next.fetch_add(1, Ordering::Relaxed);
        if number >= options.seeds {
            break;
        }
        let report = options.run(options.from + number, false);
        progress.seeds.fetch_add(1, Ordering::Relaxed);
        progress.turns.fetch_add(report.turns, Ordering::Relaxed);
        progress.calls.fetch_add(report.calls, Ordering::Relaxed);
        if !report.violations.is_empty() {
            progress.failed.store(true, Ordering::Relaxed);
            return Some(report);
        }
    }
    None
}

/// The progress of the runs.
#[derive(Default)]
struct Progress {
    next: AtomicU64,
    seeds: AtomicU64,
    turns: AtomicU64,
    calls: AtomicU64,
    failed: AtomicBool,
    over: AtomicBool,
}

impl Progress {
    const WIDTH: u64 = 40;

    /// Draws a progress bar until the runs end, if standard error is a terminal.
    fn show(&self, total: u64) {
        let started = Instant::now();
        while io::stderr().is_terminal() && !self.over.load(Ordering::Relaxed) {
            let (seeds, turns) = (self.seeds.load(Ordering::Relaxed), self.turns.load(Ordering::Relaxed));
            let full = usize::try_from(seeds * Self::WIDTH / total.max(1)).unwrap_or(0);
            let empty = usize::try_from(Self::WIDTH).unwrap_or(0).saturating_sub(full);
            let rate = turns / started.elapsed().as_secs().max(1);
            eprint!(
                "\r[{}{}] {seeds}/{total} seeds, {turns} turns, {rate}/s ",
                "#".repeat(full),
                "-".repeat(empty)
            );
            let _ = io::stderr().flush();
            thread::park_timeout(Duration::from_millis(100));
        }
        if io::stderr().is_terminal() {
            eprintln!();
        }
    }
}
