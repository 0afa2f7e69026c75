//! Agent requests that the server no longer replays when the next owner acquires the session.

use mock_server::{MockServer, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::sessions::{RestoredBy, StoredEventKind};
use sandbox_agent_sdk::{Event, NewSession, SandboxAgentClient, ServerKind};

use crate::killed::{has_stored, kill_a_program};
use crate::support::{event, timeouts, within};
use crate::world::{World, said, stored};

#[tokio::test]
async fn an_open_permission_that_the_server_has_dropped_is_offered_again_by_its_id() {
    let script = Script::new(|turn| {
        let text = turn.params["prompt"][0]["text"].as_str().unwrap();
        match text {
            "flood" => vec![Step::Flood { updates: 100, bytes: 10 }],
            _ => {
                let call = ToolCall::new("call-1", "Remove everything");
                vec![Step::AskPermission(Permission::new(call)), Step::Say("done".to_owned())]
            }
        }
    });
    let server = MockServer::builder().agent("mock", script).replay_buffer(50).released_quirks(false);
    let directory = tempfile::tempdir().unwrap();
    let world = World { server: server.start().await, directory, kind: ServerKind::Shared };
    kill_a_program(&world, StoredEventKind::Permission).await;
    // Another client of the server, whose session fills the replay buffer.
    let other = SandboxAgentClient::builder(world.server.url()).agent("mock").server(ServerKind::Shared);
    let other = other.timeouts(timeouts()).build().unwrap();
    let busy = within(other.new_session(NewSession::in_dir("/"))).await.unwrap();
    within(busy.prompt("flood").outcome()).await.unwrap();

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
