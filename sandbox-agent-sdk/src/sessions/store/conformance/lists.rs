//! Lists of sessions.

use super::super::{Acquire, Append, Cursor, RecordPatch, RecordQuery, StoreError};
use super::{Store, all_ids, append, at, create, event, record};
use crate::sessions::status::{ArchivedSessions, SessionStatus, StatusEvent};

/// Whether the session of this number is listed.
type Matches = fn(u64) -> bool;

pub(super) async fn returns_every_session_once_page_by_page(store: Store) {
    for n in 0..50u64 {
        // Several in the same millisecond.
        store.create(record(&format!("s{n:02}"), n / 5), Vec::new()).await.unwrap();
    }
    let expected: Vec<String> = (0..50).rev().map(|n| format!("s{n:02}")).collect();
    for limit in [1, 7, 49, 50, 51, 1_000_000, 0] {
        assert_eq!(all_ids(&store, RecordQuery::all().limit(limit)).await, expected, "limit {limit}");
    }
    assert_eq!(store.list(&RecordQuery::all().statuses([])).await.unwrap().records, []);
    assert_eq!(store.count(&RecordQuery::all().statuses([])).await.unwrap(), 0);
}

pub(super) async fn keeps_a_cursor_valid_while_others_write(store: Store) {
    for n in 0..20u64 {
        store.create(record(&format!("s{n:02}"), 10 + n), Vec::new()).await.unwrap();
    }
    let page = store.list(&RecordQuery::all().limit(10)).await.unwrap();
    // As text, as an application hands it out and gets it back.
    let cursor: Cursor = page.next.unwrap().to_string().parse().unwrap();
    store.create(record("newer", 99), Vec::new()).await.unwrap();
    store.delete(cursor.id()).await.unwrap();
    append(&store, "s05", [event(1, 1)]).await;
    let rest = all_ids(&store, RecordQuery::all().after(cursor).limit(3)).await;
    let expected: Vec<String> = (0..10).rev().map(|n| format!("s{n:02}")).collect();
    assert_eq!(rest, expected);
}

pub(super) async fn filters_by_every_column(store: Store) {
    for n in 0..40u64 {
        let mut record = record(&format!("s{n:02}"), n);
        record.status = SessionStatus::ALL[(n % 4) as usize];
        record.agent = ["claude", "codex", "Claude"][(n % 3) as usize].to_owned();
        record.user_key = (n % 5 > 0).then(|| format!("user {}", n % 5));
        record.endpoint = (n % 7 > 0).then(|| format!("endpoint {}", n % 7));
        record.owner = (n % 2 > 0).then(|| "p".to_owned());
        store.create(record, Vec::new()).await.unwrap();
    }
    let listed = RecordQuery::listed(ArchivedSessions::Hidden);
    let cases: Vec<(RecordQuery, Matches)> = vec![
        (RecordQuery::all(), |_| true),
        (listed.clone(), |n| n % 4 < 2),
        (RecordQuery::listed(ArchivedSessions::Shown), |n| n % 4 < 3),
        (RecordQuery::counted(), |n| n % 4 < 2),
        (listed.clone().agent("claude"), |n| n % 4 < 2 && n % 3 == 0),
        (RecordQuery::all().statuses([SessionStatus::Error; 3]), |n| n % 4 == 3),
        (RecordQuery::all().agent("unknown"), |_| false),
        (RecordQuery::all().user_key("user 2"), |n| n % 5 == 2),
        (RecordQuery::all().endpoint("endpoint 3"), |n| n % 7 == 3),
        (listed.clone().owner("p"), |n| n % 2 == 1 && n % 4 < 2),
        (RecordQuery::all().owner("p").endpoint("endpoint 5"), |n| n % 2 == 1 && n % 7 == 5),
        (listed.user_key("user 1").agent("codex"), |n| n % 4 < 2 && n % 5 == 1 && n % 3 == 1),
    ];
    for (query, matches) in cases {
        let expected: Vec<String> =
            (0..40).rev().filter(|n| matches(*n)).map(|n| format!("s{n:02}")).collect();
        assert_eq!(all_ids(&store, query.clone().limit(3)).await, expected, "{query:?}");
        assert_eq!(store.count(&query.clone().limit(1)).await.unwrap(), expected.len() as u64, "{query:?}");
    }
    // A change moves the session from one list to the other.
    store.append(Append::to("s00").patch(RecordPatch::status(StatusEvent::Archive))).await.unwrap();
    assert_eq!(store.count(&RecordQuery::all().statuses([SessionStatus::Archived])).await.unwrap(), 11);
    assert_eq!(store.count(&RecordQuery::all().statuses([SessionStatus::Active])).await.unwrap(), 9);
    store.acquire("s00", Acquire::by("p")).await.unwrap();
    assert_eq!(store.count(&RecordQuery::all().owner("p")).await.unwrap(), 21);
}

pub(super) async fn lists_the_longest_inactive_first(store: Store) {
    for n in 0..30u64 {
        let mut record = record(&format!("s{n:02}"), 1);
        record.last_active_at = at(100 - n / 3);
        record.status = if n % 2 == 0 { SessionStatus::Suspended } else { SessionStatus::Active };
        store.create(record, Vec::new()).await.unwrap();
    }
    let mut found = Vec::new();
    let mut query = RecordQuery::all().statuses([SessionStatus::Suspended]).inactive_before(at(97)).limit(4);
    loop {
        let page = store.list(&query).await.unwrap();
        found.extend(page.records.into_iter().map(|record| (record.last_active_at, record.id)));
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
    let older = RecordQuery::all().inactive_before(at(97));
    assert_eq!(store.count(&older).await.unwrap(), 18);
    let all = store.list(&older.limit(100)).await.unwrap().records;
    assert!(all.len() == 18 && all.is_sorted_by_key(|record| (record.last_active_at, record.id.clone())));
}

pub(super) async fn refuses_a_cursor_that_no_store_wrote(store: Store) {
    create(&store, "s").await;
    let long = "x".repeat(1 << 16);
    for id in ["", "a\0b", &long] {
        let cursor = Cursor::after(at(9), id);
        let listed = store.list(&RecordQuery::all().after(cursor.clone())).await;
        assert!(matches!(&listed, Err(StoreError::BadCursor { cursor }) if cursor.len() <= 64), "{listed:?}");
        let query = RecordQuery::all().inactive_before(at(9)).after(cursor);
        assert!(matches!(store.list(&query).await, Err(StoreError::BadCursor { .. })));
    }
}
