//! Lists the sessions that can be resumed.

use std::collections::HashMap;

use sandbox_agent_sdk::session::{ListSessions, SessionInfo};
use sandbox_agent_sdk::{Error, SandboxAgentClient};

use super::line::{Line, Style};
use super::talk::Done;

/// How many sessions are listed.
const LISTED: usize = 30;

/// A session that can be resumed.
#[derive(Clone)]
pub(super) struct Listed {
    pub(super) id: String,
    /// The directory that the session works in, if the server or the agent reports it.
    pub(super) directory: Option<String>,
    pub(super) line: Line,
}

/// Lists the sessions of the server and of the agent.
pub(super) async fn list_sessions(
    client: SandboxAgentClient,
    lister: Option<SandboxAgentClient>,
    present: String,
    titles: HashMap<String, String>,
) -> Result<Done, Error> {
    let mut infos = first_sessions(&client).await?;
    // Starting an agent only to learn that it lists no sessions has side effects: gemini removes old sessions.
    let lists = client.capabilities().is_some_and(|can| can.list_sessions);
    if let Some(lister) = lister.filter(|_| lists) {
        // The agent knows titles and earlier sessions. A failure of the second process is not an error.
        for info in sessions_of_agent(&lister).await {
            match infos.iter_mut().find(|known| known.session_id == info.session_id) {
                Some(known) => {
                    known.title = info.title.or(known.title.take());
                    known.directory = info.directory.or(known.directory.take());
                }
                None => infos.push(info),
            }
        }
    }
    infos.truncate(LISTED);
    let sessions = infos.into_iter().map(|info| {
        let title = info.title.clone().filter(|title| !title.is_empty());
        let title = title.or_else(|| titles.get(&info.session_id).cloned());
        let title = title.unwrap_or_else(|| info.session_id.clone());
        let mut line = Line::new(Style::Normal, &title);
        if title != info.session_id {
            line = line.with(Style::Dim, &format!("  {}", info.session_id));
        }
        if let Some(directory) = &info.directory {
            line = line.with(Style::Dim, &format!("  {directory}"));
        }
        if info.session_id == present {
            line = line.with(Style::Good, "  this one");
        } else if info.has_ended() {
            line = line.with(Style::Dim, "  ended");
        }
        Listed { id: info.session_id, directory: info.directory, line }
    });
    Ok(Done::Sessions(sessions.collect()))
}

async fn first_sessions(client: &SandboxAgentClient) -> Result<Vec<SessionInfo>, Error> {
    let mut list = client.list_sessions(ListSessions::all());
    let mut sessions = Vec::new();
    while sessions.len() < LISTED {
        let Some(info) = list.next().await else { break };
        sessions.push(info?);
    }
    Ok(sessions)
}

/// Lists the sessions with a separate process of the agent.
async fn sessions_of_agent(lister: &SandboxAgentClient) -> Vec<SessionInfo> {
    let listed = match lister.connect().await {
        Ok(_) => first_sessions(lister).await,
        Err(error) => Err(error),
    };
    // The process is no longer needed.
    let _ = lister.disconnect().await;
    listed.unwrap_or_default()
}
