//! Lists the coding agents on this machine with their versions and capabilities.
//!
//! Starts every installed agent on an embedded server, connects, and prints a table. Agents that are not installed
//! are listed with their install command. No prompt is sent to a model.

use std::time::Duration;

use futures::future::join_all;
use mock_server::MockServer;
use sandbox_agent_sdk::SandboxAgentClient;
use sandbox_agent_sdk::connection::Capabilities;
use sdk_examples::agents::{KNOWN_AGENTS, KnownAgent};

/// The timeout of starting an agent and connecting to it.
const START: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() {
    let rows = join_all(KNOWN_AGENTS.iter().map(row)).await;
    let heading = ["agent", "version", "load", "resume", "fork", "list", "close", "images", "log in by"];
    let table: Vec<Vec<String>> = [heading.map(str::to_owned).to_vec()].into_iter().chain(rows).collect();
    let columns = heading.len();
    // If an agent cannot be run, the second cell contains the reason.
    let is_measured = |row: &&Vec<String>, column: usize| row.len() == columns || column == 0;
    let width = |column: usize| {
        table.iter().filter(|row| is_measured(row, column)).map(|row| row[column].len()).max()
    };
    for row in &table {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column).unwrap_or_default();
            format!("{cell:<width$}")
        });
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    println!("\nTo chat with an agent: cargo run --example chat -- --agent NAME");
}

/// Returns the row of an agent; a shorter one if the agent does not start.
async fn row(agent: &KnownAgent) -> Vec<String> {
    let process = match agent.process() {
        Ok(process) => process,
        Err(_) => return vec![agent.name.to_owned(), format!("not installed: {}", agent.install_command())],
    };
    let server = MockServer::builder().agent(agent.name, process).start().await;
    let connected = async {
        let options = SandboxAgentClient::builder(server.url()).agent(agent.name);
        // Logging in may open a browser.
        let client = options.auto_connect(false).auto_authenticate(false).build()?;
        client.connect().await
    };
    match tokio::time::timeout(START, connected).await {
        Ok(Ok(capabilities)) => capability_row(agent, &capabilities),
        Ok(Err(error)) => vec![agent.name.to_owned(), format!("failed to start: {error}")],
        Err(_) => vec![agent.name.to_owned(), format!("no response within {START:?}")],
    }
}

fn capability_row(agent: &KnownAgent, can: &Capabilities) -> Vec<String> {
    let yes = |able: bool| if able { "yes" } else { "no" }.to_owned();
    let logins = if can.auth_methods.is_empty() { "-".to_owned() } else { can.auth_methods.join(", ") };
    vec![
        agent.name.to_owned(),
        can.agent_version.clone().unwrap_or_else(|| "?".to_owned()),
        yes(can.load_session),
        yes(can.resume_session),
        yes(can.fork_session),
        yes(can.list_sessions),
        yes(can.close_session),
        yes(can.images),
        logins,
    ]
}
