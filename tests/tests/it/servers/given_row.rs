//! The row of given servers is itself shown to work: in a process of its own, with the variables set, as users run it.

use std::{env, process::Stdio, time::Duration};

use mock_server::{MockServer, ProcessAgent};
use sdk_tests::{ReleasedServer, ReleasedSetup};
use tokio::process::Command;

use super::server::{STUB, released};

/// How long the row may take as a whole.
const ROW_LIMIT: Duration = Duration::from_secs(180);
const TOKEN: &str = "of the given server";

/// Runs the row, and fails the test unless all of it passes and so many of its tests said that they do not apply.
async fn row_passes(url: &str, token: &str, agent: &str, not_applicable: usize) {
    let mut row = Command::new(env::current_exe().expect("this program"));
    row.arg("servers::what_sandbox_agent_url_points_at::")
        .env("SANDBOX_AGENT_URL", url)
        .env("SANDBOX_AGENT_TOKEN", token)
        .env("SANDBOX_AGENT_AGENT", agent)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(ROW_LIMIT, row.output()).await.expect("the row ends");
    let output = output.expect("the row can be run");
    let (told, noted) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}{noted}");
    let passed = told.lines().filter(|line| line.starts_with("test servers::what_") && line.ends_with(" ok"));
    assert_eq!(passed.count(), 20, "{told}");
    let left_out: Vec<&str> = noted.lines().filter(|line| line.starts_with("NOT RUN: ")).collect();
    assert_eq!(left_out.len(), not_applicable, "{left_out:#?}");
    assert!(left_out.iter().all(|line| line.contains(": not applicable: ")), "{left_out:#?}");
}

#[tokio::test]
async fn the_row_runs_against_a_released_server_in_a_process_of_its_own() {
    let Some(program) = released("0.4.2").await else { return };
    let (agent, token) = (vec![STUB.to_owned()], Some(TOKEN.to_owned()));
    let server = ReleasedServer::start(ReleasedSetup { program, agent, token, request_limit: None }).await;
    row_passes(&server.url(), TOKEN, "mock", 0).await;
}

/// The agent that clients share is not killed, as others need it.
#[tokio::test]
async fn the_row_runs_against_a_shared_endpoint_with_an_agent_of_another_name() {
    let server = MockServer::builder().agent("another", ProcessAgent::new(STUB)).token(TOKEN).start().await;
    row_passes(&server.url(), TOKEN, "another", 4).await;
}

/// The agent may be any: then what only the words can show is left out.
#[tokio::test]
async fn the_row_runs_with_an_agent_that_does_not_know_the_words() {
    let server = MockServer::builder().start().await;
    row_passes(&server.url(), "", "mock", 14).await;
}
