//! Programs, servers and databases that are killed. More rounds:
//! `cargo run --release -p sdk-tests --bin survive -- --rounds 200`.

use std::path::Path;
use std::sync::Arc;

use sdk_tests::Cluster;
use sdk_tests::kill::{Backend, Plan, Target, run};

const SURVIVE: &str = env!("CARGO_BIN_EXE_survive");

async fn survives(seed: u64, targets: &[Target], backend: Backend) {
    let (rounds, targets) = (targets.len(), targets.to_vec());
    let plan = Plan { seed, sessions: 50, rounds, targets, early_per_mille: 0, backend };
    let report = run(Path::new(SURVIVE), &plan, || ()).await;
    assert_eq!(report.violations, [""; 0], "seed {seed}");
    assert!(report.words > 0, "the sessions were busy");
}

#[tokio::test]
async fn a_killed_program_loses_nothing_of_fifty_busy_sessions() {
    survives(1, &[Target::Program; 2], Backend::Sqlite).await;
}

#[tokio::test]
async fn a_killed_server_loses_nothing_of_fifty_busy_sessions_but_what_a_gap_names() {
    survives(5, &[Target::Server, Target::Program], Backend::Sqlite).await;
}

#[tokio::test]
async fn a_killed_database_and_a_killed_server_lose_nothing_but_what_a_gap_names() {
    let Some(cluster) = Cluster::start_with(&[], &["synchronous_commit=on"]).await else { return };
    let cluster = Arc::new(cluster);
    survives(3, &[Target::Database, Target::Server], Backend::Postgres(cluster.clone())).await;
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
}
