//! What stores are given that is hard to keep.

use std::sync::Arc;

use sandbox_agent_sdk::sessions::{
    Cursor, InactiveQuery, MAX_DEPTH, NewEvent, RecordQuery, SessionStatus, SessionStore, StoreError,
};
use serde_json::{Value, json};

use crate::support::{all_events, at, event, record};

type Store = Arc<dyn SessionStore>;

fn nested(levels: usize) -> Value {
    (0..levels).fold(
        json!("\0"),
        |inside, level| {
            if level % 2 == 0 { json!([inside]) } else { json!({ "a": inside }) }
        },
    )
}

pub(crate) async fn reads_whatever_it_took_however_deeply_it_is_nested(store: Store) {
    for (n, levels) in [100, 126, 127, 128, 129, 200, MAX_DEPTH].into_iter().enumerate() {
        let mut session = record(&format!("s{n}"), 5);
        session.metadata.insert("deep".to_owned(), nested(levels));
        session.config_options = Some(nested(levels));
        let put = store.put(session).await.unwrap();
        assert_eq!(store.get(&put.id).await.unwrap().as_ref(), Some(&put), "{levels}");
        store.append(vec![event(&put.id, "e", nested(levels)), event(&put.id, "f", 1)]).await.unwrap();
        let kept = all_events(&*store, &put.id).await;
        assert_eq!((&kept[0].payload, &kept[1].payload), (&nested(levels), &json!(1)), "{levels}");
    }
    assert_eq!(store.list(&RecordQuery::all()).await.unwrap().records.len(), 7);
}

pub(crate) async fn refuses_what_it_could_not_read_again(store: Store) {
    let put = store.put(record("s", 5)).await.unwrap();
    let refused = |error: StoreError| assert!(matches!(error, StoreError::Invalid(_)), "{error:?}");
    for levels in [MAX_DEPTH + 1, 1_000] {
        let mut changed = put.clone();
        changed.metadata.insert("deep".to_owned(), nested(levels));
        refused(store.put(changed).await.unwrap_err());
        let mut new = record("t", 5);
        new.modes = Some(nested(levels));
        refused(store.put(new.clone()).await.unwrap_err());
        refused(store.import(new, Vec::new()).await.unwrap_err());
        let deep = event("s", "e", nested(levels));
        refused(store.append(vec![event("s", "a", 1), deep]).await.unwrap_err());
    }
    let late = NewEvent::new("e", "s", at(u64::MAX), "update", 1);
    refused(store.append(vec![late]).await.unwrap_err());
    assert_eq!(store.get("s").await.unwrap(), Some(put));
    assert_eq!(store.get("t").await.unwrap(), None);
    assert_eq!(all_events(&*store, "s").await, []);
}

pub(crate) async fn refuses_a_cursor_behind_an_id_that_no_session_has(store: Store) {
    store.put(record("s", 5)).await.unwrap();
    let long = "x".repeat(1 << 16);
    for id in ["", "a\0b", &long] {
        let cursor = Cursor::behind(at(9), id);
        let listed = store.list(&RecordQuery::all().after(cursor.clone())).await;
        assert!(matches!(&listed, Err(StoreError::BadCursor { cursor }) if cursor.len() <= 64), "{listed:?}");
        let query = InactiveQuery::new(SessionStatus::Active, at(9)).after(cursor);
        assert!(matches!(store.inactive(&query).await, Err(StoreError::BadCursor { .. })));
    }
}
