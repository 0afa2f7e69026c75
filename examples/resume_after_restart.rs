//! A program that is ended in the middle of its work, and one that goes on where it stopped.
//!
//! Sessions are kept in one SQLite file. The first program makes a session, the server loses everything it knew, and the
//! second program takes the session up again under the same id.

use mock_server::State;
use sandbox_agent_sdk::sessions::{RecordQuery, SqliteStore, Suspend};
use sandbox_agent_sdk::{Error, NewSession, SandboxAgentClient};
use sdk_examples::Server;

/// What a program does when it starts: connect, and take up the thread it is about.
async fn program(server: &Server, file: &std::path::Path) -> Result<SandboxAgentClient, Error> {
    let store = SqliteStore::open(file).await?;
    let mut options = SandboxAgentClient::builder(&server.url).agent(&server.agent).store(store);
    if let Some(token) = &server.token {
        options = options.token(token);
    }
    options.build()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let server = Server::find().await;
    let directory = tempfile::tempdir().map_err(|error| Error::Config(error.to_string()))?;
    let file = directory.path().join("sessions.db");

    println!("== the first program");
    let client = program(&server, &file).await?;
    let session = client.sessions().resume_or_create("thread-42", NewSession::in_dir("/")).await?;
    println!("{}: {}", session.id(), session.prompt("remember the number seven").await?.text().await?);
    // In good order: everything is stored, and active sessions are suspended.
    let suspended = client.sessions().shut_down(Suspend::All).await?;
    println!("{suspended} session suspended");
    drop((session, client));

    if let Some(embedded) = &server.embedded {
        println!("== the server restarts and has lost its memory");
        embedded.restart(State::Lost).await;
    }

    println!("== the second program");
    let client = program(&server, &file).await?;
    for record in client.sessions().list(RecordQuery::default()).await?.records {
        println!("{} is {} with {} events", record.id, record.status, record.last_index);
    }
    let session = client.sessions().resume_or_create("thread-42", NewSession::in_dir("/")).await?;
    println!("{}: {}", session.id(), session.prompt("which number was it?").await?.text().await?);
    client.sessions().flush().await?;
    for event in session.stored_events(0).await?.events {
        println!("{:>3} {}", event.index, event.kind);
    }
    client.disconnect().await
}
