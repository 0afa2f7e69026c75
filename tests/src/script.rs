//! Helpers to create a server, a client and a session.

use std::future::IntoFuture;

use acp_http_client::{
    AcpHttpClient, AcpHttpClientBuilder, Dialect, Error, Typed,
    schema::v1::{ContentBlock, NewSessionRequest, PromptRequest, PromptResponse, SessionId, TextContent},
};
use futures::future::BoxFuture;
use mock_server::{Builder, MockServer, Script, Step};

/// Returns a server whose agent plays these steps for each prompt.
pub fn acp_server(steps: impl Fn(&mock_server::Turn) -> Vec<Step> + Send + Sync + 'static) -> Builder {
    MockServer::builder().agent("mock", Script::new(steps)).default_agent("mock")
}

/// Returns a client with the dialect of the server.
pub fn client(server: &MockServer) -> AcpHttpClientBuilder {
    // Requests of scripts may name no session.
    AcpHttpClient::builder(server.url()).dialect(Dialect::RPC).all_agent_requests(true)
}

/// Initializes the connection and creates a session.
///
/// # Panics
/// If a call fails.
pub async fn session(client: &AcpHttpClient) -> SessionId {
    handshake(client).await.expect("initialize");
    client.new_session(NewSessionRequest::new("/")).await.expect("session/new").session_id
}

/// Initializes the connection.
///
/// # Errors
/// The error of the call.
pub async fn handshake(client: &AcpHttpClient) -> Result<(), Error> {
    client.initialize(AcpHttpClient::initialize_request()).await.map(drop)
}

/// Returns a prompt with this text.
pub fn prompt(
    client: &AcpHttpClient,
    session: &SessionId,
    text: &str,
) -> BoxFuture<'static, Result<Typed<PromptResponse>, Error>> {
    let text = ContentBlock::Text(TextContent::new(text));
    client.prompt(PromptRequest::new(session.clone(), vec![text])).into_future()
}

/// Returns steps that say the numbers from 0.
pub fn numbered(count: usize) -> Vec<Step> {
    (0..count).map(|number| Step::Say(number.to_string())).collect()
}
