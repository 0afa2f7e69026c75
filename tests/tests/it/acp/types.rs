//! What the compiler promises.

use acp_http_client::{
    AcpHttpClient, AcpHttpClientBuilder, AgentRequest, AgentRequests, CloseOutcome, ConnectionState,
    Diagnostics, Error, Event, Events, Json, Request, Responder, RpcError, Typed, schema::v1 as schema,
};

fn send<T: Send + 'static>(value: T) -> T {
    value
}

fn shared<T: Send + Sync + Clone + 'static>() {}

fn sendable<T: Send + 'static>() {}

#[test]
fn handles_are_shared_and_futures_are_sent() {
    shared::<AcpHttpClient>();
    shared::<Error>();
    shared::<Event>();
    shared::<Json>();
    shared::<Typed<schema::PromptResponse>>();
    shared::<RpcError>();
    shared::<ConnectionState>();
    shared::<CloseOutcome>();
    shared::<Diagnostics>();
    shared::<AgentRequest>();
    sendable::<Events>();
    sendable::<AgentRequests>();
    sendable::<Responder>();
    sendable::<Request<schema::NewSessionResponse>>();
    sendable::<AcpHttpClientBuilder>();
}

/// Never called: that it compiles is the test.
#[allow(dead_code)]
async fn every_public_future_is_send_and_static(
    client: &'static AcpHttpClient,
    events: &'static mut Events,
    requests: &'static mut AgentRequests,
) {
    let local = String::from("a value that the futures must not borrow");
    let params = [local.as_str()];
    drop(send(client.initialize(AcpHttpClient::initialize_request())));
    drop(send(client.authenticate(schema::AuthenticateRequest::new("m"))));
    drop(send(client.logout(schema::LogoutRequest::new())));
    drop(send(client.new_session(schema::NewSessionRequest::new("/"))));
    drop(send(client.load_session(schema::LoadSessionRequest::new("s", "/"))));
    drop(send(client.resume_session(schema::ResumeSessionRequest::new("s", "/"))));
    drop(send(client.list_sessions(schema::ListSessionsRequest::new())));
    drop(send(client.fork_session(schema::ForkSessionRequest::new("s", "/"))));
    drop(send(client.close_session(schema::CloseSessionRequest::new("s"))));
    drop(send(client.delete_session(schema::DeleteSessionRequest::new("s"))));
    drop(send(client.prompt(schema::PromptRequest::new("s", vec![]))));
    drop(send(client.cancel(schema::CancelNotification::new("s"))));
    drop(send(client.set_session_mode(schema::SetSessionModeRequest::new("s", "m"))));
    drop(send(client.set_session_model(schema::SessionId::new("s"), &local)));
    drop(send(client.request::<u32>(&local, &params)));
    drop(send(client.notify(&local, &params)));
    drop(send(client.close()));
    drop(send(client.ended()));
    drop(send(events.recv()));
    drop(send(requests.next()));
}
