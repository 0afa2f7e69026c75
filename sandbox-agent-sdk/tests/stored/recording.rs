//! A store that is slow, or fails, while events come.

use mock_server::{Script, Step};
use sandbox_agent_sdk::limits::Limits;
use sandbox_agent_sdk::sessions::{MemoryStore, StoreOptions, StoredEventKind};
use sandbox_agent_sdk::{Error, Event, Events, NewSession};

use crate::gated::Gated;
use crate::support::{KINDS, event, within};
use crate::world::{World, options, stored};

/// The number of lost events in the next report.
async fn unrecorded(events: &mut Events) -> u64 {
    let told = event(events, |event| match event {
        Event::EventsLost(unrecorded) => Some(unrecorded),
        _ => None,
    });
    let told = told.await;
    assert!(told.session_id == "s" && told.error.is_none(), "{told:?}");
    told.count
}

#[tokio::test]
async fn a_stalled_store_does_not_delay_a_turn_and_losses_are_reported() {
    for kind in KINDS {
        let world = World::new(kind, Script::steps(vec![Step::Flood { updates: 500, bytes: 10 }])).await;
        let store = Gated::new(MemoryStore::with_bounds(9, 9999));
        let recorder = StoreOptions::default().capacity(100).batch(10);
        let client =
            options(&world.server, kind).shared_store(store.clone()).stored(|_| recorder).build().unwrap();
        let mut events = client.events();
        let session = within(client.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(session.prompt("flood")).await.unwrap();
        let gate = store.appending.lock().await;
        let mut updates = 0;
        while within(turn.next()).await.is_some() {
            updates += 1;
        }
        within(turn.outcome()).await.unwrap();
        assert_eq!(updates, 500, "the stream is whole although nothing was stored yet");
        // The program hears of it while the store still stands still.
        let mut told = 0;
        while told < 300 {
            told += unrecorded(&mut events).await;
        }
        drop(gate);
        let error = within(client.flush()).await.unwrap_err();
        let Error::EventsLost(losses) = error else { panic!("{error:?}") };
        within(client.flush()).await.expect("a loss is reported by one flush");

        let kept = stored(&*store, "s").await;
        let lost = kept.iter().filter(|event| event.kind == StoredEventKind::Lost);
        let lost: Vec<u64> = lost.map(|event| event.payload["count"].as_u64().unwrap()).collect();
        let (written, lost) = ((kept.len() - lost.len()) as u64, lost.into_iter().sum::<u64>());
        assert_eq!(written + lost, 502, "prompt, reports, end: all accounted for");
        while told < lost {
            told += unrecorded(&mut events).await;
        }
        assert_eq!(told, lost, "everything that was lost is told of, and nothing else");
        assert_eq!(losses.iter().map(|loss| loss.count).collect::<Vec<_>>(), [lost]);
        client.disconnect().await.unwrap();
    }
}

#[tokio::test]
async fn what_comes_before_the_answer_that_makes_a_session_is_stored_too() {
    let early = Script::steps(vec![]).on_request(|method, _| {
        (method == "session/new").then(|| {
            let commands =
                serde_json::json!({"sessionUpdate": "available_commands_update", "availableCommands": []});
            let update = serde_json::json!({"jsonrpc": "2.0", "method": "session/update",
                "params": {"sessionId": "made-here", "update": commands}});
            vec![Step::Raw(update), Step::Finish(serde_json::json!({"sessionId": "made-here"}))]
        })
    });
    let world = World::new(KINDS[0], early).await;
    let (_client, sessions) = world.program().await;
    within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    sessions.flush().await.unwrap();
    let kept = stored(&**sessions.store(), "s").await;
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(kept[0].payload["sessionUpdate"], "available_commands_update");
}

#[tokio::test]
async fn the_meta_of_a_notification_is_stored_with_its_update() {
    let script = Script::new(|turn| {
        let chunk = serde_json::json!({"sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": "hi"}});
        let params = serde_json::json!({"sessionId": turn.params["sessionId"], "update": chunk,
            "_meta": {"trace": 7}});
        let update = serde_json::json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
        vec![Step::Raw(update)]
    });
    let world = World::new(KINDS[0], script).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
    within(session.prompt("go").await.unwrap().outcome()).await.unwrap();
    sessions.flush().await.unwrap();
    let kept = stored(&**sessions.store(), "s").await;
    let update = kept.iter().find_map(|event| event.update()).unwrap();
    assert_eq!(update.message_text(), Some("hi"));
    assert_eq!(update.notification_meta(), Some(&serde_json::json!({"trace": 7})));
}

#[tokio::test]
async fn a_message_that_is_too_large_leaves_a_mark() {
    for kind in KINDS {
        let world = World::new(kind, Script::steps(vec![Step::Flood { updates: 1, bytes: 200_000 }])).await;
        let limits = Limits::default().message(100_000);
        let sessions = world.options().await.limits(limits).build().unwrap();
        let session = within(sessions.new_session_as("s", NewSession::in_dir("/"))).await.unwrap();
        within(session.prompt("go").await.unwrap().outcome()).await.unwrap();
        sessions.flush().await.unwrap();
        let kept = stored(&**sessions.store(), "s").await;
        let lost: Vec<_> = kept.iter().filter(|event| event.kind == StoredEventKind::Lost).collect();
        assert_eq!(lost.len(), 1, "{kept:?}");
        assert_eq!(lost[0].payload["count"], 1);
    }
}
