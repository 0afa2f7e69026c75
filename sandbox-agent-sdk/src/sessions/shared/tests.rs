use std::sync::Arc;
use std::time::Duration;

use mock_server::{MockServer, Script, Step};

use crate::sessions::{MemoryStore, StoreOptions};
use crate::{Error, NewSession, SandboxAgentClient, ServerKind};

const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_tracker_of_a_session_that_does_not_exist_is_freed() {
    let client = SandboxAgentClient::builder("http://127.0.0.1:1").auto_connect(false).build().unwrap();
    let client = client.with_store(MemoryStore::new());
    for _ in 0..3 {
        client.session("nothing").resume().await.unwrap_err();
    }
    while !client.shared.all_tracked().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_tracker_of_a_session_whose_agent_has_ended_is_freed() {
    let script = Script::new(|turn| match turn.text.as_str() {
        "die" => vec![Step::Say("begun".into()), Step::crash(3, ["boom"])],
        _ => vec![Step::Say("alive".into())],
    });
    let server = MockServer::builder().agent("mock", script).released_quirks(false).start().await;
    let client = SandboxAgentClient::builder(server.url()).agent("mock").server(ServerKind::Shared);
    let options = StoreOptions::default().ended_timeout(Duration::ZERO);
    let client = client.build().unwrap().with_store_options(Arc::new(MemoryStore::new()), options);
    let session = client.new_session_as("s", NewSession::in_dir("/")).await.unwrap();
    session.prompt("die").await.unwrap().outcome().await.unwrap_err();
    let freed = async {
        while !client.shared.all_tracked().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, freed).await.expect("the tracker is freed");
    let record = session.record().await.unwrap();
    assert_eq!(record.owner.as_deref(), Some(client.owner()), "this process still owns the session");
    assert!(record.details.termination_info.is_some());
    assert_eq!(session.prompt("go").await.unwrap().text().await.unwrap(), "alive");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_meets_a_tracker_that_ends_starts_another_one() {
    let client = SandboxAgentClient::builder("http://127.0.0.1:1").auto_connect(false).build().unwrap();
    let client = client.with_store(MemoryStore::new());
    let calls = (0..2).map(|_| {
        let session = client.session("nothing");
        tokio::spawn(async move {
            for _ in 0..20_000 {
                let error = session.release().await.unwrap_err();
                assert!(matches!(error, Error::Store(_)), "{error:?}");
            }
        })
    });
    for call in calls.collect::<Vec<_>>() {
        tokio::time::timeout(LIMIT, call).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn sessions_that_are_not_used_any_more_leave_no_tracker() {
    const SESSIONS: usize = 150;
    let script = Script::new(|_| vec![Step::Say("alive".into())]);
    let server = MockServer::builder().agent("mock", script).released_quirks(false).start().await;
    let client = SandboxAgentClient::builder(server.url()).agent("mock").server(ServerKind::Shared);
    let options = StoreOptions::default().ended_timeout(Duration::ZERO);
    let store = Arc::new(MemoryStore::with_bounds(SESSIONS, 10));
    let client = client.build().unwrap().with_store_options(store, options);
    for n in 0..SESSIONS {
        let session = client.new_session_as(format!("{n}"), NewSession::in_dir("/")).await.unwrap();
        session.prompt("go").await.unwrap().outcome().await.unwrap();
        match n % 3 {
            0 => drop(session.release().await.unwrap()),
            1 => assert!(session.agent_session().unwrap().terminate().await.unwrap().terminated),
            // It is gone with the connection.
            _ => {}
        }
    }
    client.disconnect().await.unwrap();
    let freed = async {
        while !client.shared.all_tracked().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, freed).await.expect("the trackers are freed");
    let session = client.session("2");
    assert!(!session.record().await.unwrap().caught_up, "this process does not follow it any more");
    client.client().connect_with("mock").await.unwrap();
    assert_eq!(session.prompt("go").await.unwrap().text().await.unwrap(), "alive");
}
