//! The protocol client without the SDK: `acp-http-client` works with any Agent Client Protocol server.
//!
//! Runs against an embedded server, or against the server at `ACP_URL`.

use std::env;

use acp_http_client::{
    AcpHttpClient, AgentHandler, Call, Error, Event, RpcError,
    schema::v1::{
        ContentBlock, NewSessionRequest, PromptRequest, RequestPermissionOutcome, RequestPermissionRequest,
        RequestPermissionResponse, SelectedPermissionOutcome, SessionUpdate, TextContent,
    },
};
use mock_server::MockServer;

/// Allows every request once and prints it.
struct Generous;

impl AgentHandler for Generous {
    async fn request_permission(
        &self,
        call: Call<RequestPermissionRequest>,
    ) -> Result<RequestPermissionResponse, RpcError> {
        let Some(option) = call.options.first() else {
            return Ok(RequestPermissionResponse::new(RequestPermissionOutcome::Cancelled));
        };
        println!("[permission request; responding with `{}`]", option.name);
        let option = SelectedPermissionOutcome::new(option.option_id.clone());
        Ok(RequestPermissionResponse::new(RequestPermissionOutcome::Selected(option)))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let embedded = MockServer::builder().default_agent("mock").start().await;
    let url = env::var("ACP_URL").unwrap_or_else(|_| embedded.url());
    let client = AcpHttpClient::builder(url).handler(Generous).build()?;
    let mut events = client.events();

    let hello = client.initialize(AcpHttpClient::initialize_request()).await?;
    println!("[protocol {:?}, agent {:?}]", hello.protocol_version, hello.agent_info.map(|agent| agent.name));
    let session = client.new_session(NewSessionRequest::new("/")).await?.session_id;

    let text = ContentBlock::Text(TextContent::new("a question that needs permission"));
    let turn = client.prompt(PromptRequest::new(session, vec![text]));
    let printer = tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            match event {
                Event::Update(update) => match update.update() {
                    Some(SessionUpdate::AgentMessageChunk(_)) => {
                        print!("{}", update.message_text().unwrap_or("…"))
                    }
                    Some(other) => println!("[{other:?}]"),
                    None => println!("[unknown update: {}]", update.content.raw()),
                },
                Event::State(state) => println!("[connection {state}]"),
                _ => {}
            }
        }
    });
    let reply = turn.await?;
    println!("\n[{}]", reply.raw());
    println!("[closed: {:?}]", client.close().await);
    printer.await.unwrap_or_default();
    Ok(())
}
