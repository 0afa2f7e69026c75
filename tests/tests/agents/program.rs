//! A program with a stored session, which a row kills.

use std::{io::Write, process::ExitCode};

use sandbox_agent_sdk::sessions::SqliteStore;
use sandbox_agent_sdk::{NewSession, PermissionPolicy, SandboxAgentClient};

/// `URL AGENT DIRECTORY STORE SESSION PROMPT…`: prompts in turn in a stored session, says `done N` after each, and `text`
/// for every text of the last one, which it waits for until it is killed.
pub(crate) async fn run(arguments: &[String]) -> ExitCode {
    let [url, agent, directory, store, session, prompts @ ..] = arguments else { return ExitCode::FAILURE };
    let store = SqliteStore::open(store).await.expect("a store");
    let options = SandboxAgentClient::builder(url).agent(agent);
    let client =
        options.permissions(PermissionPolicy::BypassPermissions).build().expect("a client").with_store(store);
    let new = NewSession::in_dir(directory);
    let session = client.resume_or_create(session, new).await.expect("a stored session");
    for (index, prompt) in prompts.iter().enumerate() {
        let mut turn = session.prompt(prompt.as_str()).await.expect("a turn");
        while let Some(update) = turn.next().await {
            if update.message_text().is_some() {
                say("text");
            }
        }
        turn.outcome().await.expect("the turn ends");
        client.flush().await.expect("everything is stored");
        say(&format!("done {index}"));
    }
    ExitCode::SUCCESS
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("standard output is open");
}
