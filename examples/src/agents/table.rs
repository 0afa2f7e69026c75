//! A table of the agents on this machine.

use std::error::Error;
use std::time::Duration;

use futures::future::join_all;
use mock_server::MockServer;
use sandbox_agent_sdk::SandboxAgentClient;
use sandbox_agent_sdk::connection::Capabilities;

use super::{KNOWN_AGENTS, KnownAgent};
use crate::random_token;

/// The timeout of starting an agent and connecting to it.
const START: Duration = Duration::from_secs(30);

/// Starts every installed agent, and returns a table of their versions and capabilities.
pub async fn table() -> String {
    let rows = join_all(KNOWN_AGENTS.iter().map(row)).await;
    let heading = ["agent", "version", "load", "resume", "fork", "list", "close", "images", "log in by"];
    let table: Vec<Vec<String>> = [heading.map(str::to_owned).to_vec()].into_iter().chain(rows).collect();
    let columns = heading.len();
    // If an agent cannot be run, the second cell contains the reason.
    let is_measured = |row: &&Vec<String>, column: usize| row.len() == columns || column == 0;
    let width = |column: usize| {
        table.iter().filter(|row| is_measured(row, column)).map(|row| row[column].len()).max()
    };
    let lines = table.iter().map(|row| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column).unwrap_or_default();
            format!("{cell:<width$}")
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    });
    lines.collect()
}

/// Returns the row of an agent; a shorter one if the agent does not start.
async fn row(agent: &KnownAgent) -> Vec<String> {
    let shorter = |text: String| vec![agent.name.to_owned(), text];
    if agent.find().is_err() {
        return shorter(format!("not installed: {}", agent.install_command()));
    }
    match tokio::time::timeout(START, connect(agent)).await {
        Ok(Ok(capabilities)) => capability_row(agent, &capabilities),
        Ok(Err(error)) => shorter(format!("failed to start: {}", with_causes(&*error))),
        Err(_) => shorter(format!("no response within {START:?}")),
    }
}

/// Starts an agent on an embedded server and returns what it can do.
async fn connect(agent: &KnownAgent) -> Result<Capabilities, Box<dyn Error>> {
    let token = random_token()?;
    let server = MockServer::builder().token(&token).agent(agent.name, agent.process()?).try_start().await?;
    let options = SandboxAgentClient::builder(server.url()).agent(agent.name).token(token);
    // Logging in may open a browser.
    let client = options.auto_connect(false).auto_authenticate(false).build()?;
    Ok((*client.connect().await?).clone())
}

/// Returns an error with its causes, in one line.
fn with_causes(error: &dyn Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    texts.dedup();
    texts.join(": ").lines().map(str::trim).collect::<Vec<_>>().join(" ")
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
