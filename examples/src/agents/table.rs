//! A table of the agents on this machine.

use std::error::Error;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use mock_server::MockServer;
use sandbox_agent_sdk::SandboxAgentClient;
use sandbox_agent_sdk::connection::Capabilities;
use unicode_width::UnicodeWidthStr;

use super::{KNOWN_AGENTS, KnownAgent};
use crate::chat::Plain;
use crate::random_token;

/// How many of the last lines of standard error are shown of an agent that failed to start.
const STDERR_LINES: usize = 5;

/// The headings of the columns.
const HEADINGS: [&str; 9] =
    ["agent", "version", "load", "resume", "fork", "list", "close", "images", "log in by"];
/// The columns of the version. A longer version moves the rest of its row.
const VERSION_COLUMNS: usize = 10;

/// A row of the table.
enum Row {
    /// The cells of an agent that was started.
    Cells(Vec<String>),
    /// Why an agent was not started, in one line or more.
    Reason(&'static str, Vec<String>),
}

/// Starts every installed agent, and passes the lines of a table of their versions and capabilities to `show`.
///
/// The row of an agent is shown when the agent has responded: one that does not respond delays no other row.
pub async fn table(mut show: impl FnMut(&str)) {
    let names = KNOWN_AGENTS.iter().map(|agent| agent.name.width());
    let mut widths = HEADINGS.map(UnicodeWidthStr::width);
    widths[0] = names.fold(widths[0], usize::max);
    widths[1] = VERSION_COLUMNS;
    show(&lines(&Row::Cells(HEADINGS.map(str::to_owned).to_vec()), &widths));
    let mut rows: FuturesUnordered<_> = KNOWN_AGENTS.iter().map(row).collect();
    while let Some(row) = rows.next().await {
        show(&lines(&row, &widths));
    }
}

/// Returns the lines of a row.
fn lines(row: &Row, widths: &[usize]) -> String {
    let padded =
        |cell: &str, width: usize| format!("{cell}{}", " ".repeat(width.saturating_sub(cell.width())));
    match row {
        Row::Cells(cells) => {
            let cells: Vec<String> =
                cells.iter().zip(widths).map(|(cell, width)| padded(cell, *width)).collect();
            format!("{}\n", cells.join("  ").trim_end())
        }
        Row::Reason(name, lines) => {
            let indent = format!("\n{}    ", " ".repeat(widths[0]));
            format!("{}  {}\n", padded(name, widths[0]), lines.join(&indent))
        }
    }
}

/// Returns the row of an agent.
async fn row(agent: &KnownAgent) -> Row {
    let reason =
        |lines: Vec<String>| Row::Reason(agent.name, lines.iter().map(|line| Plain::line(line)).collect());
    if agent.find().is_err() {
        return reason(vec![format!("not installed: {}", agent.install_command())]);
    }
    match connect(agent).await {
        Ok(capabilities) => Row::Cells(capability_row(agent, &capabilities)),
        Err(error) => reason(why(&*error)),
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

/// Returns why an agent failed to start: the end of its process with the last lines of its standard error, or an error
/// with its causes in one line.
fn why(error: &(dyn Error + 'static)) -> Vec<String> {
    let end =
        error.downcast_ref::<sandbox_agent_sdk::Error>().and_then(sandbox_agent_sdk::Error::termination);
    if let Some(end) = end {
        let stderr = end.last_stderr_lines(STDERR_LINES).into_iter().map(str::to_owned);
        return [format!("failed to start: {error}")].into_iter().chain(stderr).collect();
    }
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    texts.dedup();
    vec![format!("failed to start: {}", texts.join(": "))]
}

fn capability_row(agent: &KnownAgent, can: &Capabilities) -> Vec<String> {
    let yes = |able: bool| if able { "yes" } else { "no" }.to_owned();
    let logins = if can.auth_methods.is_empty() { "-".to_owned() } else { can.auth_methods.join(", ") };
    // The agent chooses these texts.
    let logins = Plain::line(&logins);
    let version = can.agent_version.as_deref().map_or("?".to_owned(), Plain::line);
    vec![
        agent.name.to_owned(),
        version,
        yes(can.load_session),
        yes(can.resume_session),
        yes(can.fork_session),
        yes(can.list_sessions),
        yes(can.close_session),
        yes(can.images),
        logins,
    ]
}
