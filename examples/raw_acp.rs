//! The protocol client without the SDK: a permission request, a cancel, and how missing events are reported.
//!
//! Runs against an embedded server, or against the server at `ACP_URL`, which must support `Dialect::RPC`.

use std::env;

use acp_http_client::{
    AcpHttpClient, AgentHandler, Call, Dialect, Error, Event, RpcError, SessionHandle, schema::v1 as acp,
};
use mock_server::MockServer;

/// Allows every tool call once, and prints it.
struct AllowOnce;

impl AgentHandler for AllowOnce {
    async fn request_permission(
        &self,
        call: Call<acp::RequestPermissionRequest>,
    ) -> Result<acp::RequestPermissionResponse, RpcError> {
        let once = call.options.iter().find(|option| option.kind == acp::PermissionOptionKind::AllowOnce);
        let outcome = match once {
            Some(option) => {
                println!("[permission request: {:?}]", option.name);
                let selected = acp::SelectedPermissionOutcome::new(option.option_id.clone());
                acp::RequestPermissionOutcome::Selected(selected)
            }
            None => acp::RequestPermissionOutcome::Cancelled,
        };
        Ok(acp::RequestPermissionResponse::new(outcome))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    // This replay buffer is small: a reader that is slow during the last prompt misses events, a fast one does not.
    let embedded = MockServer::builder().default_agent("mock").replay_buffer(100).start().await;
    let url = env::var("ACP_URL").unwrap_or_else(|_| embedded.url());
    // Only numbered events reveal gaps, so the dialect must be set.
    let client = AcpHttpClient::builder(url).dialect(Dialect::RPC).handler(AllowOnce).build()?;
    let hello = client.initialize(AcpHttpClient::initialize_request()).await?;
    println!("[protocol {:?}, agent {:?}]", hello.protocol_version, hello.agent_info.map(|agent| agent.name));
    let created = client.new_session(acp::NewSessionRequest::new("/")).await?;
    let session = client.session(created.session_id);

    run(&session, "a question that needs permission", None).await?;
    run(&session, "a slow answer that is cancelled", Some(3)).await?;
    run(&session, "a big answer", None).await?;
    println!("[closed: {:?}]", client.close().await);
    Ok(())
}

/// Runs one turn and cancels it after this many chunks of the message.
async fn run(session: &SessionHandle, text: &str, cancel_after: Option<usize>) -> Result<(), Error> {
    println!("> {text}");
    let mut turn = session.prompt(vec![text.into()]);
    let mut chunks = 0;
    while let Some(event) = turn.recv().await {
        match event {
            Event::Update(update) if update.message_text().is_some() => {
                chunks += 1;
                if cancel_after == Some(chunks) {
                    session.cancel().await?;
                }
            }
            Event::Gap { from, to, .. } => println!("[events {from} to {to} are missing: load the session]"),
            _ => {}
        }
    }
    let response = turn.response().await?;
    println!("[{chunks} chunks, then {:?}]", response.known().map(|known| &known.stop_reason));
    Ok(())
}
