//! What the tests share.

use std::future::Future;
use std::time::Duration;

use mock_server::MockServer;
use sandbox_agent_sdk::event::SessionEnded;
use sandbox_agent_sdk::{
    ClientOptions, ClientTimeouts, Event, Events, NewSession, SandboxAgentClient, ServerKind, Session, Update,
};

/// The kinds of servers that one mock server plays.
pub(crate) const KINDS: [ServerKind; 2] = [ServerKind::Shared, ServerKind::PerAgent];

/// What has to happen in a test happens within this time.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Awaits something that must not hang.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("it hangs")
}

pub(crate) fn timeouts() -> ClientTimeouts {
    ClientTimeouts::default()
        .start(Duration::from_secs(10))
        .cancel(Duration::from_secs(5))
        // The released server never confirms this while its agent lives.
        .disconnect(Duration::from_millis(200))
        .termination(Duration::from_millis(300))
}

/// Options for the agent `mock` of a server.
pub(crate) fn options(server: &MockServer, kind: ServerKind) -> ClientOptions {
    SandboxAgentClient::builder(server.url()).agent("mock").server(kind).timeouts(timeouts())
}

pub(crate) fn client(server: &MockServer, kind: ServerKind) -> SandboxAgentClient {
    options(server, kind).build().expect("the options are good")
}

pub(crate) async fn session(client: &SandboxAgentClient) -> Session {
    within(client.new_session(NewSession::in_dir("/"))).await.expect("a session can be made")
}

/// The text of updates, one after the other.
pub(crate) fn text(updates: &[Update]) -> String {
    updates.iter().map(ToString::to_string).collect()
}

/// The first event that fits.
pub(crate) async fn event<T>(events: &mut Events, mut pick: impl FnMut(Event) -> Option<T>) -> T {
    within(async {
        loop {
            let event = events.next().await.expect("the events go on");
            if let Some(picked) = pick(event) {
                return picked;
            }
        }
    })
    .await
}

/// The first end of a session that is told of.
pub(crate) async fn session_ended(events: &mut Events) -> SessionEnded {
    event(events, |event| match event {
        Event::SessionEnded(ended) => Some(*ended),
        _ => None,
    })
    .await
}

/// The ends of sessions among what has been told by now.
pub(crate) fn ends_so_far(events: &mut Events) -> Vec<SessionEnded> {
    let told = std::iter::from_fn(|| events.try_next());
    told.filter_map(|event| match event {
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
