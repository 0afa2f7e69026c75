//! Sessions that are moved from one store to another.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::store::{Append, MAX_DEPTH, NewEvent};
use sandbox_agent_sdk::sessions::{
    MemoryStore, SessionRecord, SessionStatus, StoreError, StoredClient, StoredEvent, StoredEventKind,
};
use sandbox_agent_sdk::{Error, NewSession};
use serde_json::json;

use crate::gated::{Gated, Slowness};
use crate::support::{KINDS, within};
use crate::world::{Ability, World, agent, options, stored};

async fn exported(sessions: &StoredClient, id: &str) -> Vec<String> {
    within(sessions.export(id).try_collect()).await.unwrap()
}

#[tokio::test]
async fn a_transcript_goes_to_another_store_whole_or_not_at_all() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let session =
        within(sessions.new_session_as("mine", NewSession::in_dir("/").title("T\n\0"))).await.unwrap();
    for text in ["one", "two \u{1F600}\n\"", "three"] {
        within(within(session.prompt(text)).await.unwrap().outcome()).await.unwrap();
    }
    let lines = exported(&sessions, "mine").await;
    assert!(lines.iter().all(|line| !line.contains('\n')), "a line is a line");
    let original = stored(&**sessions.store(), "mine").await;
    assert_eq!(lines.len(), original.len() + 2);

    let other = options(&world.server, KINDS[0]).store(MemoryStore::new()).build().unwrap();
    // Whatever is cut off, swapped, doubled or spoilt is refused, and leaves nothing behind.
    let mut spoilt: Vec<(Vec<String>, &str)> =
        (0..lines.len()).map(|cut| (lines[..cut].to_vec(), "cut off")).collect();
    for n in 1..lines.len() {
        let without =
            lines.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, line)| line.clone()).collect();
        spoilt.push((without, "without a line"));
        let mut doubled = lines.clone();
        doubled.insert(n, lines[n].clone());
        spoilt.push((doubled, "a line twice"));
    }
    for n in 1..lines.len() - 1 {
        let mut swapped = lines.clone();
        swapped.swap(n, n + 1);
        spoilt.push((swapped, "swapped"));
        let mut foreign = lines.clone();
        foreign[n] = foreign[n].replace("\"sessionId\":\"mine\"", "\"sessionId\":\"other\"");
        spoilt.push((foreign, "of another session"));
    }
    // A newer version may have a record that this one cannot read.
    for newer in ["{\"type\":\"session\",\"version\":2}", "{\"version\":99999999999,\"type\":[]}"] {
        let newer = std::iter::once(newer.to_owned()).chain(lines[1..].to_vec()).collect();
        spoilt.push((newer, "newer version"));
    }
    let index = "\"index\":1,";
    for (n, from, to, how) in [
        (0, "\"version\":1", "\"version\":0", "of no version"),
        (0, "\"version\":1", "\"version\":-1", "of no version"),
        (1, index, "\"index\":0,", "without a place"),
        (1, index, "\"index\":18446744073709551615,", "at the last place of all"),
        (1, index, "\"index\":18446744073709551616,", "behind it"),
        (1, index, "\"index\":1,\"index\":1,", "with a member twice"),
        (1, "\"type\":\"event\"", "\"type\":\"future\"", "of an unknown type"),
        (1, "\"payload\":", "\"payload\":\"\\ud800\",\"x\":", "with half a character"),
        (1, "\"payload\":", "\"payload\":1e999,\"x\":", "with a number beyond all"),
        (
            1,
            "\"payload\":",
            "\"payload\":{\"$serde_json::private::RawValue\":\"[[1]]\"},\"x\":",
            "with a reserved name",
        ),
        (
            1,
            "\"payload\":",
            "\"payload\":{\"\\u0024serde_json::private::RawValue\":\"1\"},\"x\":",
            "with a reserved name",
        ),
    ] {
        let mut changed = lines.clone();
        changed[n] = changed[n].replacen(from, to, 1);
        assert_ne!(changed[n], lines[n], "{how}");
        spoilt.push((changed, how));
    }
    let deep = "[".repeat(1 << 17);
    for garbage in ["null", "{}", "[]", "\"", "not JSON", "\u{0}", "{\"type\":\"event\"}", &deep] {
        for n in 0..lines.len() {
            let mut changed = lines.clone();
            changed[n] = garbage.to_owned();
            spoilt.push((changed, "garbage"));
        }
    }
    // An event under the key of another one.
    let mut repeated = lines.clone();
    let [first, second] =
        [1, 2].map(|n: usize| serde_json::from_str::<serde_json::Value>(&lines[n]).unwrap());
    let mut second = second;
    for member in ["id", "incarnation", "offset"] {
        second["event"].as_object_mut().unwrap().remove(member);
        if let Some(value) = first["event"].get(member) {
            second["event"][member] = value.clone();
        }
    }
    repeated[2] = second.to_string();
    spoilt.push((repeated, "a repeated event"));
    for (lines, how) in spoilt {
        let error = within(other.import(&lines)).await.unwrap_err();
        let Error::Store(StoreError::Transcript { line, reason }) = error else { panic!("{how}: {error:?}") };
        assert!((1..=lines.len().max(1)).contains(&line), "{how}: {line}");
        assert_eq!(how == "newer version", reason.contains("newer version"), "{how}: {reason}");
        assert_eq!(other.get("mine").await.unwrap(), None, "{how}");
    }

    let record = within(other.import(&lines)).await.unwrap();
    assert_eq!((record.id.as_str(), record.details.title.as_deref()), ("mine", Some("T\n\0")));
    let unowned = |mut events: Vec<StoredEvent>| {
        events.iter_mut().for_each(|event| event.epoch = 0);
        events
    };
    assert_eq!(unowned(stored(&**other.store(), "mine").await), unowned(original));
    let twice = within(other.import(&lines)).await.unwrap_err();
    assert!(matches!(twice, Error::Store(StoreError::Exists { .. })), "{twice:?}");
    assert_eq!(exported(&other, "mine").await.len(), lines.len());
    // It continues there.
    let text = within(async { other.session("mine").prompt("four").await?.text().await }).await.unwrap();
    assert_eq!(text, "re: four; ");
}

#[tokio::test]
async fn a_transcript_begins_with_the_record_as_it_is_now() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    within(within(session.prompt("die")).await.unwrap().text()).await.unwrap_err();
    let lines = exported(&sessions, "mine").await;
    let first: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(first["record"]["terminationInfo"]["exitCode"], 3, "{first}");
    assert!(lines.iter().any(|line| line.contains("turn_ended")));
}

#[tokio::test]
async fn a_transcript_of_the_time_of_five_states_comes_in_with_four() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    for (old, new) in [("completed", SessionStatus::Active), ("cancelled", SessionStatus::Archived)] {
        let line = format!(
            r#"{{"type":"session","version":1,"record":{{"id":"{old}","agent":"mock","status":"{old}","createdAt":1,"lastActive":2}}}}"#
        );
        let record = within(sessions.import([line.as_str(), r#"{"type":"end","events":0}"#])).await.unwrap();
        assert_eq!(record.status, new);
    }
    let missing = within(sessions.export("nobody").try_collect::<Vec<_>>()).await.unwrap_err();
    assert!(matches!(missing, Error::Store(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn whatever_is_stored_can_be_exported_and_imported() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let deep = |levels| (0..levels).fold(json!(u64::MAX), |inside, _| json!([inside]));
    let mut record = SessionRecord::new("s", "mock", Timestamp::from_millis(1));
    record.details.metadata.insert("deep".to_owned(), deep(MAX_DEPTH));
    sessions.store().create(record, Vec::new()).await.unwrap();
    let payloads = [deep(126), deep(127), deep(128), deep(MAX_DEPTH), json!("\0"), json!(-0.0), json!(1e300)];
    let event = |(n, payload)| NewEvent::new(format!("e{n}"), Timestamp::from_millis(2), "update", payload);
    sessions.store().append(Append::to("s").events((0..).zip(payloads).map(event))).await.unwrap();
    let lines = exported(&sessions, "s").await;
    let original = stored(&**sessions.store(), "s").await;
    let other = options(&world.server, KINDS[0]).store(MemoryStore::new()).build().unwrap();
    let record = within(other.import(&lines)).await.unwrap();
    assert_eq!(record.details.metadata["deep"], deep(MAX_DEPTH));
    assert_eq!(stored(&**other.store(), "s").await, original);
}

#[tokio::test]
async fn events_that_a_store_had_forgotten_are_accounted_for() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let forgetful = options(&world.server, KINDS[0]).store(MemoryStore::with_bounds(9, 3)).build().unwrap();
    let store = Arc::clone(forgetful.store());
    store.create(SessionRecord::new("s", "mock", Timestamp::from_millis(1)), Vec::new()).await.unwrap();
    let event = |n: u64| NewEvent::new(format!("e{n}"), Timestamp::from_millis(n), "update", n);
    store.append(Append::to("s").events((1..=7).map(event))).await.unwrap();
    let lines = exported(&forgetful, "s").await;
    let (_client, sessions) = world.program().await;
    assert_eq!(within(sessions.import(&lines)).await.unwrap().last_index, 4);
    let kept = stored(&**sessions.store(), "s").await;
    let payloads: Vec<_> = kept.iter().map(|event| event.payload.clone()).collect();
    assert_eq!(payloads, [json!({"count": 4}), json!(5), json!(6), json!(7)]);
    assert_eq!(kept[0].kind, StoredEventKind::Lost);
}

#[tokio::test]
async fn events_that_a_store_dropped_between_others_are_accounted_for() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let bounded = options(&world.server, KINDS[0]).store(MemoryStore::with_bounds(9, 3)).build().unwrap();
    let store = Arc::clone(bounded.store());
    store.create(SessionRecord::new("s", "mock", Timestamp::from_millis(1)), Vec::new()).await.unwrap();
    let event = |n: u64| {
        let kind = if n == 2 { "prompt" } else { "update" };
        NewEvent::new(format!("e{n}"), Timestamp::from_millis(n), kind, n)
    };
    store.append(Append::to("s").events((1..=7).map(event))).await.unwrap();
    let lines = exported(&bounded, "s").await;
    let (_client, sessions) = world.program().await;
    within(sessions.import(&lines)).await.unwrap();
    let kept = stored(&**sessions.store(), "s").await;
    let payloads: Vec<_> = kept.iter().map(|event| event.payload.clone()).collect();
    assert_eq!(payloads, [json!({"count": 1}), json!(2), json!({"count": 3}), json!(6), json!(7)]);
}

#[tokio::test]
async fn a_session_that_is_deleted_while_it_is_exported_gives_no_whole_transcript() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let event = |n: u64| NewEvent::new(format!("e{n}"), Timestamp::from_millis(n), "update", n);
    for made_again in [false, true] {
        sessions
            .store()
            .create(SessionRecord::new("s", "mock", Timestamp::from_millis(1)), Vec::new())
            .await
            .unwrap();
        sessions.store().append(Append::to("s").events((1..=1500).map(event))).await.unwrap();
        let mut export = sessions.export("s");
        for _ in 0..1001 {
            within(export.next()).await.unwrap().unwrap();
        }
        sessions.delete("s").await.unwrap();
        if made_again {
            sessions
                .store()
                .create(SessionRecord::new("s", "mock", Timestamp::from_millis(2)), Vec::new())
                .await
                .unwrap();
            sessions.store().append(Append::to("s").events((1..=1500).map(event))).await.unwrap();
        }
        let rest: Vec<Result<String, Error>> = within(export.collect()).await;
        assert!(rest.last().unwrap().is_err(), "{rest:?}");
        sessions.delete("s").await.unwrap();
    }
}

#[tokio::test]
async fn an_import_into_a_store_that_does_not_respond_ends() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let lines = exported(&sessions, "mine").await;
    let store = Gated::new(MemoryStore::new());
    *store.slowness.lock().unwrap() = Slowness::Stuck;
    let other = options(&world.server, KINDS[0]).shared_store(store);
    let other = other.stored(|options| options.retry_for(Duration::from_millis(200))).build().unwrap();
    let error = within(other.import(&lines)).await.unwrap_err();
    assert!(matches!(error, Error::Store(StoreError::Unavailable(_))), "{error:?}");
}
