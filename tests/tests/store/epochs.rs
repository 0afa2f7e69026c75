//! Who may write what happens in a session, and who may delete it.

use std::sync::Arc;

use sandbox_agent_sdk::sessions::{NewEvent, SessionStore, StoreError};

use crate::support::{all_events, event, record};

type Store = Arc<dyn SessionStore>;

fn under(epoch: u64, id: u64) -> NewEvent {
    let mut event = event("s", id, id);
    event.epoch = Some(epoch);
    event
}

pub(crate) async fn refuses_events_of_whoever_had_the_session_before(store: Store) {
    let mut session = store.put(record("s", 5)).await.unwrap();
    session.epoch = 1;
    let mut session = store.put(session).await.unwrap();
    assert_eq!(store.append(vec![under(1, 1)]).await.unwrap(), [1]);
    session.epoch = 2;
    let session = store.put(session).await.unwrap();
    assert_eq!(session.epoch, 2);
    let refused = store.append(vec![under(2, 2), under(1, 3)]).await.unwrap_err();
    assert!(matches!(refused, StoreError::TakenOver { id, epoch: 2 } if id == "s"));
    assert_eq!(all_events(&*store, "s").await.len(), 1, "nothing of the batch was written");
    // Those that name none are anybody's.
    assert_eq!(store.append(vec![under(2, 4), event("s", 5, 5)]).await.unwrap(), [2, 3]);
}

pub(crate) async fn deletes_only_what_nobody_has_written_to(store: Store) {
    let seen = store.put(record("s", 5)).await.unwrap();
    store.append(vec![event("s", 1, 1)]).await.unwrap();
    assert!(!store.delete_unchanged(&seen).await.unwrap(), "something happened in it");
    let seen = store.get("s").await.unwrap().unwrap();
    store.put(seen.clone()).await.unwrap();
    assert!(!store.delete_unchanged(&seen).await.unwrap(), "somebody changed its record");
    let seen = store.get("s").await.unwrap().unwrap();
    assert!(store.delete_unchanged(&seen).await.unwrap());
    assert!(!store.delete_unchanged(&seen).await.unwrap(), "it is gone");
    assert_eq!(store.get("s").await.unwrap(), None);
    assert_eq!(all_events(&*store, "s").await, []);
}
