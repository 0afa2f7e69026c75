//! What every store promises.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sandbox_agent_sdk::sessions::{
    ArchivedSessions, Cursor, EventQuery, InactiveQuery, MAX_KEY_BYTES, MAX_PAGE, NewEvent, RecordQuery,
    SessionRecord, SessionStatus, SessionStore, StoreError, StoredEventKind,
};
use serde_json::json;

use crate::support::{all_events, all_ids, assert_gap_free, at, event, record};

type Store = Arc<dyn SessionStore>;

const HOSTILE: [&str; 7] = [
    "'; DROP TABLE sessions; --",
    "\"quoted\" `ticked` $1 ?1 %s {}",
    "line\nbreak\ttab\r",
    "back\\slash\\0",
    "\u{1F600}\u{202E}e\u{301}\u{FEFF}",
    "%_*",
    " ",
];

pub(crate) async fn gives_a_record_back_as_it_was_put(store: Store) {
    for (n, text) in HOSTILE.into_iter().chain(["NUL \0 inside"]).enumerate() {
        let mut record = record(&format!("s{n}"), 5);
        record.title = Some(text.to_owned());
        record.agent_session_id = Some(text.repeat(3));
        record.status = SessionStatus::ALL[n % 4];
        record.resumable = n % 2 == 0;
        record.metadata.insert(text.to_owned(), json!([text, 0.1, 1e300, -0.0, u64::MAX, i64::MIN, null]));
        record.init.insert("cwd".to_owned(), text.into());
        record.created_at = at([0, 1, i64::MAX as u64][n % 3]);
        let put = store.put(record.clone()).await.unwrap();
        assert_eq!((put.revision, put.last_index), (1, 0));
        let mut expected = record;
        expected.revision = 1;
        assert_eq!(put, expected);
        assert_eq!(store.get(&expected.id).await.unwrap().as_ref(), Some(&expected), "{text:?}");
    }
    let mut large = record("large", 5);
    large.title = Some("\u{1F600}\0'".repeat(1 << 17));
    let put = store.put(large).await.unwrap();
    assert_eq!(store.get("large").await.unwrap(), Some(put));
    assert_eq!(store.get("S1").await.unwrap(), None, "ids differ by case");
}

pub(crate) async fn takes_hostile_ids_as_keys_like_any_other(store: Store) {
    let longest = "\u{1F600}".repeat(MAX_KEY_BYTES / 4);
    let ids: Vec<&str> = HOSTILE.into_iter().chain([longest.as_str()]).collect();
    for id in &ids {
        store.put(SessionRecord::new(*id, *id, at(7))).await.unwrap();
        store.append(vec![event(id, id, json!({"id": id}))]).await.unwrap();
    }
    for id in &ids {
        assert_eq!(store.get(id).await.unwrap().unwrap().agent, *id);
        let kept = all_events(&*store, id).await;
        assert_eq!((kept.len(), kept[0].id.as_str(), &kept[0].payload), (1, *id, &json!({"id": id})));
        assert_eq!(all_ids(&*store, RecordQuery::all().agent(*id)).await, [*id]);
    }
    // All were made at the same moment, so that their cursors are told apart by hostile ids alone.
    let listed = all_ids(&*store, RecordQuery::all().limit(1)).await;
    let mut expected: Vec<&str> = ids.clone();
    expected.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(listed, expected);
}

pub(crate) async fn refuses_what_not_every_store_could_keep(store: Store) {
    let long = "x".repeat(MAX_KEY_BYTES + 1);
    let huge = "x".repeat(1 << 20);
    for key in ["", "a\0b", &long, &huge] {
        let refused = |result: Result<(), StoreError>| matches!(result, Err(StoreError::Invalid(_)));
        assert!(refused(store.put(SessionRecord::new(key, "mock", at(1))).await.map(drop)), "{}", key.len());
        assert!(refused(store.put(SessionRecord::new("s", key, at(1))).await.map(drop)), "{}", key.len());
        assert!(refused(store.append(vec![event(key, "e", 1)]).await.map(drop)), "{}", key.len());
        assert!(refused(store.append(vec![event("s", key, 1)]).await.map(drop)), "{}", key.len());
        // Asking for it finds nothing, and is no failure.
        assert_eq!(store.get(key).await.unwrap(), None);
        assert!(!store.delete(key).await.unwrap());
        assert_eq!(store.events(&EventQuery::of(key)).await.unwrap().events, []);
        assert_eq!(store.count(&RecordQuery::all().agent(key)).await.unwrap(), 0);
        assert_eq!(store.list(&RecordQuery::all().agent(key)).await.unwrap().records, []);
    }
    let future = record("s", u64::MAX);
    assert!(matches!(store.put(future).await, Err(StoreError::Invalid(_))));
    assert_eq!(store.count(&RecordQuery::all()).await.unwrap(), 0);
}

pub(crate) async fn replaces_a_record_only_for_whoever_read_it_last(store: Store) {
    let first = store.put(record("s", 5)).await.unwrap();
    assert!(matches!(store.put(record("s", 6)).await, Err(StoreError::Exists { id }) if id == "s"));
    let mut changed = first.clone();
    changed.title = Some("one".to_owned());
    changed.status = SessionStatus::Suspended;
    changed.created_at = at(99);
    changed.last_index = 77;
    let second = store.put(changed).await.unwrap();
    assert_eq!((second.revision, second.created_at, second.last_index), (2, at(5), 0), "the store's to say");
    assert_eq!(store.get("s").await.unwrap(), Some(second.clone()));
    let stale = store.put(first.clone()).await;
    assert!(matches!(stale, Err(StoreError::Conflict { id }) if id == "s"));
    assert_eq!(store.get("s").await.unwrap(), Some(second.clone()));
    // Events are no change of the record.
    store.append(vec![event("s", "e", 1)]).await.unwrap();
    let third = store.put(second).await.unwrap();
    assert_eq!((third.revision, third.last_index), (3, 1));
    let mut gone = third;
    gone.id = "gone".to_owned();
    assert!(matches!(store.put(gone).await, Err(StoreError::NotFound { id }) if id == "gone"));
}

pub(crate) async fn loses_no_change_of_many_tasks(store: Store) {
    store.put(record("s", 5)).await.unwrap();
    let tasks = (0..8).map(|_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for _ in 0..10 {
                loop {
                    let mut record = store.get("s").await.unwrap().unwrap();
                    let count = record.metadata.get("n").and_then(|n| n.as_u64()).unwrap_or_default();
                    record.metadata.insert("n".to_owned(), (count + 1).into());
                    match store.put(record).await {
                        Ok(_) => break,
                        Err(StoreError::Conflict { .. }) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        })
    });
    futures::future::try_join_all(tasks).await.unwrap();
    let record = store.get("s").await.unwrap().unwrap();
    assert_eq!((&record.metadata["n"], record.revision), (&json!(80), 81));
}

pub(crate) async fn numbers_events_without_holes_under_many_writers(store: Store) {
    let sessions = ["a", "b", "c"];
    for session in sessions {
        store.put(record(session, 5)).await.unwrap();
    }
    let writers = (0..8usize).map(|writer| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for batch in 0..20usize {
                // Sessions in an order of the writer's own: two that wait for each other would never end.
                let pick = |n: usize| sessions[(n * (writer + 1) + batch) % 3];
                let events: Vec<NewEvent> = (0..1 + (batch * 7 + writer) % 9)
                    .map(|n| event(pick(n), format!("{writer}-{batch}-{n}"), json!([writer, batch, n])))
                    .collect();
                let indexes = store.append(events.clone()).await.unwrap();
                assert_eq!(indexes.len(), events.len());
                let mut last: HashMap<&str, u64> = HashMap::new();
                for (event, index) in events.iter().zip(indexes) {
                    if let Some(before) = last.insert(&event.session_id, index) {
                        assert_eq!(index, before + 1, "another writer came between the events of a batch");
                    }
                }
            }
        })
    });
    futures::future::try_join_all(writers).await.unwrap();
    let mut ids = HashSet::new();
    for session in sessions {
        let events = all_events(&*store, session).await;
        assert_gap_free(&events);
        assert_eq!(store.get(session).await.unwrap().unwrap().last_index, events.len() as u64);
        // What one writer wrote to the session is there in its order.
        for writer in 0..8u64 {
            let own: Vec<_> = events.iter().filter(|event| event.payload[0] == writer).collect();
            assert!(own.is_sorted_by_key(|event| (event.payload[1].as_u64(), event.payload[2].as_u64())));
        }
        ids.extend(events.into_iter().map(|event| event.id));
    }
    let expected: usize = (0..8).flat_map(|w| (0..20).map(move |b| 1 + (b * 7 + w) % 9)).sum();
    assert_eq!(ids.len(), expected);
}

pub(crate) async fn writes_a_batch_whole_or_not_at_all(store: Store) {
    store.put(record("s", 5)).await.unwrap();
    let batch = vec![event("s", 1, 1), event("gone", 2, 2), event("s", 3, 3)];
    assert!(matches!(store.append(batch).await, Err(StoreError::NotFound { id }) if id == "gone"));
    assert_eq!(all_events(&*store, "s").await, []);
    assert_eq!(store.append(Vec::new()).await.unwrap(), Vec::<u64>::new());
    assert_eq!(store.append(vec![event("s", 1, 1)]).await.unwrap(), [1], "no index was used up");
}

pub(crate) async fn gives_events_back_page_by_page_in_order(store: Store) {
    store.put(record("s", 5)).await.unwrap();
    store.put(record("other", 5)).await.unwrap();
    let payloads =
        [json!(null), json!("\0"), json!({"deep": [{"a": "\u{0}\u{1}'\""}]}), json!("x".repeat(1 << 20))];
    let mut expected = Vec::new();
    for n in 0..150usize {
        let mut new = event("s", n, payloads[if n == 140 { 3 } else { n % 3 }].clone());
        new.kind = StoredEventKind::from(["update", "prompt", "of the \u{1F600} future"][n % 3]);
        // Clocks jump: the order is that of the index.
        new.recorded_at = at([9, 3, i64::MAX as u64, 0][n % 4]);
        expected.push(new.clone().at(n as u64 + 1));
        store.append(vec![event("other", n, n), new]).await.unwrap();
    }
    for limit in [0, 1, 7, 149, 150, 151, usize::MAX] {
        let page = store.events(&EventQuery::of("s").limit(limit)).await.unwrap();
        let size = limit.clamp(1, MAX_PAGE).min(150);
        assert_eq!(page.events, expected[..size], "limit {limit}");
        assert_eq!(page.next, (size < 150).then_some(size as u64), "limit {limit}");
    }
    assert_eq!(all_events(&*store, "s").await, expected);
    for after in [150, 151, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX] {
        let page = store.events(&EventQuery::of("s").after(after)).await.unwrap();
        assert_eq!((page.events.len(), page.next), (0, None), "after {after}");
    }
}

pub(crate) async fn gives_every_session_once_page_by_page(store: Store) {
    let mut expected: Vec<(u64, String)> = Vec::new();
    for n in 0..60u64 {
        // Many are made in the same millisecond.
        let made = n / 7;
        let id = format!("s{:02}", (n * 37) % 60);
        store.put(record(&id, made)).await.unwrap();
        expected.push((made, id));
    }
    expected.sort_unstable_by(|a, b| b.cmp(a));
    let expected: Vec<String> = expected.into_iter().map(|(_, id)| id).collect();
    for limit in [0, 1, 7, 59, 60, 61, usize::MAX] {
        assert_eq!(all_ids(&*store, RecordQuery::all().limit(limit)).await, expected, "limit {limit}");
    }
    // Cursors that nobody handed out are places like any other.
    for (at_millis, id, count) in [(u64::MAX, "z", 60), (0, " ", 0), (3, "\u{10FFFF}", 28), (3, " ", 21)] {
        let query = RecordQuery::all().after(Cursor::behind(at(at_millis), id));
        assert_eq!(store.list(&query).await.unwrap().records.len(), count, "{at_millis} {id:?}");
    }
    assert_eq!(store.list(&RecordQuery::all().statuses([])).await.unwrap().records, []);
}

pub(crate) async fn keeps_a_cursor_good_while_others_write(store: Store) {
    for n in 0..20u64 {
        store.put(record(&format!("s{n:02}"), 10 + n)).await.unwrap();
    }
    let page = store.list(&RecordQuery::all().limit(10)).await.unwrap();
    let cursor = page.next.unwrap();
    // The text form, as an application hands it out and gets it back.
    let cursor: Cursor = cursor.to_string().parse().unwrap();
    store.put(record("newer", 99)).await.unwrap();
    store.delete(cursor.id()).await.unwrap();
    store.append(vec![event("s05", 1, 1)]).await.unwrap();
    let rest = all_ids(&*store, RecordQuery::all().after(cursor).limit(3)).await;
    let expected: Vec<String> = (0..10).rev().map(|n| format!("s{n:02}")).collect();
    assert_eq!(rest, expected);
}

pub(crate) async fn filters_by_status_and_agent(store: Store) {
    for n in 0..40u64 {
        let mut record = record(&format!("s{n:02}"), n);
        record.status = SessionStatus::ALL[(n % 4) as usize];
        record.agent = ["claude", "codex", "Claude"][(n % 3) as usize].to_owned();
        store.put(record).await.unwrap();
    }
    let expected = |fits: &dyn Fn(u64) -> bool| -> Vec<String> {
        (0..40).rev().filter(|n| fits(*n)).map(|n| format!("s{n:02}")).collect()
    };
    let listed = RecordQuery::listed(ArchivedSessions::Hidden);
    let cases: [(RecordQuery, &dyn Fn(u64) -> bool); 7] = [
        (RecordQuery::all(), &|_| true),
        (listed.clone(), &|n| n % 4 < 2),
        (RecordQuery::listed(ArchivedSessions::Shown), &|n| n % 4 < 3),
        (RecordQuery::counted(), &|n| n % 4 < 2),
        (listed.agent("claude"), &|n| n % 4 < 2 && n % 3 == 0),
        (RecordQuery::all().statuses([SessionStatus::Error; 3]), &|n| n % 4 == 3),
        (RecordQuery::all().agent("nobody"), &|_| false),
    ];
    for (query, fits) in cases {
        let expected = expected(fits);
        assert_eq!(all_ids(&*store, query.clone().limit(3)).await, expected, "{query:?}");
        assert_eq!(store.count(&query.clone().limit(1)).await.unwrap(), expected.len() as u64, "{query:?}");
    }
    // A status that changes moves the session from one list to the other.
    let mut moved = store.get("s00").await.unwrap().unwrap();
    moved.status = SessionStatus::Archived;
    store.put(moved).await.unwrap();
    assert_eq!(store.count(&RecordQuery::all().statuses([SessionStatus::Archived])).await.unwrap(), 11);
    assert_eq!(store.count(&RecordQuery::all().statuses([SessionStatus::Active])).await.unwrap(), 9);
}

pub(crate) async fn lists_the_longest_inactive_first(store: Store) {
    for n in 0..30u64 {
        let mut record = record(&format!("s{n:02}"), 1);
        record.last_active = at(100 - n / 3);
        record.status = if n % 2 == 0 { SessionStatus::Suspended } else { SessionStatus::Active };
        store.put(record).await.unwrap();
    }
    let mut found = Vec::new();
    let mut query = InactiveQuery::new(SessionStatus::Suspended, at(97)).limit(4);
    loop {
        let page = store.inactive(&query).await.unwrap();
        found.extend(page.records.into_iter().map(|record| (record.last_active, record.id)));
        match page.next {
            Some(next) => query = query.after(next),
            None => break,
        }
    }
    let mut expected: Vec<_> = (0..30u64)
        .filter(|n| n % 2 == 0 && 100 - n / 3 < 97)
        .map(|n| (at(100 - n / 3), format!("s{n:02}")))
        .collect();
    expected.sort();
    assert_eq!(found, expected);
}

pub(crate) async fn deletes_a_session_with_its_events(store: Store) {
    for id in ["a", "b"] {
        store.put(record(id, 5)).await.unwrap();
        store.append(vec![event(id, 1, 1), event(id, 2, 2)]).await.unwrap();
    }
    assert!(store.delete("a").await.unwrap());
    assert!(!store.delete("a").await.unwrap());
    assert_eq!(store.get("a").await.unwrap(), None);
    assert_eq!(all_events(&*store, "a").await, []);
    assert_eq!(all_events(&*store, "b").await.len(), 2);
    store.put(record("a", 6)).await.unwrap();
    assert_eq!(all_events(&*store, "a").await, [], "a new session of the old id has none of its events");
    assert_eq!(store.append(vec![event("a", 9, 9)]).await.unwrap(), [1]);
}

pub(crate) async fn moves_the_last_activity_only_forward(store: Store) {
    let mut session = store.put(record("s", 500)).await.unwrap();
    let then = |id: &str, moment| NewEvent::new(id, "s", at(moment), "update", ());
    store.append(vec![then("late", 900), then("early", 100)]).await.unwrap();
    assert_eq!(store.get("s").await.unwrap().unwrap().last_active, at(900));
    session.last_active = at(600);
    assert_eq!(store.put(session).await.unwrap().last_active, at(900));
    store.append(vec![then("earlier", 50)]).await.unwrap();
    assert_eq!(store.get("s").await.unwrap().unwrap().last_active, at(900));
}

pub(crate) async fn says_that_it_is_closed(store: Store) {
    store.put(record("s", 5)).await.unwrap();
    store.close().await;
    store.close().await;
    assert!(matches!(store.get("s").await, Err(StoreError::Closed)));
    assert!(matches!(store.append(vec![event("s", 1, 1)]).await, Err(StoreError::Closed)));
    assert!(matches!(store.put(record("t", 5)).await, Err(StoreError::Closed)));
    assert!(matches!(store.import(record("t", 5), Vec::new()).await, Err(StoreError::Closed)));
    assert!(matches!(store.suspend_active(at(9)).await, Err(StoreError::Closed)));
}
