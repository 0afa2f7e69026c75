//! All active sessions at once, when a program shuts down.

use std::sync::Arc;

use futures::future::BoxFuture;
use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::{
    EventPage, EventQuery, InactiveQuery, MAX_PAGE, NewEvent, RecordPage, RecordQuery, SessionRecord,
    SessionStatus, SessionStore, StoreError,
};
use serde_json::json;

use crate::support::{all_events, all_ids, assert_gap_free, at, event, record};

type Store = Arc<dyn SessionStore>;
type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A store that has only what every store must have.
#[derive(Debug)]
struct Plain(Store);

impl SessionStore for Plain {
    fn put(&self, record: SessionRecord) -> Answer<'_, SessionRecord> {
        self.0.put(record)
    }
    fn get<'a>(&'a self, id: &'a str) -> Answer<'a, Option<SessionRecord>> {
        self.0.get(id)
    }
    fn list<'a>(&'a self, query: &'a RecordQuery) -> Answer<'a, RecordPage> {
        self.0.list(query)
    }
    fn count<'a>(&'a self, query: &'a RecordQuery) -> Answer<'a, u64> {
        self.0.count(query)
    }
    fn inactive<'a>(&'a self, query: &'a InactiveQuery) -> Answer<'a, RecordPage> {
        self.0.inactive(query)
    }
    fn delete<'a>(&'a self, id: &'a str) -> Answer<'a, bool> {
        self.0.delete(id)
    }
    fn import(&self, record: SessionRecord, events: Vec<NewEvent>) -> Answer<'_, SessionRecord> {
        self.0.import(record, events)
    }
    fn append(&self, events: Vec<NewEvent>) -> Answer<'_, Vec<u64>> {
        self.0.append(events)
    }
    fn events<'a>(&'a self, query: &'a EventQuery) -> Answer<'a, EventPage> {
        self.0.events(query)
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.0.close()
    }
}

/// A session whose document is as hard to change as can be.
pub(crate) fn hard_to_change(id: &str, status: SessionStatus) -> SessionRecord {
    let mut session = record(id, 5);
    session.status = status;
    session.agent = "\",\"status\":\"active\\".to_owned();
    session.title =
        Some("\"status\":\"active\" \0 \"lastActive\":1,\"lastIndex\":0,\"revision\":0}".to_owned());
    session.agent_session_id = Some("\\".to_owned());
    session.last_active = at(100);
    let numbers = json!([0.1, 1e300, -0.0, u64::MAX, i64::MIN, null]);
    let nested = json!({"status": "active", "lastActive": 1, "lastIndex": 0, "revision": 0});
    session.metadata.insert("numbers".to_owned(), numbers);
    session.metadata.insert("lastActive".to_owned(), nested.clone());
    session.metadata.insert("status".to_owned(), json!("active"));
    session.init.insert("revision".to_owned(), nested);
    session
}

/// Checks what a database keeps of sessions that were [hard to change](hard_to_change), before and after they were
/// suspended at the moment 150: the id, the status, the last activity, and the document.
pub(crate) fn assert_suspended_documents(
    before: &[(String, String, i64, String)],
    after: &[(String, String, i64, String)],
) {
    assert_eq!(before.len(), after.len());
    for ((id, _, _, old), (same, status, last_active, new)) in before.iter().zip(after) {
        assert_eq!((id, status.as_str(), *last_active), (same, "suspended", 150));
        if !old.starts_with("{\"") {
            assert_eq!(old, new, "nobody knows what it means");
            continue;
        }
        // The first status and the last activity of the text are those of the session.
        let marked = if old.contains(",\"status\":\"completed\",") { "completed" } else { "active" };
        let expected = old.replacen(&format!(",\"status\":\"{marked}\","), ",\"status\":\"suspended\",", 1);
        let (head, tail) = expected.rsplit_once("\"lastActive\":100,").unwrap();
        assert_eq!(*new, format!("{head}\"lastActive\":150,{tail}"), "{id}");
    }
}

/// Suspends twice, with one of these after the other, and looks at everything.
async fn suspends(store: &dyn SessionStore, by: &dyn SessionStore, round: u64) {
    let mut before = Vec::new();
    for (n, status) in SessionStatus::ALL.iter().copied().cycle().take(12).enumerate() {
        let mut session = hard_to_change(&format!("{round} '\"\\ {n}"), status);
        // One of them was active later than this program knows, by its clock.
        session.last_active = at(if n == 4 { 2_000 } else { 100 });
        let session = store.put(session).await.unwrap();
        store.append(vec![event(&session.id, 1, 1)]).await.unwrap();
        before.push(store.get(&session.id).await.unwrap().unwrap());
    }
    assert_eq!(by.suspend_active(at(1_500)).await.unwrap(), 3);
    for mut session in before {
        let now = store.get(&session.id).await.unwrap().unwrap();
        if session.status == SessionStatus::Active {
            let stale = store.put(session.clone()).await.unwrap_err();
            assert!(matches!(stale, StoreError::Conflict { .. }), "{stale:?}");
            session.status = SessionStatus::Suspended;
            session.last_active = session.last_active.max(at(1_500));
            session.revision += 1;
        }
        assert_eq!(now, session);
        // It can be changed and written to as before.
        let changed = store.put(now).await.unwrap();
        assert_eq!((changed.status, changed.last_index), (session.status, 1));
        assert_eq!(store.append(vec![event(&session.id, 2, 2)]).await.unwrap(), [2]);
    }
    assert_eq!(by.suspend_active(at(1_600)).await.unwrap(), 0, "there is none left");
}

pub(crate) async fn suspends_every_active_session_and_no_other(store: Store) {
    suspends(&*store, &*store, 1).await;
    suspends(&*store, &Plain(Arc::clone(&store)), 2).await;
    assert!(matches!(store.suspend_active(at(u64::MAX)).await, Err(StoreError::Invalid(_))));
    let active = RecordQuery::all().statuses([SessionStatus::Active]);
    assert_eq!(store.count(&active).await.unwrap(), 0);
    let suspended = InactiveQuery::new(SessionStatus::Suspended, at(1_501));
    assert_eq!(store.inactive(&suspended).await.unwrap().records.len(), 2 * 5);
}

pub(crate) async fn suspends_more_sessions_than_a_page_has(store: Store) {
    let count = MAX_PAGE + 50;
    for (round, by) in [Arc::clone(&store), Arc::new(Plain(Arc::clone(&store)))].into_iter().enumerate() {
        for n in 0..count {
            store.put(record(&format!("{round} {n}"), n as u64 / 100)).await.unwrap();
        }
        assert_eq!(by.suspend_active(at(9)).await.unwrap(), count as u64);
    }
    let suspended = RecordQuery::all().statuses([SessionStatus::Suspended]).limit(MAX_PAGE);
    assert_eq!(all_ids(&*store, suspended).await.len(), 2 * count);
}

pub(crate) async fn suspends_while_others_write_and_loses_nothing_of_them(store: Store) {
    const WRITES: u64 = 20;
    let ids: Vec<String> = (0..8).map(|n| format!("s{n}")).collect();
    for id in &ids {
        store.put(record(id, 5)).await.unwrap();
    }
    let writers = (0..4u64).map(|writer| {
        let (store, ids) = (Arc::clone(&store), ids.clone());
        tokio::spawn(async move {
            for n in 0..WRITES {
                let id = format!("{writer} {n}");
                // One batch for all of them, so that all are locked at once where rows are.
                store.append(ids.iter().rev().map(|session| event(session, &id, n)).collect()).await.unwrap();
                let mut record = store.get(&ids[(n % 8) as usize]).await.unwrap().unwrap();
                record.metadata.insert(id, n.into());
                match store.put(record).await {
                    Ok(_) | Err(StoreError::Conflict { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        })
    });
    let writers = futures::future::try_join_all(writers.collect::<Vec<_>>());
    let suspending = async {
        let mut suspended = 0;
        for n in 0..10 {
            let by: Store = if n % 2 == 0 { Arc::clone(&store) } else { Arc::new(Plain(Arc::clone(&store))) };
            suspended += by.suspend_active(Timestamp::from_millis(2_000 + n)).await.unwrap();
        }
        suspended
    };
    let (written, suspended) = tokio::join!(writers, suspending);
    written.unwrap();
    assert_eq!(suspended, 8, "each of them once, because nobody makes them active again");
    for id in &ids {
        let record = store.get(id).await.unwrap().unwrap();
        assert_eq!((record.status, record.last_index), (SessionStatus::Suspended, 4 * WRITES), "{id}");
        assert!(record.last_active >= at(2_000));
        assert_gap_free(&all_events(&*store, id).await);
    }
}
