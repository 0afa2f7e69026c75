//! Events: appended, opened, closed, read.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::json;

use super::super::{
    Append, Change, EventKey, EventQuery, MAX_PAGE, NewEvent, RecordPatch, StoreError, StoredEventKind,
};
use super::{Store, all_events, append, at, create, drop_after, event, get, position, record};

pub(super) async fn numbers_events_without_holes_under_many_writers(store: Store) {
    let sessions = ["a", "b", "c"];
    for session in sessions {
        create(&store, session).await;
    }
    let writers = (0..8usize).map(|writer| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for batch in 0..20usize {
                let events = (0..1 + (batch * 7 + writer) % 9)
                    .map(|n| event(format!("{writer}-{batch}-{n}"), json!([writer, batch, n])));
                let events: Vec<NewEvent> = events.collect();
                let count = events.len();
                let indexes = append(&store, sessions[(batch + writer) % 3], events).await;
                assert_eq!(indexes.len(), count);
                assert!(indexes.windows(2).all(|pair| pair[1] == pair[0] + 1), "another writer came between");
            }
        })
    });
    futures::future::try_join_all(writers.collect::<Vec<_>>()).await.unwrap();
    let mut keys = HashSet::new();
    for session in sessions {
        let events = all_events(&store, session).await;
        assert_eq!(get(&store, session).await.last_index, events.len() as u64);
        // The events of one writer are in its order.
        for writer in 0..8u64 {
            let own: Vec<_> = events.iter().filter(|event| event.payload[0] == writer).collect();
            assert!(own.is_sorted_by_key(|event| (event.payload[1].as_u64(), event.payload[2].as_u64())));
        }
        keys.extend(events.into_iter().map(|event| event.key));
    }
    let expected: usize = (0..8).flat_map(|w| (0..20).map(move |b| 1 + (b * 7 + w) % 9)).sum();
    assert_eq!(keys.len(), expected);
}

pub(super) async fn stores_an_append_whole_or_not_at_all(store: Store) {
    create(&store, "s").await;
    let before = get(&store, "s").await;
    let mut patch = RecordPatch::default();
    patch.title = Change::Set("t".to_owned());
    // The last event is invalid.
    let events = (0..300).map(|n| event(n, n)).chain([NewEvent::new("late", at(u64::MAX), "update", 1)]);
    let refused = store.append(Append::to("s").events(events).patch(patch).position(position(1, 9))).await;
    assert!(matches!(refused, Err(StoreError::Invalid(_))));
    assert_eq!(get(&store, "s").await, before);
    assert_eq!(all_events(&store, "s").await, []);
    let indexes = append(&store, "s", (0..1_000).map(|n| event(n, n))).await;
    assert_eq!(indexes, (1..=1_000).collect::<Vec<_>>());
    assert_eq!(all_events(&store, "s").await.len(), 1_000);
    assert!(append(&store, "s", []).await.is_empty(), "an empty append does nothing");
}

pub(super) async fn stores_an_event_once_by_its_key(store: Store) {
    for id in ["s", "t"] {
        create(&store, id).await;
    }
    let stream = |incarnation, offset, payload: u64| {
        NewEvent::from_stream(incarnation, offset, at(1_000), "update", payload)
    };
    let batch = vec![event("a", 1), stream(1, 7, 2), event("7", 3), stream(2, 7, 4), stream(1, 8, 5)];
    assert_eq!(append(&store, "s", batch.clone()).await, [1, 2, 3, 4, 5]);
    assert_eq!(append(&store, "t", batch.clone()).await, [1, 2, 3, 4, 5], "keys are those of a session");
    let before = all_events(&store, "s").await;
    for _ in 0..3 {
        assert_eq!(append(&store, "s", batch.clone()).await, [1, 2, 3, 4, 5]);
    }
    assert_eq!(all_events(&store, "s").await, before);
    // Stored ones between new ones, and new ones that are there twice.
    let mixed =
        [stream(1, 7, 99), event("c", 6), event("a", 99), stream(1, 9, 7), event("c", 99), stream(1, 9, 99)];
    assert_eq!(append(&store, "s", mixed).await, [2, 6, 1, 7, 6, 7]);
    let stored = all_events(&store, "s").await;
    let payloads: Vec<u64> = stored.iter().filter_map(|event| event.payload.as_u64()).collect();
    assert_eq!(payloads, [1, 2, 3, 4, 5, 6, 7], "the first one is stored");
    assert_eq!(stored[6].key, EventKey::Stream { incarnation: 1, offset: 9 });
    assert_eq!(get(&store, "s").await.last_index, 7);
    store.delete("s").await.unwrap();
    create(&store, "s").await;
    assert_eq!(append(&store, "s", [event("c", 7)]).await, [1], "a new session has had no events");
}

pub(super) async fn returns_the_same_indexes_to_all_who_append_the_same(store: Store) {
    create(&store, "s").await;
    for round in 0..10u64 {
        let batch: Vec<NewEvent> = (0..30)
            .map(|n| match n % 2 {
                0 => event(format!("{round}-{n}"), n),
                _ => NewEvent::from_stream(1, round * 100 + n, at(1), "update", n),
            })
            .collect();
        let writers = (0..6).map(|_| {
            let (store, batch) = (Arc::clone(&store), batch.clone());
            tokio::spawn(async move { store.append(Append::to("s").events(batch)).await.unwrap() })
        });
        let results = futures::future::try_join_all(writers.collect::<Vec<_>>()).await.unwrap();
        assert!(results.iter().all(|result| result.indexes == results[0].indexes), "{results:?}");
        let added = results.iter().map(|result| result.added).filter(|added| *added > 0);
        assert_eq!(added.collect::<Vec<_>>(), [30], "one of them added the events");
    }
    assert_eq!(all_events(&store, "s").await.len(), 300);
}

pub(super) async fn moves_the_last_activity_and_the_position_only_forward(store: Store) {
    store.create(record("s", 500), Vec::new()).await.unwrap();
    let then = |id: &str, moment| NewEvent::new(id, at(moment), "update", ());
    append(&store, "s", [then("late", 900), then("early", 100)]).await;
    assert_eq!(get(&store, "s").await.last_active_at, at(900));
    append(&store, "s", [then("earlier", 50)]).await;
    assert_eq!(get(&store, "s").await.last_active_at, at(900));
    append(&store, "s", [then("late", 5_000)]).await;
    assert_eq!(get(&store, "s").await.last_active_at, at(900), "a repeated event is not activity");
    for (to, expected) in [
        (position(1, 5), position(1, 5)),
        (position(1, 3), position(1, 5)),
        (position(2, 1), position(2, 1)),
        (position(1, 900), position(2, 1)),
        (position(2, 2), position(2, 2)),
    ] {
        store.append(Append::to("s").position(to)).await.unwrap();
        assert_eq!(get(&store, "s").await.position, Some(expected), "{to:?}");
        let mut patch = RecordPatch::default();
        patch.caught_up = Some(true);
        let patched = store.append(Append::to("s").patch(patch).position(to)).await.unwrap().record.unwrap();
        assert_eq!(patched.position, Some(expected));
    }
}

fn of(kind: StoredEventKind, id: u64) -> NewEvent {
    NewEvent::new(format!("{kind}-{id}"), at(id), kind, json!(id))
}

pub(super) async fn tells_what_is_open(store: Store) {
    use StoredEventKind::{
        AgentRequest, Answered, Permission, Prompt, PromptResent, Question, RequestClosed, TurnEnded, Update,
    };
    create(&store, "s").await;
    create(&store, "other").await;
    append(&store, "other", [of(Prompt, 1).turn_id("t1").rpc_id("\"p1\"")]).await;
    append(
        &store,
        "s",
        [
            of(Prompt, 1).turn_id("t1").rpc_id("\"p1\""),
            of(Update, 2).turn_id("t1"),
            of(Permission, 3).turn_id("t1").rpc_id("1"),
            of(Question, 4).turn_id("t1").rpc_id("2"),
            of(AgentRequest, 5).turn_id("t1").rpc_id("\"3\""),
            of(PromptResent, 6).turn_id("t1").rpc_id("\"p2\""),
            of(Answered, 7).turn_id("t1").rpc_id("2"),
            // Without an id nothing could close them.
            of(Prompt, 8),
            of(Permission, 9),
        ],
    )
    .await;
    let open = store.open("s").await.unwrap();
    assert_eq!(open.turns.len(), 1);
    assert_eq!((open.turns[0].prompt.index, open.turns[0].prompt.turn_id.as_deref()), (1, Some("t1")));
    assert_eq!(open.turns[0].rpc_ids, ["\"p1\"", "\"p2\""]);
    let requests: Vec<_> = open
        .requests
        .iter()
        .map(|open| (open.request.index, open.answer.as_ref().map(|answer| answer.index)))
        .collect();
    assert_eq!(requests, [(3, None), (4, Some(7)), (5, None)]);

    append(&store, "s", [of(RequestClosed, 10).rpc_id("2"), of(RequestClosed, 11).rpc_id("\"3\"")]).await;
    let open = store.open("s").await.unwrap();
    assert_eq!(open.requests.iter().map(|open| open.request.index).collect::<Vec<_>>(), [3]);
    append(&store, "s", [of(TurnEnded, 12).turn_id("t1")]).await;
    let open = store.open("s").await.unwrap();
    assert!(open.is_empty(), "the end of a turn closes its requests: {open:?}");
    append(&store, "s", [of(Permission, 13).rpc_id("4"), of(Permission, 14).turn_id("t2").rpc_id("5")]).await;
    append(&store, "s", [of(TurnEnded, 15).turn_id("t2")]).await;
    let open = store.open("s").await.unwrap();
    assert_eq!(open.requests.iter().map(|open| open.request.index).collect::<Vec<_>>(), [13]);
    assert_eq!(store.open("other").await.unwrap().turns.len(), 1);
    assert!(store.open("gone").await.unwrap().is_empty());
}

pub(super) async fn closes_only_what_is_older_and_named(store: Store) {
    use StoredEventKind::{Permission, Prompt, RequestClosed, TurnEnded};
    create(&store, "s").await;
    // Opened and closed in one append, and opened again under the same ids.
    let batch = [
        of(Prompt, 1).turn_id("t1").rpc_id("1"),
        of(Permission, 2).rpc_id("1"),
        of(RequestClosed, 3).rpc_id("1"),
        of(TurnEnded, 4).turn_id("t1"),
        of(Permission, 5).rpc_id("1"),
        of(Prompt, 6).turn_id("t2").rpc_id("2"),
    ];
    append(&store, "s", batch.clone()).await;
    // A repeat closes nothing.
    append(&store, "s", batch).await;
    append(&store, "s", [of(RequestClosed, 3).rpc_id("1")]).await;
    let open = store.open("s").await.unwrap();
    assert_eq!(open.turns.iter().map(|turn| turn.prompt.index).collect::<Vec<_>>(), [6]);
    assert_eq!(open.requests.iter().map(|open| open.request.index).collect::<Vec<_>>(), [5]);
    append(&store, "s", [of(TurnEnded, 7).turn_id("t3"), of(RequestClosed, 8).rpc_id("2")]).await;
    let open = store.open("s").await.unwrap();
    assert_eq!((open.turns.len(), open.requests.len()), (1, 1), "they name nothing that is open");
}

pub(super) async fn returns_events_page_by_page_in_both_orders(store: Store) {
    create(&store, "s").await;
    append(&store, "s", (1..=25).map(|n| event(n, n))).await;
    for limit in [1, 4, 24, 25, 26, 1_000_000, 0] {
        for newest_first in [false, true] {
            let mut query = EventQuery::of("s").limit(limit);
            if newest_first {
                query = query.newest_first();
            }
            let mut found = Vec::new();
            loop {
                let page = store.events(&query).await.unwrap();
                assert!(page.events.len() <= limit.clamp(1, MAX_PAGE));
                found.extend(page.events.iter().map(|event| event.index));
                match page.next {
                    Some(next) => query = query.after(next),
                    None => break,
                }
            }
            let expected: Vec<u64> = if newest_first { (1..=25).rev().collect() } else { (1..=25).collect() };
            assert_eq!(found, expected, "limit {limit}");
        }
    }
    assert_eq!(store.events(&EventQuery::of("s").after(25)).await.unwrap().events, []);
    assert_eq!(store.events(&EventQuery::of("s").after(u64::MAX)).await.unwrap().events, []);
    assert_eq!(store.events(&EventQuery::of("gone")).await.unwrap().events, []);
}

pub(super) async fn bounds_the_bytes_of_a_page(store: Store) {
    create(&store, "s").await;
    let sizes = [10_000, 10_000, 10_000, 50_000, 10_000, 10_000];
    append(&store, "s", (1u64..).zip(sizes).map(|(n, size)| event(n, "x".repeat(size)))).await;
    append(&store, "s", [of(StoredEventKind::Prompt, 7)]).await;
    let base = EventQuery::of("s").kinds([StoredEventKind::Update]).max_bytes(25_000);
    for (mut query, expected) in [
        (base.clone(), vec![vec![1, 2], vec![3], vec![4], vec![5, 6]]),
        (base.clone().newest_first(), vec![vec![6, 5], vec![4], vec![3, 2], vec![1]]),
        (base.clone().limit(1), (1..=6).map(|index| vec![index]).collect()),
        (base.max_bytes(1_000_000), vec![(1..=6).collect()]),
    ] {
        let mut pages: Vec<Vec<u64>> = Vec::new();
        loop {
            let page = store.events(&query).await.unwrap();
            pages.push(page.events.iter().map(|event| event.index).collect());
            match page.next {
                Some(next) => query = query.after(next),
                None => break,
            }
        }
        assert_eq!(pages, expected, "{query:?}");
    }
    assert_eq!(store.events(&EventQuery::of("gone").max_bytes(1)).await.unwrap().events, []);
}

pub(super) async fn filters_events_by_kind(store: Store) {
    create(&store, "s").await;
    let kinds = ["prompt", "update", "update", "turn_ended", "new_kind"];
    append(&store, "s", (0..50).map(|n| NewEvent::new(format!("{n}"), at(1), kinds[n % 5], n as u64))).await;
    let wanted = [StoredEventKind::Prompt, StoredEventKind::from("new_kind")];
    let mut query = EventQuery::of("s").kinds(wanted).newest_first().limit(3);
    let mut found = Vec::new();
    loop {
        let page = store.events(&query).await.unwrap();
        found.extend(page.events.iter().map(|event| event.index));
        match page.next {
            Some(next) => query = query.after(next),
            None => break,
        }
    }
    let expected: Vec<u64> = (1..=50).rev().filter(|index| matches!(index % 5, 1 | 0)).collect();
    assert_eq!(found, expected);
}

pub(super) async fn keeps_what_a_session_needs_to_continue(store: Store) {
    use StoredEventKind::{Permission, Prompt, TurnEnded};
    create(&store, "s").await;
    let turn = |kind, n: u64| of(kind, n).turn_id(format!("t{n}"));
    let ended = |n: u64| NewEvent { payload: json!({"executed": n != 4}), ..turn(TurnEnded, n) };
    for n in 1..=5 {
        append(&store, "s", [turn(Prompt, n)]).await;
        append(&store, "s", [turn(Permission, n).rpc_id(n.to_string())]).await;
        append(&store, "s", (0..1_000).map(|chunk| event(format!("{n} {chunk}"), chunk))).await;
        append(&store, "s", (n < 5).then(|| ended(n))).await;
    }
    let open = store.open("s").await.unwrap();
    assert_eq!(open.turns.iter().map(|open| open.prompt.payload.clone()).collect::<Vec<_>>(), [json!(5)]);
    assert_eq!(open.requests.len(), 1, "{open:?}");
    let query = EventQuery::of("s").kinds([Prompt]).newest_first();
    let prompts = store.events(&query).await.unwrap().events;
    let mut ran = prompts.iter().filter(|prompt| prompt.payload != json!(4));
    let latest: Vec<_> = ran.by_ref().take(3).map(|prompt| (prompt.payload.clone(), prompt.index)).collect();
    // A turn has 1,003 events.
    assert_eq!(latest, [(json!(5), 4_013), (json!(3), 2_007), (json!(2), 1_004)]);
    assert_eq!(get(&store, "s").await.last_index, 5_014);
}

pub(super) async fn works_after_a_call_was_dropped_anywhere(store: Store) {
    create(&store, "s").await;
    let mut count = 0;
    for waits in 0..40usize {
        let batch =
            |call: &str| [event(format!("{call}{waits}"), waits), event(format!("{call}{waits}b"), 1)];
        let dropped = drop_after(waits, store.append(Append::to("s").events(batch("dropped")))).await;
        let last = append(&store, "s", batch("next")).await[1];
        assert!(dropped.is_none_or(|done| done.unwrap().indexes == [count + 1, count + 2]));
        // The dropped one may still be stored, before or behind the next one, but whole.
        assert!(last == count + 2 || last == count + 4, "{last} after {count}");
        count = append(&store, "s", batch("dropped")).await[1].max(last);
        let id = format!("s{waits}");
        let created = drop_after(waits, store.create(record(&id, 5), Vec::new())).await;
        let again = store.create(record(&id, 5), Vec::new()).await;
        assert!(
            matches!((&created, &again), (None, Ok(_)) | (_, Err(StoreError::Exists { .. }))),
            "{created:?} {again:?}"
        );
    }
    assert_eq!(all_events(&store, "s").await.len(), 160);
}
