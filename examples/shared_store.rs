//! Two programs share one PostgreSQL database: one creates and releases a session, the other acquires it.
//!
//! The example starts itself a second time as the other program. It uses the database at `DATABASE_URL`, or starts a
//! temporary server if PostgreSQL is installed.

use std::process::Command;

use sandbox_agent_sdk::sessions::{PostgresStore, RecordQuery};
use sandbox_agent_sdk::text::printable;
use sandbox_agent_sdk::{Error, NewSession};
use sdk_examples::{Cluster, Server};

/// Runs the other program.
async fn other_program(database: &str) -> Result<(), Error> {
    let store = PostgresStore::open(database).await?;
    let client = Server::find().await.options().build()?.with_store(store);
    let session = client.session("shared");
    if let Some(restored) = session.resume().await? {
        println!("  other program: {} is restored by {}", session.id(), restored.by);
    }
    let text = session.prompt("and from the other one").await?.text().await?;
    println!("  other program: {}", printable(&text));
    client.disconnect().await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [database] = &arguments[..] {
        return other_program(database).await;
    }
    let Some(cluster) = Cluster::find().await else {
        println!("This example needs PostgreSQL: set DATABASE_URL, or install PostgreSQL with initdb.");
        return Ok(());
    };
    let schema = cluster.schema().await;
    let server = Server::find().await;
    let store = PostgresStore::open(&schema.url).await?;
    let sessions = server.options().build()?.with_store(store);
    let session =
        sessions.new_session_as("shared", NewSession::in_dir("/").title("one conversation")).await?;
    let text = session.prompt("hello from one program").await?.text().await?;
    println!("this program: {}", printable(&text));

    session.release().await?;
    let database = schema.url.clone();
    let other = std::env::current_exe().map_err(|error| Error::Config(error.to_string()))?;
    let mut command = Command::new(other);
    command.arg(database).env("SANDBOX_AGENT_URL", &server.url).env("SANDBOX_AGENT_AGENT", &server.agent);
    let ended = tokio::task::spawn_blocking(move || command.status());
    assert!(ended.await.is_ok_and(|status| status.is_ok_and(|status| status.success())));

    for record in sessions.list(RecordQuery::default()).await?.records {
        println!("{} has {} events, in order:", record.id, record.last_index);
    }
    for event in sessions.session("shared").stored_events(0).await?.events {
        println!("{:>3} {}", event.index, event.kind);
    }
    sessions.store().close().await;
    schema.remove().await;
    sessions.client().disconnect().await
}
