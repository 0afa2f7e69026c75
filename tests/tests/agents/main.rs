//! Real coding agents behind real servers, against a scripted model, without network.
//!
//! ```text
//! cargo test -p sdk-tests --test agents                               reports that it is not run
//! REAL_AGENTS=1 cargo test -p sdk-tests --test agents                 the cells of CI
//! cargo test -p sdk-tests --test agents -- --all --write              the whole matrix, into docs/agents.md
//! cargo test -p sdk-tests --test agents -- --all codex cancel         cells whose name has all of these words
//! cargo test -p sdk-tests --test agents -- --all --runs 20 opencode   twenty times
//! cargo test -p sdk-tests --test agents -- --stage codex              an agent and the model, for manual tests
//! ```

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod apart;
mod bench;
mod cell;
mod configuration;
mod known;
mod page;
mod program;
mod rows;
mod runner;
mod sender;
mod stage;
mod tally;

use std::process::ExitCode;

use cell::Cell;
use runner::Plan;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    match arguments.first().map(String::as_str) {
        Some("--cell") => runtime.block_on(cell::run(arguments.get(1).map_or("", String::as_str))),
        Some("--stage") => runtime.block_on(stage::run(arguments.get(1).map_or("", String::as_str))),
        Some("--server") => runtime.block_on(apart::run(&arguments[1..])),
        Some("--program") => runtime.block_on(program::run(&arguments[1..])),
        _ => match Plan::parse(&arguments) {
            Ok(plan) => runtime.block_on(runner::run(plan)),
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        },
    }
}

/// Every cell of the matrix.
fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for row in rows::ROWS {
        for agent in sdk_tests::agents::RealAgent::ALL {
            cells.extend(cell::Face::ALL.map(|face| Cell { row: row.name, agent, face }));
        }
    }
    cells
}
