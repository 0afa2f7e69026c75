//! How far a process has read the stream, for sessions in which nothing happens.

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::sessions::StoredEventKind;
use sandbox_agent_sdk::{NewSession, ServerKind};

use crate::support::within;
use crate::world::{Ability, World, stored};

#[tokio::test]
async fn a_session_that_is_not_used_again_after_a_lost_connection_costs_the_others_no_gap() {
    let script = Script::new(|_| vec![Step::Flood { updates: 100, bytes: 10 }]);
    let script = script.initialize(Ability::Resume.initialize());
    let server = MockServer::builder().agent("mock", script).replay_buffer(300);
    let server = server.released_quirks(false).start().await;
    let world = World { server, directory: tempfile::tempdir().unwrap(), kind: ServerKind::Shared };
    let (client, first) = world.program().await;
    for id in ["quiet", "unused", "busy"] {
        within(first.new_session_as(id, NewSession::in_dir("/"))).await.unwrap();
    }
    first.flush().await.unwrap();
    within(client.disconnect()).await.unwrap();
    within(client.connect()).await.unwrap();
    within(first.session("quiet").resume()).await.unwrap();
    for _ in 0..6 {
        within(within(first.session("busy").prompt("go")).await.unwrap().outcome()).await.unwrap();
    }
    first.flush().await.unwrap();
    // It ends without releasing anything.
    drop((client, first));
    let (_client, second) = world.program().await;
    within(second.session("quiet").resume()).await.unwrap();
    let kept = stored(&**second.store(), "quiet").await;
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{kept:#?}");
    // What happened in the unused session while no process read it is not known.
    within(second.session("unused").resume()).await.unwrap();
    let kept = stored(&**second.store(), "unused").await;
    assert!(kept.iter().any(|event| event.kind == StoredEventKind::Gap), "{kept:#?}");
}
