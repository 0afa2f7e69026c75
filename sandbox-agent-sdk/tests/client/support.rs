//! Helpers of the tests.

use std::future::Future;
use std::time::Duration;

use mock_server::MockServer;
use sandbox_agent_sdk::event::SessionEnded;
use sandbox_agent_sdk::{
    ClientOptions, ClientTimeouts, Event, Events, NewSession, SandboxAgentClient, ServerKind, Session, Update,
};

/// The kinds of servers that the mock server imitates.
pub(crate) const KINDS: [ServerKind; 2] = [ServerKind::Shared, ServerKind::PerAgent];

/// The timeout of everything that must happen in a test.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Awaits a future within the timeout.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("timed out")
}

pub(crate) fn timeouts() -> ClientTimeouts {
    ClientTimeouts::default()
        .start(Duration::from_secs(10))
        .cancel(Duration::from_secs(5))
        // The released server never confirms this while its agent runs.
        .disconnect(Duration::from_millis(200))
        .termination(Duration::from_millis(300))
}

/// Returns options for the agent `mock` of a server.
pub(crate) fn options(server: &MockServer, kind: ServerKind) -> ClientOptions {
    SandboxAgentClient::builder(server.url()).agent("mock").server(kind).timeouts(timeouts())
}

pub(crate) fn client(server: &MockServer, kind: ServerKind) -> SandboxAgentClient {
    options(server, kind).build().expect("valid options")
}

pub(crate) async fn session(client: &SandboxAgentClient) -> Session {
    within(client.new_session(NewSession::in_dir("/"))).await.expect("a session")
}

/// Joins the texts of updates.
pub(crate) fn text(updates: &[Update]) -> String {
    updates.iter().map(ToString::to_string).collect()
}

/// Waits for the first event that `pick` accepts.
pub(crate) async fn event<T>(events: &mut Events, mut pick: impl FnMut(Event) -> Option<T>) -> T {
    within(async {
        loop {
            let event = events.next().await.expect("another event");
            if let Some(picked) = pick(event) {
                return picked;
            }
        }
    })
    .await
}

/// Waits for the next end of a session.
pub(crate) async fn session_ended(events: &mut Events) -> SessionEnded {
    event(events, |event| match event {
        Event::SessionEnded(ended) => Some(*ended),
        _ => None,
    })
    .await
}

/// Returns the ends of sessions among the events received so far.
pub(crate) fn ends_so_far(events: &mut Events) -> Vec<SessionEnded> {
    let received = std::iter::from_fn(|| events.try_next());
    received
        .filter_map(|event| match event {
            Event::SessionEnded(ended) => Some(*ended),
            _ => None,
        })
        .collect()
}

/// Waits until no event stream of the server is open.
pub(crate) async fn streams_closed(server: &MockServer) {
    within(async {
        while server.open_streams() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
