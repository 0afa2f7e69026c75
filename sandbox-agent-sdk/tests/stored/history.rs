//! The transcript that an agent receives for a session that it does not know.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::sessions::{MemoryStore, SessionStore, StoredSession};
use sandbox_agent_sdk::{NewSession, ServerKind};
use serde_json::json;

use crate::gated::Gated;
use crate::support::{KINDS, within};
use crate::world::{Ability, World, agent, options};

async fn ask(session: &StoredSession, text: &str) -> String {
    within(async { session.prompt(text).await?.text().await }).await.unwrap()
}

/// The transcripts that the agent received.
fn told(server: &MockServer) -> Vec<String> {
    let prompts = server.messages("session/prompt");
    let first =
        prompts.iter().map(|prompt| prompt["params"]["prompt"][0]["text"].as_str().unwrap_or_default());
    first.filter(|text| text.starts_with("This conversation began")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transcript_is_replayed_once_however_soon_the_next_prompt_follows() {
    for kind in KINDS {
        let world = World::new(kind, agent(Ability::Neither)).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
        sessions.flush().await.unwrap();
        for round in 0..10 {
            world.server.forget_requests();
            let (_client, sessions) = world.program().await;
            let session = sessions.session("mine");
            for n in 0..3 {
                within(within(session.prompt(format!("{round}.{n}"))).await.unwrap().outcome())
                    .await
                    .unwrap();
            }
            assert_eq!(told(&world.server).len(), 1, "{kind} {round}");
            sessions.flush().await.unwrap();
            assert!(!session.record().await.unwrap().details.replay_pending);
        }
    }
}

#[tokio::test]
async fn a_transcript_is_replayed_completely_although_the_store_lags() {
    for kind in KINDS {
        let world = World::new(kind, agent(Ability::Neither)).await;
        let store = Gated::new(world.store().await);
        let client = options(&world.server, kind).shared_store(store.clone()).build().unwrap();
        let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        ask(&session, "one").await;
        client.flush().await.unwrap();
        let gate = store.appending.lock().await;
        within(within(session.prompt("die")).await.unwrap().outcome()).await.unwrap_err();
        let later = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(gate);
        };
        let (answer, ()) = tokio::join!(ask(&session, "two"), later);
        assert_eq!(answer, "re: two; ");
        let told = told(&world.server);
        assert_eq!(told.len(), 1, "{kind}");
        assert!(told[0].contains("\"one\"") && told[0].contains("re: one; ") && told[0].contains("dying"));
    }
}

#[tokio::test]
async fn it_is_owed_until_an_agent_has_heard_it() {
    let refusals = Arc::new(AtomicUsize::new(2));
    let left = Arc::clone(&refusals);
    let initialize = json!({"protocolVersion": 1, "agentCapabilities": {}});
    let moody = Script::new(move |turn| {
        let blocks = turn.params["prompt"].as_array().unwrap().len();
        let refuses = blocks > 1
            && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if refuses {
            vec![Step::Fail { code: -32603, message: "not now".to_owned(), data: None }]
        } else {
            vec![Step::Say("yes".to_owned())]
        }
    });
    let world = World::new(ServerKind::Shared, moody.initialize(initialize)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    ask(&session, "one").await;
    sessions.flush().await.unwrap();
    let (_client, sessions) = world.program().await;
    let session = sessions.session("mine");
    for _ in 0..2 {
        within(within(session.prompt("two")).await.unwrap().outcome()).await.unwrap_err();
        sessions.flush().await.unwrap();
        assert!(session.record().await.unwrap().details.replay_pending);
    }
    ask(&session, "three").await;
    ask(&session, "four").await;
    assert_eq!(told(&world.server).len(), 3, "twice in vain, and once");
    assert_eq!(world.server.messages("session/new").len(), 2, "it is one session of the agent all the time");
}

#[tokio::test]
async fn an_answer_that_is_larger_than_the_limit_does_not_hide_the_rest() {
    let script = Script::new(|turn| {
        let text = turn.params["prompt"].as_array().unwrap().last().unwrap()["text"].to_string();
        let bytes = if text.contains("much") { 100_000 } else { 10 };
        vec![Step::Flood { updates: 1, bytes }]
    });
    let initialize = json!({"protocolVersion": 1, "agentCapabilities": {}});
    let world = World::new(ServerKind::Shared, script.initialize(initialize)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    for text in ["a little", "very much"] {
        ask(&session, text).await;
    }
    sessions.flush().await.unwrap();
    let client = world.options().await.stored(|options| options.replay_max_chars(2_000)).build().unwrap();
    ask(&client.session("mine"), "a little more").await;
    let told = told(&world.server);
    assert_eq!(told.len(), 1);
    assert!(told[0].chars().count() <= 2_000);
    assert!(told[0].contains("shortened") && told[0].contains("a little") && told[0].contains("very much"));
}

#[tokio::test]
async fn an_agent_gets_the_question_however_many_pieces_the_answer_has() {
    const PIECES: usize = 300;
    let script = Script::new(|_| (1..=PIECES).map(|n| Step::Say(format!("piece {n} "))).collect());
    let initialize = json!({"protocolVersion": 1, "agentCapabilities": {}});
    let world = World::new(ServerKind::Shared, script.initialize(initialize)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    ask(&session, "what is the answer?").await;
    sessions.flush().await.unwrap();
    let (_client, sessions) = world.program().await;
    ask(&sessions.session("mine"), "and now?").await;
    let told = told(&world.server);
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("what is the answer?"), "{}", told[0]);
    assert!(told[0].contains("piece 1 piece 2 "), "the answer is one message");
}

#[tokio::test]
async fn an_agent_gets_the_question_although_a_store_in_memory_dropped_much_of_the_answer() {
    const PIECES: usize = 600;
    let script = Script::new(|_| (1..=PIECES).map(|n| Step::Say(format!("piece {n} "))).collect());
    let initialize = json!({"protocolVersion": 1, "agentCapabilities": {}});
    let world = World::new(ServerKind::Shared, script.initialize(initialize)).await;
    let store: Arc<dyn SessionStore> = Arc::new(MemoryStore::new());
    let program = || options(&world.server, world.kind).shared_store(Arc::clone(&store)).build().unwrap();
    let first = program();
    let session = within(first.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    ask(&session, "what is the answer?").await;
    first.flush().await.unwrap();
    ask(&program().session("mine"), "and now?").await;
    let told = told(&world.server);
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("what is the answer?"), "{}", told[0]);
}
