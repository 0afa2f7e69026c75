//! Owners, positions, incarnations, bindings, suspending.

use std::sync::Arc;

use super::super::{
    Acquire, AgentSession, Append, Change, NewEvent, RecordPatch, RecordQuery, ScannedTo, SessionRecord,
    StoreError, StoredEventKind, StreamPosition, Suspend,
};
use super::{Store, all_events, append, at, create, event, get, position, record};
use crate::sessions::status::{SessionStatus, StatusEvent};

fn scanned(owner: &str, endpoint: &str, position: StreamPosition) -> ScannedTo {
    ScannedTo { owner: owner.to_owned(), endpoint: endpoint.to_owned(), position }
}

/// A session that a process owns, on the endpoint `e`.
fn owned(id: &str, owner: &str) -> SessionRecord {
    let mut record = record(id, 5).owned_by(owner);
    record.endpoint = Some("e".to_owned());
    record
}

fn is_lost(result: Result<impl Sized, StoreError>, current: u64) -> bool {
    matches!(result, Err(StoreError::OwnershipLost { id, epoch }) if id == "s" && epoch == current)
}

pub(super) async fn refuses_an_append_of_an_earlier_owner(store: Store) {
    let created = store.create(owned("s", "p"), Vec::new()).await.unwrap();
    assert_eq!((created.epoch, created.owner.as_deref()), (1, Some("p")));
    let by = |fence, id: u64| Append::to("s").fence(fence).events([event(id, id)]);
    store.append(by(created.fence(), 1)).await.unwrap();
    let acquired = store.acquire("s", Acquire::by("q")).await.unwrap();
    assert_eq!((acquired.epoch, acquired.owner.as_deref()), (2, Some("q")));
    assert_eq!(get(&store, "s").await, acquired);
    assert!(is_lost(store.append(by(created.fence(), 2)).await, 2));
    assert!(is_lost(store.release("s", created.fence()).await, 2));
    store.append(by(acquired.fence(), 3)).await.unwrap();
    let released = store.release("s", acquired.fence()).await.unwrap();
    assert_eq!((released.epoch, released.owner.as_deref()), (3, None));
    assert_eq!(get(&store, "s").await, released);
    assert!(is_lost(store.append(by(acquired.fence(), 4)).await, 3), "it was released");
    // Without a fence anyone may write.
    append(&store, "s", [event(5, 5)]).await;
    let stored = all_events(&store, "s").await;
    assert_eq!(stored.iter().map(|event| event.epoch).collect::<Vec<_>>(), [1, 2, 0]);
    let missing = store.acquire("gone", Acquire::by("q")).await;
    assert!(matches!(missing, Err(StoreError::NotFound { id }) if id == "gone"));
    assert!(matches!(store.release("gone", acquired.fence()).await, Err(StoreError::NotFound { .. })));
    // A process that does not know whether it acquired the session acquires it again.
    let first = store.acquire("s", Acquire::by("q")).await.unwrap();
    let again = store.acquire("s", Acquire::by("q")).await.unwrap();
    assert_eq!(again.epoch, first.epoch + 1);
}

pub(super) async fn refuses_a_fence_of_a_deleted_session(store: Store) {
    let created = store.create(owned("s", "p"), Vec::new()).await.unwrap();
    store.delete("s").await.unwrap();
    let write = || store.append(Append::to("s").fence(created.fence()).events([event(1, 1)]));
    assert!(matches!(write().await, Err(StoreError::NotFound { .. })));
    let mut another = owned("s", "p");
    another.created_at = at(6);
    store.create(another, Vec::new()).await.unwrap();
    assert!(matches!(write().await, Err(StoreError::NotFound { .. })), "it has the same id and epoch");
    assert_eq!(all_events(&store, "s").await, []);
}

pub(super) async fn ends_the_ownership_with_a_final_status(store: Store) {
    for (n, status) in [StatusEvent::Archive, StatusEvent::FatalError].into_iter().enumerate() {
        let id = format!("s{n}");
        let created = store.create(owned(&id, "p"), Vec::new()).await.unwrap();
        store.advance(scanned("p", "e", position(1, 7))).await.unwrap();
        let ended = store.append(Append::to(&id).patch(RecordPatch::status(status))).await.unwrap();
        let record = get(&store, &id).await;
        assert_eq!((record.epoch, record.owner.as_deref()), (2, None));
        assert_eq!(ended.record, Some(record));
        assert_eq!(store.scanned_to("p", "e").await.unwrap(), None, "the owner has no other session there");
        let late = store.append(Append::to(&id).fence(created.fence()).events([event(1, 1)])).await;
        assert!(matches!(late, Err(StoreError::OwnershipLost { epoch: 2, .. })), "{late:?}");
    }
    // A session that is deleted leaves nothing of its owner behind.
    store.create(owned("deleted", "p"), Vec::new()).await.unwrap();
    store.advance(scanned("p", "e", position(1, 7))).await.unwrap();
    assert!(store.delete("deleted").await.unwrap());
    assert_eq!(store.scanned_to("p", "e").await.unwrap(), None);
}

pub(super) async fn gives_a_session_to_one_of_many_that_expect_an_epoch(store: Store) {
    store.create(owned("s", "p"), Vec::new()).await.unwrap();
    let tasks = (0..8).map(|n| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.acquire("s", Acquire::by(format!("p{n}")).if_epoch(1)).await })
    });
    let results = futures::future::try_join_all(tasks.collect::<Vec<_>>()).await.unwrap();
    let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 7));
    assert!(lost.into_iter().all(|result| is_lost(result, 2)));
    let record = get(&store, "s").await;
    assert_eq!((record.epoch, &record.owner), (2, &won[0].as_ref().unwrap().owner));
}

pub(super) async fn continues_where_the_previous_owner_had_scanned_to(store: Store) {
    for id in ["quiet", "busy"] {
        let mut record = owned(id, "p");
        record.position = Some(position(1, 10));
        store.create(record, Vec::new()).await.unwrap();
    }
    // The owner reads on for another session.
    let busy = get(&store, "busy").await.fence();
    let to = position(1, 500);
    let append = Append::to("busy").fence(busy).events([event(1, 1)]).position(to);
    store.append(append.scanned_to(scanned("p", "e", to))).await.unwrap();
    let acquired = store.acquire("quiet", Acquire::by("q")).await.unwrap();
    assert_eq!((acquired.position, acquired.caught_up), (Some(position(1, 500)), false));
    assert_eq!(store.scanned_to("p", "e").await.unwrap(), Some(to), "it owns another session there");
    let released = store.release("busy", busy).await.unwrap();
    assert_eq!((released.position, released.caught_up), (Some(position(1, 500)), false));
    assert_eq!(store.scanned_to("p", "e").await.unwrap(), None, "it owns no session there");
    // What was scanned of an earlier incarnation, or elsewhere, moves nothing back.
    let mut later = owned("later", "p");
    later.position = Some(position(2, 1));
    store.create(later, Vec::new()).await.unwrap();
    store.advance(scanned("p", "e", position(1, 900))).await.unwrap();
    store.advance(scanned("p", "elsewhere", position(3, 900))).await.unwrap();
    let acquired = store.acquire("later", Acquire::by("q")).await.unwrap();
    assert_eq!(acquired.position, Some(position(2, 1)));
}

pub(super) async fn ignores_what_an_owner_scanned_while_a_turn_is_open(store: Store) {
    let mut record = owned("s", "p");
    record.position = Some(position(1, 10));
    let fence = store.create(record, Vec::new()).await.unwrap().fence();
    let prompt = |id: u64| {
        let event = event(id, id);
        NewEvent { kind: StoredEventKind::Prompt, ..event }.turn_id("t")
    };
    store.append(Append::to("s").fence(fence).events([prompt(1)])).await.unwrap();
    store.advance(scanned("p", "e", position(1, 500))).await.unwrap();
    let acquired = store.acquire("s", Acquire::by("q")).await.unwrap();
    assert_eq!(acquired.position, Some(position(1, 10)), "the end of the turn may have been scanned");
    // The next owner finds the end.
    let mut patch = RecordPatch::default();
    patch.caught_up = Some(true);
    let ended = NewEvent { kind: StoredEventKind::TurnEnded, ..event(2, 2) }.turn_id("t");
    let append = Append::to("s").fence(acquired.fence()).events([ended]).patch(patch);
    store.append(append.scanned_to(scanned("q", "e", position(1, 600)))).await.unwrap();
    let released = store.release("s", acquired.fence()).await.unwrap();
    assert_eq!(released.position, Some(position(1, 600)));
}

pub(super) async fn ignores_what_an_owner_scanned_that_had_not_caught_up(store: Store) {
    let mut record = owned("s", "p");
    record.position = Some(position(1, 10));
    store.create(record, Vec::new()).await.unwrap();
    // The next owner has read on for other sessions, and is killed before it has caught up with this one.
    store.advance(scanned("q", "e", position(1, 500))).await.unwrap();
    store.acquire("s", Acquire::by("q")).await.unwrap();
    store.advance(scanned("q", "e", position(1, 600))).await.unwrap();
    let third = store.acquire("s", Acquire::by("r")).await.unwrap();
    assert_eq!(third.position, Some(position(1, 10)));
    // This one catches up.
    let mut patch = RecordPatch::default();
    patch.caught_up = Some(true);
    let to = position(1, 620);
    let caught_up = Append::to("s").fence(third.fence()).patch(patch).position(to);
    let record = store.append(caught_up.scanned_to(scanned("r", "e", to))).await.unwrap().record.unwrap();
    assert_eq!((record.position, record.caught_up), (Some(to), true));
    store.advance(scanned("r", "e", position(1, 700))).await.unwrap();
    let fourth = store.acquire("s", Acquire::by("t")).await.unwrap();
    assert_eq!(fourth.position, Some(position(1, 700)));
}

pub(super) async fn advances_scanned_to_in_the_transaction_of_the_append(store: Store) {
    let created = store.create(owned("s", "p"), Vec::new()).await.unwrap();
    let by = |fence, to| {
        let append = Append::to("s").fence(fence).events([event(to, 1)]);
        store.append(append.scanned_to(scanned("p", "e", position(1, to))))
    };
    by(created.fence(), 7).await.unwrap();
    assert_eq!(store.scanned_to("p", "e").await.unwrap(), Some(position(1, 7)));
    by(created.fence(), 3).await.unwrap();
    assert_eq!(store.scanned_to("p", "e").await.unwrap(), Some(position(1, 7)), "it only moves forward");
    store.advance(scanned("p", "e", position(2, 1))).await.unwrap();
    assert_eq!(store.scanned_to("p", "e").await.unwrap(), Some(position(2, 1)));
    assert_eq!(store.scanned_to("q", "e").await.unwrap(), None);
    assert_eq!(store.scanned_to("p", "f").await.unwrap(), None);
    // Two sessions keep the row when one of them goes to another owner.
    store.create(owned("t", "p"), Vec::new()).await.unwrap();
    store.acquire("t", Acquire::by("q")).await.unwrap();
    let mut lost = created.fence();
    lost.epoch += 1;
    assert!(is_lost(by(lost, 900).await, 1));
    assert_eq!(store.scanned_to("p", "e").await.unwrap(), Some(position(2, 1)), "nothing was stored");
}

pub(super) async fn raises_an_incarnation_once(store: Store) {
    assert_eq!(store.incarnation("e").await.unwrap(), 1);
    let tasks = (0..8).map(|_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.raise_incarnation("e", 1).await.unwrap() })
    });
    let raised = futures::future::try_join_all(tasks.collect::<Vec<_>>()).await.unwrap();
    assert_eq!(raised, [2; 8], "all detected the same restart");
    assert_eq!(store.raise_incarnation("e", 1).await.unwrap(), 2);
    assert_eq!(store.raise_incarnation("e", 9).await.unwrap(), 2);
    assert_eq!(store.raise_incarnation("e", 2).await.unwrap(), 3);
    assert_eq!((store.incarnation("e").await.unwrap(), store.incarnation("f").await.unwrap()), (3, 1));
}

pub(super) async fn binds_an_agent_session_to_one_session_within_an_incarnation(store: Store) {
    let bind = |id: &str, session: &str, incarnation| {
        let mut patch = RecordPatch::default();
        patch.agent_session = Change::Set(AgentSession { id: session.to_owned(), incarnation });
        Append::to(id).patch(patch)
    };
    for (id, endpoint) in [("a", Some("e")), ("b", Some("e")), ("c", Some("f")), ("d", None), ("x", None)] {
        let mut record = record(id, 5);
        record.endpoint = endpoint.map(str::to_owned);
        store.create(record, Vec::new()).await.unwrap();
    }
    for id in ["a", "c", "d", "x"] {
        store.append(bind(id, "1", 1)).await.unwrap();
    }
    // The server restarted, and the agent gives the id out again.
    store.append(bind("b", "1", 2)).await.unwrap();
    for id in ["a", "b", "c", "d", "x"] {
        assert_eq!(get(&store, id).await.agent_session_id(), Some("1"), "{id}");
    }
    // The agent restarted on the same server, and gives the id out again.
    let before = get(&store, "a").await;
    store.append(bind("b", "1", 1)).await.unwrap();
    let after = get(&store, "a").await;
    assert_eq!((after.agent_session_id(), after.revision), (None, before.revision + 1));
    assert_eq!(after.details.earlier_agent_sessions, [AgentSession { id: "1".to_owned(), incarnation: 1 }]);
    assert_eq!(get(&store, "b").await.agent_session.unwrap().incarnation, 1);
    assert_eq!(get(&store, "c").await.agent_session_id(), Some("1"), "another endpoint");
    assert_eq!(get(&store, "d").await.agent_session_id(), Some("1"), "no endpoint is shared");
    // A new session has it, too.
    let mut new = record("n", 5);
    new.endpoint = Some("e".to_owned());
    new.agent_session = Some(AgentSession { id: "1".to_owned(), incarnation: 1 });
    store.create(new, Vec::new()).await.unwrap();
    assert_eq!(get(&store, "b").await.agent_session_id(), None);
}

pub(super) async fn suspends_own_or_all_active_sessions(store: Store) {
    for (n, status) in SessionStatus::ALL.iter().copied().cycle().take(12).enumerate() {
        let mut session = record(&format!("s{n:02}"), 5).owned_by(["p", "q"][n / 4 % 2]);
        session.status = status;
        // One of them was active later than this program knows, by its clock.
        session.last_active_at = at(if n == 4 { 2_000 } else { 100 });
        session.details.title = Some("\"status\":\"active\" \0".to_owned());
        store.create(session, Vec::new()).await.unwrap();
    }
    let mut expected = Vec::new();
    for n in 0..12 {
        expected.push(get(&store, &format!("s{n:02}")).await);
    }
    for (which, count) in [
        (Suspend::Own("q".to_owned()), 1),
        (Suspend::Own("unknown".to_owned()), 0),
        (Suspend::All, 2),
        (Suspend::All, 0),
    ] {
        assert_eq!(store.suspend(which.clone(), at(1_500)).await.unwrap(), count, "{which:?}");
        for record in &mut expected {
            let is_meant =
                matches!(&which, Suspend::All) || record.owner.as_deref() == Some("q") && count == 1;
            if is_meant && record.status == SessionStatus::Active {
                record.status = SessionStatus::Suspended;
                record.last_active_at = record.last_active_at.max(at(1_500));
                record.revision += 1;
            }
            assert_eq!(get(&store, &record.id).await, *record);
        }
    }
    let suspended = RecordQuery::all().statuses([SessionStatus::Suspended]).inactive_before(at(1_501));
    assert_eq!(store.list(&suspended).await.unwrap().records.len(), 5);
}

pub(super) async fn suspends_while_others_write(store: Store) {
    const WRITES: u64 = 20;
    let ids: Vec<String> = (0..8).map(|n| format!("s{n}")).collect();
    for id in &ids {
        create(&store, id).await;
    }
    let writers = (0..4u64).map(|writer| {
        let (store, ids) = (Arc::clone(&store), ids.clone());
        tokio::spawn(async move {
            for n in 0..WRITES {
                for id in &ids {
                    let mut patch = RecordPatch::default();
                    patch.metadata.insert(format!("{writer} {n}"), n.into());
                    let write = Append::to(id).events([event(format!("{writer} {n}"), n)]).patch(patch);
                    store.append(write).await.unwrap();
                }
            }
        })
    });
    let writers = futures::future::try_join_all(writers.collect::<Vec<_>>());
    let suspending = async {
        let mut suspended = 0;
        for n in 0..10 {
            suspended += store.suspend(Suspend::All, at(2_000 + n)).await.unwrap();
        }
        suspended
    };
    let (written, suspended) = tokio::join!(writers, suspending);
    written.unwrap();
    assert_eq!(suspended, 8, "each of them once");
    for id in &ids {
        let record = get(&store, id).await;
        assert_eq!((record.status, record.last_index), (SessionStatus::Suspended, 4 * WRITES), "{id}");
        assert_eq!(record.details.metadata.len() as u64, 4 * WRITES);
        assert!(record.last_active_at >= at(2_000));
        assert_eq!(all_events(&store, id).await.len() as u64, 4 * WRITES);
    }
    let active = RecordQuery::all().statuses([SessionStatus::Active]);
    assert_eq!(store.count(&active).await.unwrap(), 0);
}
