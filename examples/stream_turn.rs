//! One turn, update by update: reasoning, tool calls, text, and a permission request.
//!
//! Runs against an embedded server, or against the server at `SANDBOX_AGENT_URL` (with `SANDBOX_AGENT_TOKEN`
//! and `SANDBOX_AGENT_AGENT`, if required).

use std::env;

use sandbox_agent_sdk::requests::PermissionReply;
use sandbox_agent_sdk::text::printable;
use sandbox_agent_sdk::{Error, Event, NewSession, SandboxAgentClient, Session, UpdateKind};
use sdk_examples::Server;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let server = Server::find().await;
    let prompt = env::args().nth(1).unwrap_or_else(|| "ask for a permission and then say hello".to_owned());
    let mut options = SandboxAgentClient::builder(&server.url).agent(&server.agent);
    if let Some(token) = &server.token {
        options = options.token(token);
    }
    let client = options.build()?;
    let session = client.new_session(NewSession::in_dir("/")).await?;

    // A deciding subscription can respond to permission requests. Without one they are rejected.
    let permissions = tokio::spawn(answer_permissions(session.clone()));

    let mut turn = session.prompt(prompt);
    while let Some(update) = turn.next().await {
        // Agent text may contain terminal escapes; `printable` makes it safe to print.
        match update.kind() {
            UpdateKind::Message(chunk) => {
                println!("says   {}", printable(chunk.text().unwrap_or("(no text)")))
            }
            UpdateKind::Thought(chunk) => {
                println!("thinks {}", printable(chunk.text().unwrap_or("(no text)")))
            }
            UpdateKind::ToolCall(call) => {
                println!("tool   {}", printable(call.title.as_deref().unwrap_or(&call.id)));
            }
            UpdateKind::ToolCallUpdate(call) => {
                println!("tool   {} is {:?}", printable(&call.id), call.status)
            }
            // Updates of unknown kinds are available as JSON.
            _ => println!("other  {}", printable(&update.raw().to_string())),
        }
    }
    println!("ended  {}", turn.outcome().await?.stop_reason);
    permissions.abort();
    client.disconnect().await
}

/// Allows every request once. For demonstration only.
async fn answer_permissions(session: Session) {
    let mut events = session.events().deciding();
    while let Some(event) = events.next().await {
        if let Event::Permission(request) = event {
            let title = request.tool_call().and_then(|call| call.title.clone()).unwrap_or_default();
            match request.reply(PermissionReply::Once) {
                Ok(()) => println!("allow  {}", printable(&title)),
                Err(error) => println!("allow  {}: {error}", printable(&title)),
            }
        }
    }
}
