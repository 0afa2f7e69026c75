//! Two programs, one PostgreSQL: one makes a session and leaves it, the other goes on with it.
//!
//! The example starts itself a second time as the other program. The database is the one at `DATABASE_URL`, or a
//! throw-away server that is started where PostgreSQL is installed.

use std::process::Command;

use sandbox_agent_sdk::sessions::{Attachment, PostgresStore, RecordQuery};
use sandbox_agent_sdk::{Error, NewSession, SandboxAgentClient};
use sdk_examples::{Cluster, Server};

/// The other program: it gets the attachment as its only argument.
async fn other_program(database: &str, url: &str, attachment: &str) -> Result<(), Error> {
    let attachment: Attachment =
        serde_json::from_str(attachment).map_err(|error| Error::Config(error.to_string()))?;
    let store = PostgresStore::open(database).await?;
    let client =
        SandboxAgentClient::builder(url).agent("mock").store(store).attach(attachment.clone()).build()?;
    let session = client.sessions().attached().await?;
    println!("  other program: {} was left behind event {}", session.id(), attachment.index);
    println!("  other program: {}", session.prompt("and from the other one").await?.text().await?);
    client.disconnect().await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [database, url, attachment] = &arguments[..] {
        return other_program(database, url, attachment).await;
    }
    let Some(cluster) = Cluster::find().await else {
        println!(
            "This example needs PostgreSQL: set DATABASE_URL, or install it so that there is an initdb."
        );
        return Ok(());
    };
    let schema = cluster.schema().await;
    let server = Server::find().await;
    let store = PostgresStore::open(&schema.url).await?;
    let client = SandboxAgentClient::builder(&server.url).agent("mock").store(store).build()?;
    let sessions = client.sessions();
    let session = sessions.create_as("shared", NewSession::in_dir("/").title("one conversation")).await?;
    println!("this program: {}", session.prompt("hello from one program").await?.text().await?);

    // The attachment is plain data: it could as well go through a queue to another machine.
    let attachment = serde_json::to_string(&session.detach().await?).unwrap_or_default();
    let (database, url) = (schema.url.clone(), server.url.clone());
    let other = std::env::current_exe().map_err(|error| Error::Config(error.to_string()))?;
    let ended =
        tokio::task::spawn_blocking(move || Command::new(other).args([database, url, attachment]).status());
    assert!(ended.await.is_ok_and(|status| status.is_ok_and(|status| status.success())));

    for record in sessions.list(RecordQuery::default()).await?.records {
        println!("{} has {} events, all of them in order:", record.id, record.last_index);
    }
    for event in sessions.session("shared").stored_events(0).await?.events {
        println!("{:>3} {}", event.index, event.kind);
    }
    sessions.store().close().await;
    schema.remove().await;
    client.disconnect().await
}
