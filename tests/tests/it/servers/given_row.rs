//! Tests the row of external servers itself: in a separate process with the variables set, as users run it.

use std::{env, process::Stdio, time::Duration};

use mock_server::{MockServer, ProcessAgent};
use sdk_tests::{ReleasedServer, ReleasedSetup};
use tokio::process::Command;

use super::server::{STUB, released};

/// The timeout of the whole row.
const ROW_LIMIT: Duration = Duration::from_secs(180);
const TOKEN: &str = "token-of-the-external-server";

/// Runs the row. Checks that all its tests pass and that this many report that they do not apply.
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
    let (printed, noted) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}{noted}");
    let passed =
        printed.lines().filter(|line| line.starts_with("test servers::what_") && line.ends_with(" ok"));
    assert_eq!(passed.count(), 20, "{printed}");
    let left_out: Vec<&str> = noted.lines().filter(|line| line.starts_with("NOT RUN: ")).collect();
    assert_eq!(left_out.len(), not_applicable, "{left_out:#?}");
    assert!(left_out.iter().all(|line| line.contains(": not applicable: ")), "{left_out:#?}");
}

#[tokio::test]
async fn the_row_runs_against_a_released_server_in_a_separate_process() {
    let Some(program) = released("0.4.2").await else { return };
    let (agent, token) = (vec![STUB.to_owned()], Some(TOKEN.to_owned()));
    let server = ReleasedServer::start(ReleasedSetup { program, agent, token, request_limit: None }).await;
    row_passes(&server.url(), TOKEN, "mock", 0).await;
}

/// An agent that clients share is not killed.
#[tokio::test]
async fn the_row_runs_against_a_shared_endpoint_with_an_agent_of_another_name() {
    let server = MockServer::builder().agent("another", ProcessAgent::new(STUB)).token(TOKEN).start().await;
    row_passes(&server.url(), TOKEN, "another", 4).await;
}

/// With any other agent, the tests that need directives do not apply.
#[tokio::test]
async fn the_row_runs_with_an_agent_that_ignores_the_directives() {
    let server = MockServer::builder().start().await;
    row_passes(&server.url(), "", "mock", 14).await;
}
