//! Session metadata: the title, the model, and the application's own keys.
//!
//! Runs against an embedded server, or against the server at `SANDBOX_AGENT_URL` (with `SANDBOX_AGENT_TOKEN` and
//! `SANDBOX_AGENT_AGENT`, if required). Released servers do not store metadata; the example then prints that.

use sandbox_agent_sdk::connection::Feature;
use sandbox_agent_sdk::session::{ListSessions, MetadataKey, SessionMetadata};
use sandbox_agent_sdk::text::printable;
use sandbox_agent_sdk::{Error, NewSession, SandboxAgentClient};
use sdk_examples::Server;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let server = Server::find().await;
    let mut options = SandboxAgentClient::builder(&server.url).agent(&server.agent).auto_connect(false);
    if let Some(token) = &server.token {
        options = options.token(token);
    }
    let client = options.build()?;
    let can = client.connect().await?;
    println!("agent {}, server kind \"{}\"", can.agent, can.server);
    if !client.supports(Feature::SetMetadata).is_possible() {
        println!("this server does not store metadata");
        return client.disconnect().await;
    }

    let new = NewSession::in_dir("/work").title("fix the build").model("mock").metadata("ticket", 4711);
    let session = client.new_session(new).await?;
    show(&client).await?;

    // A patch changes only the keys that it contains. `null` restores the agent's default model.
    let patch = SessionMetadata::new()
        .with_title("fixed")
        .with("reviewers", vec!["ada", "grace"])
        .with_null(MetadataKey::Model);
    session.set_metadata(patch).await?;
    show(&client).await?;

    let models = session.list_models().await?;
    let names: Vec<_> = models.available.iter().map(|model| model.label()).collect();
    println!("models: {names:?}, in use: {:?}", models.current);
    session.terminate().await?;
    show(&client).await?;
    client.disconnect().await
}

async fn show(client: &SandboxAgentClient) -> Result<(), Error> {
    let mut sessions = client.list_sessions(ListSessions::in_dir("/work"));
    while let Some(session) = sessions.next().await {
        let session = session?;
        let title = session.title.as_deref().unwrap_or("untitled");
        println!("{} \"{}\"", printable(&session.session_id), printable(title));
        for (key, value) in session.metadata.unknown() {
            println!("  {}: {}", printable(key), printable(&value.to_string()));
        }
        match &session.termination_info {
            Some(end) => println!("  ended: {end}"),
            None => println!("  model: {:?}", session.model),
        }
    }
    Ok(())
}
