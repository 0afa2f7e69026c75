//! A CI bot: one prompt, a policy instead of a user, limits, and an exit code for the pipeline.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | the agent finished; its report is on standard output |
//! | 1 | the agent stopped early: it refused, or reached a limit of the model or the budget |
//! | 2 | the turn failed, took too long, or has missing parts; what was received is on standard output |
//! | 75 | nothing ran, for example because the server is unreachable: try again later |
//!
//! Runs against an embedded server, or against the server at `SANDBOX_AGENT_URL`. The prompt is the first argument.

use std::process::ExitCode;
use std::time::Duration;

use sandbox_agent_sdk::text::printable;
use sandbox_agent_sdk::turns::{CollectedTurn, IncompleteTurn};
use sandbox_agent_sdk::usage::Budget;
use sandbox_agent_sdk::{Error, NewSession, PermissionPolicy, SandboxAgentClient, StopReason};
use sdk_examples::Server;

const DEADLINE: Duration = Duration::from_secs(15 * 60);
/// Long enough for an agent that retries a failing model without any output.
const IDLE: Duration = Duration::from_secs(120);

async fn run(prompt: String) -> Result<Result<CollectedTurn, Box<IncompleteTurn>>, Error> {
    let server = Server::find().await;
    let mut options = SandboxAgentClient::builder(&server.url)
        .agent(&server.agent)
        // There is no user to ask: changes of files are allowed, everything else is rejected.
        .permissions(PermissionPolicy::AcceptEdits);
    if let Some(token) = &server.token {
        options = options.token(token);
    }
    let client = options.build()?;
    let session = client.new_session(NewSession::in_dir("/").title("ci")).await?;
    session.set_budget(Budget::new().max_cost(2.0, "USD"));
    let turn = session.prompt(prompt).with_deadline(DEADLINE).with_idle_timeout(IDLE);
    let collected = turn.collect_partial().await;
    // A failed disconnect does not affect the result.
    if let Err(error) = client.disconnect().await {
        eprintln!("failed to disconnect: {error}");
    }
    Ok(collected)
}

/// Prints what the agent reported.
fn show(turn: &CollectedTurn) {
    println!("{}", printable(&turn.text));
    for change in &turn.changes {
        println!("changed {}", printable(&change.path));
    }
}

fn failed(error: &Error) -> ExitCode {
    eprintln!("failed: {error}");
    if let Some(end) = error.termination() {
        // With the last lines of stderr.
        eprintln!("{end}");
    }
    let again = error.is_retryable() && !error.maybe_executed();
    ExitCode::from(if again { 75 } else { 2 })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let prompt = std::env::args().nth(1).unwrap_or_else(|| "edit the changelog".to_owned());
    match run(prompt).await {
        Ok(Ok(turn)) => {
            show(&turn);
            match turn.outcome.map(|outcome| outcome.stop_reason) {
                Some(StopReason::EndTurn) => ExitCode::SUCCESS,
                early => {
                    eprintln!(
                        "stopped early: {}",
                        early.map_or_else(String::new, |reason| reason.to_string())
                    );
                    ExitCode::from(1)
                }
            }
        }
        Ok(Err(turn)) => {
            // Changes that the agent made before it failed remain.
            show(&turn.collected);
            failed(&turn.into())
        }
        Err(error) => failed(&error),
    }
}
