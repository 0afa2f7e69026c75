//! What is written again, to whom it belongs, and what comes in as a whole.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sandbox_agent_sdk::sessions::{NewEvent, SessionRecord, SessionStore, StoreError};
use serde_json::json;

use crate::support::{all_events, assert_gap_free, at, event, record};

type Store = Arc<dyn SessionStore>;

pub(crate) async fn stores_an_event_once_however_often_it_is_written(store: Store) {
    for id in ["s", "t"] {
        store.put(record(id, 5)).await.unwrap();
    }
    let batch = vec![event("s", "a", 1), event("t", "a", 2), event("s", "b", 3)];
    assert_eq!(store.append(batch.clone()).await.unwrap(), [1, 1, 2]);
    let before = [all_events(&*store, "s").await, all_events(&*store, "t").await];
    for _ in 0..3 {
        assert_eq!(store.append(batch.clone()).await.unwrap(), [1, 1, 2]);
    }
    assert_eq!([all_events(&*store, "s").await, all_events(&*store, "t").await], before);
    // Old ones between new ones, and new ones that are there twice.
    let mixed =
        ["b", "c", "a", "d", "c"].map(|id| NewEvent::new(id, "s", at(9_999), "prompt", json!({"again": id})));
    assert_eq!(store.append(mixed.to_vec()).await.unwrap(), [2, 3, 1, 4, 3]);
    let kept = all_events(&*store, "s").await;
    assert_gap_free(&kept);
    let payloads: Vec<_> = kept.iter().map(|event| (event.id.as_str(), event.payload.clone())).collect();
    let again = |id: &str| json!({ "again": id });
    assert_eq!(payloads, [("a", json!(1)), ("b", json!(3)), ("c", again("c")), ("d", again("d"))]);
    assert_eq!(store.get("s").await.unwrap().unwrap().last_index, 4);
    // A session that is made anew has had no events.
    store.delete("s").await.unwrap();
    store.put(record("s", 5)).await.unwrap();
    assert_eq!(store.append(vec![event("s", "b", 7)]).await.unwrap(), [1]);
}

pub(crate) async fn gives_all_who_write_the_same_batch_the_same_indexes(store: Store) {
    for id in ["s", "t"] {
        store.put(record(id, 5)).await.unwrap();
    }
    for round in 0..10usize {
        let session = |n: usize| if (n + round).is_multiple_of(2) { "s" } else { "t" };
        let batch: Vec<NewEvent> = (0..30).map(|n| event(session(n), format!("{round}-{n}"), n)).collect();
        let writers = (0..6).map(|_| {
            let (store, batch) = (Arc::clone(&store), batch.clone());
            tokio::spawn(async move { store.append(batch).await.unwrap() })
        });
        let told = futures::future::try_join_all(writers).await.unwrap();
        assert!(told.iter().all(|indexes| *indexes == told[0]), "{told:?}");
    }
    for id in ["s", "t"] {
        let events = all_events(&*store, id).await;
        assert_gap_free(&events);
        assert_eq!(events.len(), 150);
    }
}

pub(crate) async fn gives_events_only_to_the_session_they_happened_in(store: Store) {
    store.put(record("s", 5)).await.unwrap();
    store.put(record("other", 5)).await.unwrap();
    let of = |moment: Option<u64>, id: &str| {
        let mut event = event("s", id, 1);
        event.session_made_at = moment.map(at);
        event
    };
    assert_eq!(store.append(vec![of(Some(5), "a"), of(None, "b")]).await.unwrap(), [1, 2]);
    store.delete("s").await.unwrap();
    store.put(record("s", 6)).await.unwrap();
    for batch in [
        vec![of(Some(5), "a")],
        vec![of(Some(5), "c")],
        vec![event("other", 1, 1), of(Some(6), "d"), of(Some(5), "e")],
    ] {
        let refused = store.append(batch).await;
        assert!(matches!(&refused, Err(StoreError::NotFound { id }) if id == "s"), "{refused:?}");
    }
    assert_eq!(all_events(&*store, "s").await, []);
    assert_eq!(all_events(&*store, "other").await, []);
    assert_eq!(store.append(vec![of(Some(6), "a"), of(None, "b")]).await.unwrap(), [1, 2]);
}

fn imported(count: usize) -> (SessionRecord, Vec<NewEvent>) {
    let mut record = record("i", 5);
    record.title = Some("whole".to_owned());
    let events = (0..count).map(|n| {
        let payload = json!({"n": n, "text": "x".repeat(n % 50)});
        NewEvent::new(format!("e{n}"), "i", at(10 + n as u64), "update", payload)
    });
    (record, events.collect())
}

pub(crate) async fn imports_a_session_whole_or_not_at_all(store: Store) {
    let (record, events) = imported(2_500);
    let mut foreign = events.clone();
    foreign[2_400].session_id = "j".to_owned();
    let mut twice = events.clone();
    twice[2_400].id = "e7".to_owned();
    let mut nameless = events.clone();
    nameless[2_400].id = String::new();
    for spoilt in [foreign, twice, nameless] {
        let refused = store.import(record.clone(), spoilt).await;
        assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
        assert_eq!(store.get("i").await.unwrap(), None);
        assert_eq!(all_events(&*store, "i").await, []);
    }
    let kept = store.import(record.clone(), events.clone()).await.unwrap();
    assert_eq!((kept.revision, kept.last_index, kept.last_active), (1, 2_500, at(10 + 2_499)));
    assert_eq!(store.get("i").await.unwrap(), Some(kept.clone()));
    let expected: Vec<_> = (1..).zip(events.clone()).map(|(index, event)| event.at(index)).collect();
    assert_eq!(all_events(&*store, "i").await, expected);
    let again = store.import(record.clone(), Vec::new()).await;
    assert!(matches!(again, Err(StoreError::Exists { id }) if id == "i"));
    assert!(matches!(store.import(kept, Vec::new()).await, Err(StoreError::Invalid(_))), "it is not new");
    // What is there counts for what is written again.
    assert_eq!(store.append(vec![events[6].clone(), event("i", "new", 1)]).await.unwrap(), [7, 2_501]);
}

pub(crate) async fn keeps_nothing_of_an_import_that_is_dropped(store: Store) {
    for round in 0..20u64 {
        let (record, events) = imported(3_000);
        let importing = store.import(record, events);
        // Dropped after a while that is longer each time, at another place of its work.
        let ended = tokio::time::timeout(Duration::from_micros(300 * round * round), importing).await;
        if let Ok(kept) = ended {
            assert_eq!(kept.unwrap().last_index, 3_000);
            assert_eq!(all_events(&*store, "i").await.len(), 3_000);
        }
        // It may be written just as it is dropped, but then all of it is: whoever writes next comes behind it.
        let (record, _) = imported(0);
        let expected = match store.import(record, Vec::new()).await {
            Ok(_) => 0,
            Err(StoreError::Exists { .. }) => 3_000,
            Err(error) => panic!("{error:?}"),
        };
        assert_eq!(all_events(&*store, "i").await.len(), expected);
        assert_eq!(store.get("i").await.unwrap().unwrap().last_index, expected as u64);
        store.delete("i").await.unwrap();
    }
}

/// Goes on with something until it has waited so many times, and drops it then.
async fn until<T>(mut waits: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if waits == 0 => Poll::Ready(None),
        Poll::Pending => {
            waits -= 1;
            Poll::Pending
        }
    })
    .await
}

pub(crate) async fn goes_on_after_a_call_that_was_dropped_wherever_it_was(store: Store) {
    store.put(record("s", 5)).await.unwrap();
    let mut count = 0;
    for waits in 0..40usize {
        let batch = |call: &str| {
            vec![event("s", format!("{call}{waits}"), waits), event("s", format!("{call}{waits}b"), 1)]
        };
        let dropped = until(waits, store.append(batch("dropped"))).await;
        let last = store.append(batch("next")).await.unwrap()[1];
        assert!(
            last == count + 2 || last == count + 4,
            "the one that was dropped was written whole or not at all"
        );
        assert!(dropped.is_none_or(|indexes| indexes.unwrap() == [count + 1, count + 2]));
        count = last;
        let made = until(waits, store.put(record(&format!("s{waits}"), 5))).await;
        let again = store.put(record(&format!("s{waits}"), 5)).await;
        assert!(
            matches!((&made, &again), (None, Ok(_)) | (_, Err(StoreError::Exists { .. }))),
            "{made:?} {again:?}"
        );
    }
    assert_gap_free(&all_events(&*store, "s").await);
}
