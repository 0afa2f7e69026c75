//! A server, a client and a session with few words.

use std::future::IntoFuture;

use acp_http_client::{
    AcpHttpClient, AcpHttpClientBuilder, Dialect, Error, Typed,
    schema::v1::{ContentBlock, NewSessionRequest, PromptRequest, PromptResponse, SessionId, TextContent},
};
use futures::future::BoxFuture;
use mock_server::{Builder, MockServer, Script, Step};

/// A server whose agent does these steps with each prompt.
pub fn acp_server(steps: impl Fn(&mock_server::Turn) -> Vec<Step> + Send + Sync + 'static) -> Builder {
    MockServer::builder().agent("mock", Script::new(steps)).default_agent("mock")
}

/// A client for the server, which knows its dialect.
pub fn client(server: &MockServer) -> AcpHttpClientBuilder {
    AcpHttpClient::builder(server.url()).dialect(Dialect::RPC)
}

/// Initializes and opens a session.
///
/// # Panics
/// When the server refuses.
pub async fn session(client: &AcpHttpClient) -> SessionId {
    handshake(client).await.expect("initialize");
    client.new_session(NewSessionRequest::new("/")).await.expect("session/new").session_id
}

/// Initializes.
///
/// # Errors
/// Whatever the call fails with.
pub async fn handshake(client: &AcpHttpClient) -> Result<(), Error> {
    client.initialize(AcpHttpClient::initialize_request()).await.map(drop)
}

/// A prompt with this text.
pub fn prompt(
    client: &AcpHttpClient,
    session: &SessionId,
    text: &str,
) -> BoxFuture<'static, Result<Typed<PromptResponse>, Error>> {
    let text = ContentBlock::Text(TextContent::new(text));
    client.prompt(PromptRequest::new(session.clone(), vec![text])).into_future()
}

/// Steps that say the numbers from 0.
pub fn numbered(count: usize) -> Vec<Step> {
    (0..count).map(|number| Step::Say(number.to_string())).collect()
}
