//! Records: created, patched, deleted.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::{
    AgentSession, Append, Change, EventQuery, MAX_DEPTH, MAX_KEY_BYTES, NewEvent, RecordPatch, RecordQuery,
    ScannedTo, SessionRecord, StoreError, Suspend,
};
use super::{
    HOSTILE, Store, all_events, all_ids, append, at, create, drop_after, event, get, position, record,
};
use crate::TerminationInfo;
use crate::sessions::status::{SessionStatus, StatusEvent, TransitionError, UserAction};
use crate::termination::{EndReason, TerminatedBy};

pub(super) async fn returns_a_record_as_it_was_created(store: Store) {
    for (n, text) in HOSTILE.into_iter().enumerate() {
        let mut record = record(&format!("s{n}"), 5).owned_by(text);
        record.user_key = Some(text.to_owned());
        record.endpoint = Some(text.repeat(3));
        record.agent_session = Some(AgentSession { id: text.to_owned(), incarnation: n as u64 });
        record.position = (n % 2 == 0).then(|| position(n as u64, 1 << 40));
        record.status = SessionStatus::ALL[n % 4];
        record.created_at = at([0, 1, i64::MAX as u64][n % 3]);
        let details = &mut record.details;
        details.title = Some(format!("NUL \0 inside, {text}"));
        details.supports_resume = n % 2 == 0;
        details.replay_pending = n % 3 == 0;
        details.metadata.insert(text.to_owned(), json!([text, 0.1, 1e300, -0.0, u64::MAX, i64::MIN, null]));
        details.init.insert("cwd".to_owned(), text.into());
        details.termination_info = Some(TerminationInfo::new(EndReason::Error, TerminatedBy::Agent));
        details.earlier_agent_sessions = vec![AgentSession { id: text.to_owned(), incarnation: 7 }];
        let created = store.create(record.clone(), Vec::new()).await.unwrap();
        record.revision = 1;
        assert_eq!(created, record);
        assert_eq!(get(&store, &record.id).await, record, "{text:?}");
    }
    let mut large = record("large", 5);
    large.details.title = Some("\u{1F600}\0'".repeat(1 << 17));
    let created = store.create(large, Vec::new()).await.unwrap();
    assert_eq!(get(&store, "large").await, created);
    assert_eq!(store.get("S1").await.unwrap(), None, "ids differ by case");
}

pub(super) async fn accepts_any_text_as_an_id(store: Store) {
    let longest = "\u{1F600}".repeat(MAX_KEY_BYTES / 4);
    let ids: Vec<&str> = HOSTILE.into_iter().chain([longest.as_str()]).collect();
    for id in &ids {
        store.create(SessionRecord::new(*id, *id, at(7)), Vec::new()).await.unwrap();
        let event = event(id, json!({ "id": id })).turn_id(*id).rpc_id(*id);
        append(&store, id, [event.clone()]).await;
        let stored = all_events(&store, id).await;
        assert_eq!(stored, [event.stored(*id, 1, 0)]);
        assert_eq!(all_ids(&store, RecordQuery::all().agent(*id)).await, [*id]);
        store
            .advance(ScannedTo {
                owner: (*id).to_owned(),
                endpoint: (*id).to_owned(),
                position: position(1, 2),
            })
            .await
            .unwrap();
        assert_eq!(store.scanned_to(id, id).await.unwrap(), Some(position(1, 2)));
        assert_eq!(store.raise_incarnation(id, 1).await.unwrap(), 2);
    }
    // All were created at the same time, so that only the ids distinguish their cursors.
    let mut expected = ids.clone();
    expected.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(all_ids(&store, RecordQuery::all().limit(1)).await, expected);
}

pub(super) async fn refuses_what_not_every_store_can_hold(store: Store) {
    let refused = |result: Result<(), StoreError>| matches!(result, Err(StoreError::Invalid(_)));
    let (long, huge) = ("x".repeat(MAX_KEY_BYTES + 1), "x".repeat(1 << 20));
    create(&store, "s").await;
    let before = get(&store, "s").await;
    for key in ["", "a\0b", &long, &huge] {
        let mut owned = record("t", 5).owned_by(key);
        assert!(refused(store.create(owned.clone(), Vec::new()).await.map(drop)));
        owned.owner = None;
        owned.endpoint = Some(key.to_owned());
        assert!(refused(store.create(owned, Vec::new()).await.map(drop)));
        for new in [SessionRecord::new(key, "mock", at(1)), SessionRecord::new("t", key, at(1))] {
            assert!(refused(store.create(new, Vec::new()).await.map(drop)), "{}", key.len());
        }
        for bad in [event(key, 1), event("e", 1).turn_id(key), event("e", 1).rpc_id(key)] {
            assert!(refused(store.create(record("t", 5), vec![bad.clone()]).await.map(drop)));
            assert!(refused(store.append(Append::to("s").events([event("a", 1), bad])).await.map(drop)));
        }
        let mut patch = RecordPatch::default();
        patch.agent_session = Change::Set(AgentSession { id: key.to_owned(), incarnation: 1 });
        assert!(refused(store.append(Append::to("s").patch(patch)).await.map(drop)));
        assert!(refused(store.raise_incarnation(key, 1).await.map(drop)));
        assert!(refused(store.suspend(Suspend::Own(key.to_owned()), at(1)).await.map(drop)));
        // A query for it finds nothing and does not fail.
        assert_eq!(store.get(key).await.unwrap(), None);
        assert!(!store.delete(key).await.unwrap());
        assert_eq!(store.events(&EventQuery::of(key)).await.unwrap().events, []);
        assert!(store.open(key).await.unwrap().is_empty());
        assert_eq!(store.count(&RecordQuery::all().agent(key)).await.unwrap(), 0);
        assert_eq!(store.list(&RecordQuery::all().user_key(key)).await.unwrap().records, []);
        assert_eq!(store.scanned_to(key, "e").await.unwrap(), None);
    }
    assert!(refused(store.create(record("t", u64::MAX), Vec::new()).await.map(drop)));
    let late = NewEvent::new("e", at(u64::MAX), "update", 1);
    assert!(refused(store.append(Append::to("s").events([late])).await.map(drop)));
    let far = NewEvent::from_stream(1, u64::MAX, at(1), "update", 1);
    assert!(refused(store.append(Append::to("s").events([far])).await.map(drop)));
    assert!(refused(store.suspend(Suspend::All, at(u64::MAX)).await.map(drop)));
    assert_eq!(get(&store, "s").await, before);
    assert_eq!(store.count(&RecordQuery::all()).await.unwrap(), 1);
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(
        json!("\0"),
        |inside, level| {
            if level % 2 == 0 { json!([inside]) } else { json!({ "a": inside }) }
        },
    )
}

pub(super) async fn returns_values_however_deeply_they_are_nested(store: Store) {
    for (n, levels) in [100, 127, 128, 200, MAX_DEPTH].into_iter().enumerate() {
        let mut session = record(&format!("s{n}"), 5);
        session.details.metadata.insert("deep".to_owned(), nested(levels));
        session.details.config_options = Some(nested(levels));
        let created = store.create(session, Vec::new()).await.unwrap();
        assert_eq!(get(&store, &created.id).await, created, "{levels}");
        append(&store, &created.id, [event("e", nested(levels)), event("f", 1)]).await;
        let stored = all_events(&store, &created.id).await;
        assert_eq!((&stored[0].payload, &stored[1].payload), (&nested(levels), &json!(1)), "{levels}");
    }
    let too_deep = Append::to("s0").events([event("g", nested(MAX_DEPTH + 1))]);
    assert!(matches!(store.append(too_deep).await, Err(StoreError::Invalid(_))));
    let mut patch = RecordPatch::default();
    patch.modes = Some(nested(MAX_DEPTH + 1));
    assert!(matches!(store.append(Append::to("s0").patch(patch)).await, Err(StoreError::Invalid(_))));
    assert_eq!(store.list(&RecordQuery::all()).await.unwrap().records.len(), 5);
}

fn imported(count: u64) -> (SessionRecord, Vec<NewEvent>) {
    let events = (0..count).map(|n| {
        let payload = json!({"n": n, "text": "x".repeat(n as usize % 50)});
        if n % 2 == 0 {
            NewEvent::new(format!("e{n}"), at(10 + n), "update", payload)
        } else {
            NewEvent::from_stream(3, n, at(10 + n), "prompt", payload).turn_id("t").rpc_id("r")
        }
    });
    (record("i", 5), events.collect())
}

pub(super) async fn creates_a_session_whole_or_not_at_all(store: Store) {
    let (record, events) = imported(2_500);
    let mut twice = events.clone();
    twice[2_400].key = events[7].key.clone();
    let mut nameless = events.clone();
    nameless[2_400] = event("", 1);
    for bad in [twice, nameless] {
        assert!(matches!(store.create(record.clone(), bad).await, Err(StoreError::Invalid(_))));
        assert_eq!(store.get("i").await.unwrap(), None);
        assert_eq!(all_events(&store, "i").await, []);
    }
    let created = store.create(record.clone(), events.clone()).await.unwrap();
    assert_eq!((created.revision, created.last_index, created.last_active_at), (1, 2_500, at(10 + 2_499)));
    assert_eq!(get(&store, "i").await, created);
    let expected: Vec<_> =
        (1..).zip(events.clone()).map(|(index, event)| event.stored("i", index, 0)).collect();
    assert_eq!(all_events(&store, "i").await, expected);
    assert!(store.open("i").await.unwrap().is_empty(), "history is not open");
    let again = store.create(record, Vec::new()).await;
    assert!(matches!(again, Err(StoreError::Exists { id }) if id == "i"));
    assert_eq!(
        append(&store, "i", [events[6].clone(), event("new", 1), events[7].clone()]).await,
        [7, 2_501, 8]
    );
}

pub(super) async fn stores_nothing_of_a_creation_that_is_dropped(store: Store) {
    for waits in (0..60).step_by(3) {
        let (record, events) = imported(600);
        if let Some(created) = drop_after(waits, store.create(record, events)).await {
            assert_eq!(created.unwrap().last_index, 600);
        }
        // It may be committed just as it is dropped, but then all of it is.
        let (record, _) = imported(0);
        let expected = match store.create(record, Vec::new()).await {
            Ok(_) => 0,
            Err(StoreError::Exists { .. }) => 600,
            Err(error) => panic!("{error:?}"),
        };
        assert_eq!(all_events(&store, "i").await.len(), expected);
        assert_eq!(get(&store, "i").await.last_index, expected as u64);
        store.delete("i").await.unwrap();
    }
}

pub(super) async fn applies_every_member_of_a_patch(store: Store) {
    create(&store, "s").await;
    let termination = TerminationInfo::new(EndReason::Error, TerminatedBy::Agent);
    let session = |id: &str| AgentSession { id: id.to_owned(), incarnation: 1 };
    let mut patch = RecordPatch::default();
    patch.last_active_at = Some(at(700));
    patch.endpoint = Some("e".to_owned());
    patch.agent_session = Change::Set(session("a"));
    patch.caught_up = Some(true);
    patch.user_key = Change::Set("u".to_owned());
    patch.title = Change::Set("t".to_owned());
    patch.supports_resume = Some(true);
    patch.config_options = Some(json!([1]));
    patch.modes = Some(json!({"currentModeId": "ask", "availableModes": []}));
    patch.current_model = Some("small".to_owned());
    patch.termination_info = Change::Set(termination.clone());
    patch.replay_pending = Some(true);
    patch.metadata.insert("k".to_owned(), json!(1));
    let patched = store.append(Append::to("s").patch(patch)).await.unwrap().record.unwrap();
    let mut expected = record("s", 5);
    expected.last_active_at = at(700);
    expected.endpoint = Some("e".to_owned());
    expected.agent_session = Some(session("a"));
    expected.caught_up = true;
    expected.user_key = Some("u".to_owned());
    expected.details.title = Some("t".to_owned());
    expected.details.supports_resume = true;
    expected.details.config_options = Some(json!([1]));
    expected.details.modes = Some(json!({"currentModeId": "ask", "availableModes": []}));
    expected.details.models = Some(json!({"currentModelId": "small"}));
    expected.details.termination_info = Some(termination);
    expected.details.replay_pending = true;
    expected.details.metadata.insert("k".to_owned(), json!(1));
    expected.revision = 2;
    assert_eq!(patched, expected);
    assert_eq!(get(&store, "s").await, expected);

    let mut patch = RecordPatch::default();
    patch.last_active_at = Some(at(6));
    patch.agent_session = Change::Set(session("b"));
    patch.title = Change::Clear;
    patch.user_key = Change::Clear;
    patch.termination_info = Change::Clear;
    patch.current_mode = Some("code".to_owned());
    patch.metadata.insert("k".to_owned(), Value::Null);
    let patched = store.append(Append::to("s").patch(patch)).await.unwrap().record.unwrap();
    expected.agent_session = Some(session("b"));
    expected.user_key = None;
    let details = &mut expected.details;
    (details.title, details.termination_info) = (None, None);
    details.modes = Some(json!({"currentModeId": "code", "availableModes": []}));
    details.metadata.clear();
    details.earlier_agent_sessions = vec![session("a")];
    expected.revision = 3;
    assert_eq!(patched, expected);
    assert_eq!(get(&store, "s").await, expected);
    // Events do not change the record.
    assert_eq!(store.append(Append::to("s").events([event(1, 1)])).await.unwrap().record, None);
    assert_eq!(get(&store, "s").await.revision, 3);
}

pub(super) async fn refuses_transitions_and_actions_by_status(store: Store) {
    create(&store, "s").await;
    let prompt = |id: u64| Append::to("s").action(UserAction::Send).events([event(id, 1)]);
    store.append(prompt(1)).await.unwrap();
    let archive = Append::to("s").patch(RecordPatch::status(StatusEvent::Archive)).events([event(2, 2)]);
    let archived = store.append(archive.clone()).await.unwrap();
    assert_eq!(archived.record.unwrap().status, SessionStatus::Archived);
    let before = get(&store, "s").await;
    let refused = store.append(archive.events([event(3, 3)])).await;
    let is_forbidden = |error: &StoreError| {
        matches!(error, StoreError::Status(TransitionError::Forbidden { from: SessionStatus::Archived, .. }))
    };
    assert!(is_forbidden(&refused.unwrap_err()));
    let refused = store.append(prompt(4)).await;
    assert!(matches!(
        refused,
        Err(StoreError::NotAllowed { id, action: UserAction::Send, status: SessionStatus::Archived }) if id == "s"
    ));
    assert_eq!(get(&store, "s").await, before, "nothing of it was stored");
    assert_eq!(all_events(&store, "s").await.len(), 2);
    let missing = store.append(Append::to("gone").patch(RecordPatch::status(StatusEvent::Archive))).await;
    assert!(matches!(missing, Err(StoreError::NotFound { id }) if id == "gone"));
}

pub(super) async fn loses_no_patch_of_many_tasks(store: Store) {
    create(&store, "s").await;
    let tasks = (0..8u64).map(|task| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for n in 0..10u64 {
                let mut patch = RecordPatch::default();
                patch.metadata.insert(format!("{task}-{n}"), n.into());
                store
                    .append(Append::to("s").patch(patch).events([event(format!("{task}-{n}"), n)]))
                    .await
                    .unwrap();
            }
        })
    });
    futures::future::try_join_all(tasks.collect::<Vec<_>>()).await.unwrap();
    let record = get(&store, "s").await;
    assert_eq!((record.details.metadata.len(), record.revision, record.last_index), (80, 81, 80));
}

pub(super) async fn deletes_a_session_with_its_events(store: Store) {
    for id in ["a", "b"] {
        create(&store, id).await;
        append(&store, id, [event(1, 1), event(2, 2).rpc_id("r")]).await;
    }
    assert!(store.delete("a").await.unwrap());
    assert!(!store.delete("a").await.unwrap());
    assert_eq!(store.get("a").await.unwrap(), None);
    assert_eq!(all_events(&store, "a").await, []);
    assert_eq!(all_events(&store, "b").await.len(), 2);
    store.create(record("a", 6), Vec::new()).await.unwrap();
    assert_eq!(all_events(&store, "a").await, [], "a new session of the same id has none of its events");
    assert_eq!(append(&store, "a", [event(1, 9)]).await, [1]);
}

pub(super) async fn deletes_only_what_is_unchanged(store: Store) {
    let seen = create(&store, "s").await;
    append(&store, "s", [event(1, 1)]).await;
    assert!(!store.delete_unchanged(&seen).await.unwrap(), "something happened in it");
    let seen = get(&store, "s").await;
    let mut patch = RecordPatch::default();
    patch.title = Change::Set("t".to_owned());
    store.append(Append::to("s").patch(patch)).await.unwrap();
    assert!(!store.delete_unchanged(&seen).await.unwrap(), "its record changed");
    let seen = get(&store, "s").await;
    store.acquire("s", super::super::Acquire::by("p")).await.unwrap();
    assert!(!store.delete_unchanged(&seen).await.unwrap(), "it was acquired");
    let seen = get(&store, "s").await;
    assert!(store.delete_unchanged(&seen).await.unwrap());
    assert!(!store.delete_unchanged(&seen).await.unwrap(), "it is gone");
    assert_eq!(store.get("s").await.unwrap(), None);
    assert_eq!(all_events(&store, "s").await, []);
    store.create(record("again", 5), Vec::new()).await.unwrap();
    let seen = get(&store, "again").await;
    store.delete("again").await.unwrap();
    store.create(record("again", 6), Vec::new()).await.unwrap();
    assert!(!store.delete_unchanged(&seen).await.unwrap(), "it is another session with the same id");
}

pub(super) async fn fails_after_it_was_closed(store: Store) {
    create(&store, "s").await;
    store.close().await;
    store.close().await;
    assert!(matches!(store.get("s").await, Err(StoreError::Closed)));
    assert!(matches!(store.append(Append::to("s").events([event(1, 1)])).await, Err(StoreError::Closed)));
    assert!(matches!(store.create(record("t", 5), Vec::new()).await, Err(StoreError::Closed)));
    assert!(matches!(store.suspend(Suspend::All, at(9)).await, Err(StoreError::Closed)));
}
