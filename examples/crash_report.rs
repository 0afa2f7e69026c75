//! An agent that dies in the middle of its answer: what is told, and how it is started anew.
//!
//! Runs against an embedded server, or against the one at `SANDBOX_AGENT_URL` (with `SANDBOX_AGENT_TOKEN` and
//! `SANDBOX_AGENT_AGENT`, if it needs them). The embedded agent dies when a prompt says "crash".

use sandbox_agent_sdk::{Error, Event, NewSession, ResultRules, SandboxAgentClient, TurnFailure};
use sdk_examples::Server;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let server = Server::find().await;
    let mut options = SandboxAgentClient::builder(&server.url).agent(&server.agent);
    if let Some(token) = &server.token {
        options = options.token(token);
    }
    let client = options.build()?;
    let mut events = client.events();
    let session = client.new_session(NewSession::in_dir("/").title("doomed")).await?;

    let mut turn = session.prompt("crash, please");
    while let Some(update) = turn.next().await {
        println!("before the end: {update}");
    }
    match turn.outcome().await {
        Ok(outcome) => println!("it did not crash: {}", outcome.stop_reason),
        Err(error) => {
            let Some(end) = error.termination() else { return Err(error) };
            println!("the agent ended: {end}");
            println!("a crash: {}, exit code: {:?}, signal: {:?}", end.is_crash(), end.exit_code, end.signal);
            let entry = ResultRules::default().classify_failure(&TurnFailure::from(&error));
            println!("a thread shows: {:?} (terminal: {})", entry.kind, entry.is_terminal_error);
        }
    }

    // The same is told once as an event, to everybody who listens.
    while let Some(event) = events.try_next() {
        if let Event::SessionEnded(ended) = event {
            println!("event: session {} ended ({})", ended.session_id, ended.termination.reason);
        }
    }

    // One call starts the agent anew, and the session can be taken up again.
    client.restart_agent().await?;
    let session = client.load_session(session.id(), NewSession::in_dir("/")).await?;
    println!("again: {}", session.prompt("hello").text().await?);
    client.disconnect().await
}
