//! Kills programs, servers and databases under busy stored sessions. See `--help`.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use sdk_tests::Cluster;
use sdk_tests::kill::{Ability, Backend, Drive, Plan, Report, Target, Task, drive, run, serve};

const HELP: &str = "\
survive: kills the program, the server and the database of busy stored sessions, and checks the stored events.

USAGE: survive [OPTIONS]

OPTIONS:
  --rounds N       Kill N times (default 200). Stop at the first world that violates an invariant.
  --world N        The number of rounds per world (default 10). Each world has its own seed and store.
  --from SEED      Start with this seed (default 0).
  --sessions N     The number of busy sessions (default 50).
  --store NAME     sqlite or postgres (default: the worlds alternate, if PostgreSQL is installed).
  --kill NAMES     What to kill in turn: program, server, database, separated by commas (default: all that exist).
  --help           Print this help.

`survive serve` and `survive drive` are internal: survive starts them as processes.
";

struct Options {
    rounds: usize,
    world: usize,
    from: u64,
    sessions: usize,
    sqlite: bool,
    postgres: bool,
    targets: Vec<Target>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let options = match child(&arguments) {
        Some(Child::Serve(port, ability)) => {
            end_with_parent();
            serve(port, ability).await;
            return ExitCode::SUCCESS;
        }
        Some(Child::Drive(what)) => {
            end_with_parent();
            drive(what).await;
            return ExitCode::SUCCESS;
        }
        None => options(&arguments),
    };
    match options {
        Ok(Some(options)) => sweep(&options).await,
        Ok(None) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("{what}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

/// The role of a process that this program started.
enum Child {
    Serve(u16, Ability),
    Drive(Drive),
}

fn child(arguments: &[&str]) -> Option<Child> {
    match *arguments {
        ["serve", port, ability] => {
            let ability = Ability::ALL.into_iter().find(|known| known.name() == ability)?;
            Some(Child::Serve(port.parse().ok()?, ability))
        }
        ["drive", url, store, sessions, run, task] => {
            let task = if task == "settle" { Task::Settle } else { Task::Prompt };
            let (url, store) = (url.to_owned(), store.to_owned());
            let (sessions, run) = (sessions.parse().ok()?, run.parse().ok()?);
            Some(Child::Drive(Drive { url, store, sessions, run, task }))
        }
        _ => None,
    }
}

/// Exits when the parent has exited, which closes the standard input of this process.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
}

fn options(arguments: &[&str]) -> Result<Option<Options>, String> {
    let all = vec![Target::Program, Target::Server, Target::Database];
    let (rounds, world, sessions) = (200, 10, 50);
    let mut options =
        Options { rounds, world, from: 0, sessions, sqlite: true, postgres: true, targets: all };
    let mut arguments = arguments.iter();
    while let Some(&name) = arguments.next() {
        if name == "--help" {
            return Ok(None);
        }
        let &value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<usize>().map_err(|_| format!("{name} needs a number, not {value}"));
        match name {
            "--rounds" => options.rounds = number()?,
            "--world" => options.world = number()?.max(1),
            "--from" => options.from = number()? as u64,
            "--sessions" => options.sessions = number()?,
            "--store" => (options.sqlite, options.postgres) = (value == "sqlite", value == "postgres"),
            "--kill" => options.targets = value.split(',').map(target).collect::<Result<_, _>>()?,
            _ => return Err(format!("unknown option {name}")),
        }
    }
    match options.sqlite || options.postgres {
        true => Ok(Some(options)),
        false => Err("--store must be sqlite or postgres".to_owned()),
    }
}

fn target(name: &str) -> Result<Target, String> {
    match name {
        "program" => Ok(Target::Program),
        "server" => Ok(Target::Server),
        "database" => Ok(Target::Database),
        _ => Err(format!("unknown target {name}: use program, server or database")),
    }
}

async fn sweep(options: &Options) -> ExitCode {
    let binary = match std::env::current_exe() {
        Ok(binary) => binary,
        Err(error) => {
            eprintln!("failed to find the path of this program: {error}");
            return ExitCode::FAILURE;
        }
    };
    let cluster = match options.postgres {
        true => Cluster::start_with(&[], &["synchronous_commit=on"]).await.map(Arc::new),
        false => None,
    };
    if !options.sqlite && cluster.is_none() {
        return ExitCode::FAILURE;
    }
    let started = Instant::now();
    let (mut done, mut total) = (0, Report::default());
    for number in 0.. {
        if done >= options.rounds {
            break;
        }
        let seed = options.from + number;
        let cluster = cluster.as_ref().filter(|_| !options.sqlite || number % 2 == 1);
        let backend = cluster.map_or(Backend::Sqlite, |cluster| Backend::Postgres(Arc::clone(cluster)));
        let has_database = matches!(backend, Backend::Postgres(_));
        let fits = |target: &Target| *target != Target::Database || has_database;
        let targets: Vec<Target> = options.targets.iter().copied().filter(fits).collect();
        let rounds = options.world.min(options.rounds - done);
        let name = if has_database { "postgres" } else { "sqlite" };
        let (sessions, early_per_mille) = (options.sessions, 250);
        let plan = Plan { seed, sessions, rounds, targets, early_per_mille, backend };
        let report = run(&binary, &plan, || {
            done += 1;
            show(done, options.rounds, &total, started);
        })
        .await;
        let failed = !report.violations.is_empty();
        total.add(report);
        if failed {
            println!("\nseed {seed} on {name}, world of {rounds} rounds, fails:");
            for violation in &total.violations {
                println!("VIOLATION {violation}");
            }
            return ExitCode::FAILURE;
        }
    }
    let Report { turns, failed_turns, words, gaps, writes, .. } = total;
    let seconds = started.elapsed().as_secs();
    println!(
        "{done} rounds, {turns} turns ({failed_turns} failed), {words} words, {gaps} gaps, {writes} writes, {seconds} s"
    );
    ExitCode::SUCCESS
}

/// Draws a progress bar, if standard error is a terminal.
fn show(done: usize, of: usize, so_far: &Report, started: Instant) {
    const WIDTH: usize = 40;
    if !io::stderr().is_terminal() {
        return;
    }
    let full = (done * WIDTH / of.max(1)).min(WIDTH);
    let bar = format!("{}{}", "#".repeat(full), "-".repeat(WIDTH - full));
    let (turns, seconds) = (so_far.turns, started.elapsed().as_secs());
    eprint!("\r[{bar}] {done}/{of} rounds, {turns} turns, {seconds} s ");
    let _ = io::stderr().flush();
}
