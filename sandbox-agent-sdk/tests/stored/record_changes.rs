//! What a record says of what happens.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mock_server::{Script, Step};
use sandbox_agent_sdk::sessions::{SessionStore as _, StoreOptions, StoredEventKind};
use sandbox_agent_sdk::{Error, NewSession, ServerKind};
use serde_json::json;

use crate::gated::Gated;
use crate::support::{KINDS, within};
use crate::world::{Ability, World, agent, options, stored};

#[tokio::test]
async fn the_last_end_of_the_agent_is_in_the_record_until_the_session_is_acquired_again() {
    for kind in KINDS {
        for ability in Ability::ALL {
            let world = World::new(kind, agent(ability)).await;
            let (_client, sessions) = world.program().await;
            let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
            within(within(session.prompt("die")).await.unwrap().outcome()).await.unwrap_err();
            sessions.flush().await.unwrap();
            let end = session.record().await.unwrap().details.termination_info.unwrap();
            assert_eq!(end.exit_code, Some(3), "{kind} {ability:?}");
            within(async { session.prompt("go on").await?.text().await }).await.unwrap();
            sessions.flush().await.unwrap();
            assert_eq!(session.record().await.unwrap().details.termination_info, None, "{kind} {ability:?}");
        }
    }
}

#[tokio::test]
async fn options_and_modes_follow_what_the_agent_says_in_few_writes() {
    const TIMES: usize = 300;
    let options = |n: usize| {
        json!([{"id": "model", "name": "Model", "category": "model", "type": "select",
        "currentValue": format!("model {n}"), "options": []}, {"id": "mode", "name": "Mode", "category": "mode", "type": "select",
        "currentValue": "ask", "options": [{"value": format!("mode {n}"), "name": "m"}]}])
    };
    let steps = move |_: &mock_server::Turn| {
        let update = move |n: usize| {
            let options = options(n);
            [
                Step::Update(json!({"sessionUpdate": "config_option_update", "configOptions": options})),
                Step::Update(
                    json!({"sessionUpdate": "current_mode_update", "currentModeId": format!("mode {n}")}),
                ),
            ]
        };
        (1..=TIMES).flat_map(update).collect()
    };
    for kind in KINDS {
        let world = World::new(kind, Script::new(steps)).await;
        let (client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        let before = session.record().await.unwrap();
        within(within(session.prompt("change")).await.unwrap().outcome()).await.unwrap();
        sessions.flush().await.unwrap();
        let after = session.record().await.unwrap();
        let options = after.details.config_options.unwrap();
        assert_eq!(options[0]["currentValue"], format!("model {TIMES}"), "{kind}");
        assert_eq!(options[1]["currentValue"], format!("mode {TIMES}"), "{kind}");
        assert_eq!(after.details.modes.unwrap()["currentModeId"], format!("mode {TIMES}"), "{kind}");
        let writes = after.revision - before.revision;
        assert!((1..TIMES as u64 / 10).contains(&writes), "{kind}: {writes} writes");
        client.disconnect().await.unwrap();
    }
}

#[tokio::test]
async fn the_model_of_a_session_is_the_one_that_was_set_last() {
    let offered = json!([{"modelId": "small", "name": "s"}, {"modelId": "large", "name": "l"}]);
    let models = json!({"currentModelId": "small", "availableModels": offered});
    let script = Script::default().session(json!({ "models": models }));
    let script =
        script.on_request(|method, _| (method == "session/set_model").then(|| vec![Step::Finish(json!({}))]));
    let world = World::new(ServerKind::Shared, script).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    assert_eq!(session.model().await.unwrap().as_deref(), Some("small"));
    within(session.set_model("large")).await.unwrap();
    sessions.flush().await.unwrap();
    assert_eq!(session.model().await.unwrap().as_deref(), Some("large"));
}

#[tokio::test]
async fn the_title_of_a_record_follows_the_agent() {
    for kind in KINDS {
        let title = |title: serde_json::Value| {
            Step::Update(json!({"sessionUpdate": "session_info_update", "title": title}))
        };
        let script = Script::new(move |turn| match turn.params["prompt"][0]["text"].as_str() {
            Some("none") => vec![title(serde_json::Value::Null)],
            text => vec![title("first".into()), title(text.into())],
        });
        let world = World::new(kind, script).await;
        let (_client, sessions) = world.program().await;
        let new = NewSession::in_dir("/").title("given");
        let session = within(sessions.new_session_as("s", new)).await.unwrap();
        for (text, expected) in [("second", Some("second")), ("none", None)] {
            within(within(session.prompt(text)).await.unwrap().outcome()).await.unwrap();
            sessions.flush().await.unwrap();
            assert_eq!(session.title().await.unwrap().as_deref(), expected, "{kind}");
        }
    }
}

/// An agent whose mode is the last one that was set.
fn changing_its_mode() -> Script {
    Script::new(|turn| {
        let text = turn.params["prompt"][0]["text"].clone();
        vec![Step::Update(json!({"sessionUpdate": "current_mode_update", "currentModeId": text}))]
    })
}

#[tokio::test]
async fn a_record_is_brought_up_to_date_once_the_store_takes_it_again() {
    let world = World::new(KINDS[0], changing_its_mode()).await;
    let store = Gated::new(world.store().await);
    let client = options(&world.server, world.kind).shared_store(store.clone()).build().unwrap();
    let sessions = client.clone();
    let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    store.refusing.store(true, Ordering::SeqCst);
    within(within(session.prompt("first")).await.unwrap().outcome()).await.unwrap();
    // This takes seconds, because it waits longer and longer in between.
    within(store.refused(8)).await;
    store.refusing.store(false, Ordering::SeqCst);
    within(sessions.flush()).await.unwrap();
    assert_eq!(session.record().await.unwrap().details.modes.unwrap()["currentModeId"], "first");
}

#[tokio::test]
async fn a_record_that_cannot_be_updated_is_given_up_in_time_and_reported() {
    let world = World::new(KINDS[0], changing_its_mode()).await;
    let store = Gated::new(world.store().await);
    let recorder = StoreOptions::default().retry_for(Duration::from_millis(500));
    let client = options(&world.server, world.kind).stored(|_| recorder).shared_store(store.clone());
    let client = client.build().unwrap();
    let sessions = client.clone();
    let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    store.refusing.store(true, Ordering::SeqCst);
    within(within(session.prompt("lost")).await.unwrap().outcome()).await.unwrap();
    let failure = within(sessions.flush()).await.unwrap_err();
    assert!(matches!(failure, Error::EventsLost(_)), "{failure:?}");
    store.refusing.store(false, Ordering::SeqCst);
    within(within(session.prompt("next")).await.unwrap().outcome()).await.unwrap();
    within(sessions.flush()).await.unwrap();
    assert_eq!(session.record().await.unwrap().details.modes.unwrap()["currentModeId"], "next");
}

#[tokio::test]
async fn the_end_of_a_turn_that_the_store_refused_is_stored_once_it_takes_it_again() {
    for is_released in [false, true] {
        let world = World::new(KINDS[0], changing_its_mode()).await;
        let store = Gated::new(world.store().await);
        let recorder = StoreOptions::default().retry_for(Duration::from_millis(500));
        let client = options(&world.server, world.kind).stored(|_| recorder).shared_store(store.clone());
        let client = client.build().unwrap();
        let session = within(client.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        store.refusing.store(true, Ordering::SeqCst);
        within(within(session.prompt("first")).await.unwrap().outcome()).await.unwrap();
        within(client.flush()).await.unwrap_err();
        assert_eq!(store.open("s").await.unwrap().turns.len(), 1, "its end is not stored");
        store.refusing.store(false, Ordering::SeqCst);
        match is_released {
            true => drop(within(session.release()).await.unwrap()),
            false => within(client.flush()).await.unwrap(),
        }
        assert!(store.open("s").await.unwrap().is_empty(), "released: {is_released}");
        let ends = stored(&*store, "s").await;
        let ends = ends.iter().filter(|event| event.kind == StoredEventKind::TurnEnded).count();
        assert_eq!(ends, 1, "released: {is_released}");
    }
}
