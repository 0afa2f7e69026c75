//! Continues a stored session after a restart of the program and of the server.
//!
//! Sessions are stored in a SQLite file. The first program creates a session, the server loses its state, and the second
//! program acquires the session under the same id.

use mock_server::State;
use sandbox_agent_sdk::sessions::{RecordQuery, SqliteStore, StoredClient, Suspend};
use sandbox_agent_sdk::text::printable;
use sandbox_agent_sdk::{Error, NewSession, SandboxAgentClient};
use sdk_examples::Server;

/// Opens the store and creates a client, like a program at its start.
async fn program(server: &Server, file: &std::path::Path) -> Result<StoredClient, Error> {
    let store = SqliteStore::open(file).await?;
    let mut options = SandboxAgentClient::builder(&server.url).agent(&server.agent);
    if let Some(token) = &server.token {
        options = options.token(token);
    }
    Ok(options.build()?.with_store(store))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let server = Server::find().await;
    let directory = tempfile::tempdir().map_err(|error| Error::Config(error.to_string()))?;
    let file = directory.path().join("sessions.db");

    println!("== the first program");
    let client = program(&server, &file).await?;
    let session = client.resume_or_create("thread-42", NewSession::in_dir("/")).await?;
    let text = session.prompt("remember the number seven").await?.text().await?;
    println!("{}: {}", session.id(), printable(&text));
    // Stores all pending events and suspends the sessions of this program.
    let suspended = client.shut_down(Suspend::Own).await?;
    println!("{suspended} session suspended");
    drop((session, client));

    if let Some(embedded) = &server.embedded {
        println!("== the server restarts without its state");
        embedded.restart(State::Lost).await;
    }

    println!("== the second program");
    let client = program(&server, &file).await?;
    for record in client.list(RecordQuery::default()).await?.records {
        println!("{} is {} with {} events", record.id, record.status, record.last_index);
    }
    let session = client.resume_or_create("thread-42", NewSession::in_dir("/")).await?;
    let text = session.prompt("which number was it?").await?.text().await?;
    println!("{}: {}", session.id(), printable(&text));
    client.flush().await?;
    for event in session.stored_events(0).await?.events {
        println!("{:>3} {}", event.index, event.kind);
    }
    client.disconnect().await
}
