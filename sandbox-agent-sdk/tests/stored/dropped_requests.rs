//! Agent requests that the server no longer replays when the next owner acquires the session.

use mock_server::{MockServer, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::requests::{AgentRequest, Response};
use sandbox_agent_sdk::sessions::{RestoredBy, StoredEventKind};
use sandbox_agent_sdk::{Event, NewSession, SandboxAgentClient, ServerKind};
use serde_json::json;

use crate::killed::{has_stored, kill_a_program};
use crate::support::{event, timeouts, within};
use crate::world::{World, said, stored};

/// A server with a small replay buffer, and an agent that fills it on `flood` and otherwise does these steps.
async fn world(steps: impl Fn() -> Vec<Step> + Send + Sync + 'static) -> World {
    let script = Script::new(move |turn| match turn.params["prompt"][0]["text"].as_str() {
        Some("flood") => vec![Step::Flood { updates: 100, bytes: 10 }],
        _ => steps(),
    });
    let server = MockServer::builder().agent("mock", script).replay_buffer(50).released_quirks(false);
    let directory = tempfile::tempdir().unwrap();
    World { server: server.start().await, directory, kind: ServerKind::Shared }
}

/// Fills the replay buffer, in a session of another client.
async fn flood(world: &World) {
    let other = SandboxAgentClient::builder(world.server.url()).agent("mock").server(ServerKind::Shared);
    let other = other.timeouts(timeouts()).build().unwrap();
    let busy = within(other.new_session(NewSession::in_dir("/"))).await.unwrap();
    within(busy.prompt("flood").outcome()).await.unwrap();
}

#[tokio::test]
async fn an_open_permission_that_the_server_has_dropped_is_offered_again_by_its_id() {
    let steps = || {
        let call = ToolCall::new("call-1", "Remove everything");
        vec![Step::AskPermission(Permission::new(call)), Step::Say("done".to_owned())]
    };
    let world = world(steps).await;
    kill_a_program(&world, StoredEventKind::Permission).await;
    flood(&world).await;

    let (client, sessions) = world.program().await;
    let mut events = client.events().deciding();
    let session = sessions.session("mine");
    let restored = within(session.resume()).await.unwrap().unwrap();
    assert_eq!(restored.by, RestoredBy::Attach);
    let request = event(&mut events, |event| match event {
        Event::Permission(request) => Some(request),
        _ => None,
    })
    .await;
    request.allow_once().unwrap();
    within(session.open_turn_ended()).await;
    has_stored(&sessions, "mine", StoredEventKind::TurnEnded).await;
    let kept = stored(&**sessions.store(), "mine").await;
    let count = |kind| kept.iter().filter(|event| event.kind == kind).count();
    assert_eq!((count(StoredEventKind::Permission), count(StoredEventKind::Answered)), (1, 1));
    assert_eq!(said(&kept), ["permission: allow_once", "done"]);
    assert!(sessions.store().open("mine").await.unwrap().is_empty(), "nothing is open any more");
}

#[tokio::test]
async fn a_request_that_an_earlier_owner_began_is_cancelled_although_the_server_has_dropped_it() {
    let steps = || {
        let params = json!({"path": "/one", "content": "text"});
        let write = Step::Request { method: "fs/write_text_file".into(), params };
        vec![write, Step::Say("done".to_owned())]
    };
    let world = world(steps).await;
    let (_client, first) = world.program().await;
    let _executing = first.client().requests().register(
        |request: &AgentRequest| request.method() == "fs/write_text_file",
        |_| std::future::pending::<Response>(),
    );
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let _turn = within(session.prompt("go")).await.unwrap();
    has_stored(&first, "mine", StoredEventKind::AgentRequest).await;
    flood(&world).await;

    let (_client, second) = world.program().await;
    let session = second.session("mine");
    let restored = within(session.resume()).await.unwrap().unwrap();
    assert_eq!(restored.by, RestoredBy::Attach);
    within(session.open_turn_ended()).await;
    has_stored(&second, "mine", StoredEventKind::TurnEnded).await;
    assert_eq!(said(&stored(&**second.store(), "mine").await), ["done"]);
    assert!(second.store().open("mine").await.unwrap().is_empty(), "nothing is open any more");
}
