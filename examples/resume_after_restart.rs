//! Resumes a stored session after a restart of the program and of the server.
//!
//! Sessions are stored in a SQLite file. The first program creates a session and exits, the server loses its
//! state, and the second program resumes the session under the same id.

use mock_server::State;
use sandbox_agent_sdk::sessions::{RecordQuery, SqliteStore, Suspend};
use sandbox_agent_sdk::{Error, NewSession, SandboxAgentClient};
use sdk_examples::Server;

/// The start of each program: creates a client with the store.
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
    // A clean shutdown: all events are stored, and the sessions of this program are suspended.
    let suspended = client.sessions().shut_down(Suspend::Own).await?;
    println!("{suspended} session suspended");
    drop((session, client));

    if let Some(embedded) = &server.embedded {
        println!("== the server restarts and has lost its state");
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
