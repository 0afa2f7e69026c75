//! Creates a session, sends a prompt, and prints the agent's text as it arrives.
//!
//! Runs against an embedded server, or against the server at `SANDBOX_AGENT_URL` (with `SANDBOX_AGENT_TOKEN`
//! and `SANDBOX_AGENT_AGENT`, if required). The prompt can be given on the command line.

use std::{env, io::Write};

use sandbox_agent_sdk::text::printable;
use sandbox_agent_sdk::{Error, NewSession, SandboxAgentClient};
use sdk_examples::Server;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let server = Server::find().await;
    let prompt = env::args().nth(1).unwrap_or_else(|| "say hello to the reader".to_owned());

    let mut options = SandboxAgentClient::builder(&server.url).agent(&server.agent);
    if let Some(token) = &server.token {
        options = options.token(token);
    }
    // The client connects in the background; the first call waits for the connection.
    let client = options.build()?;
    let session = client.new_session(NewSession::in_dir("/").title("quickstart")).await?;
    println!("[session {} with `{}` at {}]", printable(session.id()), server.agent, server.url);

    let mut turn = session.prompt(prompt);
    while let Some(update) = turn.next().await {
        print!("{update}");
        // Shows each chunk immediately instead of line by line.
        let _ = std::io::stdout().flush();
    }
    match turn.outcome().await {
        Ok(outcome) => println!("\n[{}]", outcome.stop_reason),
        Err(error) => match error.termination() {
            // The exit code, the signal and the last lines of the agent's stderr.
            Some(end) => eprintln!("\n[the agent died: {end}]"),
            None => return Err(error),
        },
    }
    client.disconnect().await
}
