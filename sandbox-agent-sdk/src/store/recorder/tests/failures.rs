//! The store refuses, or fails.

use proptest::prelude::*;

use super::*;

#[tokio::test]
async fn a_session_that_was_deleted_does_not_take_others_with_it() {
    let store = Moody::new().await;
    let (recorder, mut losses) = recorder(&store, RecorderOptions::default());
    recorder.record("t", StoredEventKind::Update, 0.into());
    recorder.flush().await.unwrap();
    store.delete("t").await.unwrap();
    for n in 1..=3u64 {
        recorder.record("t", StoredEventKind::Update, n.into());
        recorder.record("s", StoredEventKind::Update, n.into());
    }
    let lost = losses_of(recorder.flush().await);
    assert!(matches!(&lost[..], [(id, 3, StoreError::NotFound { .. })] if id == "t"), "{lost:?}");
    assert_eq!(numbers(&store.stored().await), [1, 2, 3]);
    assert_eq!(losses.recv().await.unwrap().count, 3);
    recorder.close().await.unwrap();
}

#[tokio::test]
async fn what_happened_in_a_session_that_is_gone_does_not_get_into_one_of_the_same_id() {
    let store = Moody::new().await;
    let (recorder, mut losses) = recorder(&store, RecorderOptions::default().batch(2));
    recorder.know(&store.get("s").await.unwrap().unwrap());
    store.stop();
    for n in 0..4u64 {
        recorder.record("s", StoredEventKind::Update, n.into());
    }
    store.reached(1).await;
    // Two are being written and two wait when the session is deleted and made again.
    store.delete("s").await.unwrap();
    let made = store.put(SessionRecord::new("s", "mock", Timestamp::from_millis(2))).await.unwrap();
    recorder.know(&made);
    recorder.record("s", StoredEventKind::Update, 4.into());
    store.go_on(PLENTY);
    let lost = losses_of(recorder.flush().await);
    assert!(matches!(&lost[..], [(id, 4, StoreError::NotFound { .. })] if id == "s"), "{lost:?}");
    let stored = store.stored().await;
    assert_eq!((numbers(&stored), marks(&stored)), (vec![4], vec![]));
    let mut count = 0;
    while count < 4 {
        count += losses.recv().await.unwrap().count;
    }
    assert_eq!(count, 4);
}

#[tokio::test(start_paused = true)]
async fn one_failure_is_told_to_everybody_whom_it_concerns_and_to_nobody_else() {
    let store = Moody::new().await;
    let (recorder, _losses) = recorder(&store, RecorderOptions::default());
    recorder.record("t", StoredEventKind::Update, "invalid".into());
    recorder.record("s", StoredEventKind::Update, 1.into());
    // The other session does not hear of it, and does not take it from those who should.
    recorder.flush_session("s").await.unwrap();
    let (one, two) = tokio::join!(recorder.flush(), recorder.flush());
    for flushed in [one, two, recorder.flush_session("t").await] {
        let lost = losses_of(flushed);
        assert!(matches!(&lost[..], [(id, 1, StoreError::Invalid(_))] if id == "t"), "{lost:?}");
    }
    recorder.flush().await.unwrap();
    recorder.flush_session("t").await.unwrap();
    recorder.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_bad_event_takes_no_good_one_with_it() {
    for (bad, is_session) in [("invalid", false), ("poison", false), ("read-only", true)] {
        let store = Moody::new().await;
        let (recorder, mut losses) = recorder(&store, RecorderOptions::default().batch(64));
        for n in 0..20u64 {
            recorder.record("s", StoredEventKind::Update, n.into());
            recorder.record("t", StoredEventKind::Update, if n % 7 == 3 { bad.into() } else { n.into() });
        }
        let lost = losses_of(recorder.flush().await);
        let count = if is_session { 20 } else { 3 };
        assert!(matches!(&lost[..], [(id, n, _)] if id == "t" && *n == count), "{bad}: {lost:?}");
        assert_eq!(numbers(&store.stored().await), (0..20).collect::<Vec<_>>(), "{bad}");
        recorder.flush().await.unwrap();
        let other = store.stored_of("t").await;
        assert_eq!(marks(&other).iter().sum::<u64>(), count, "{bad}");
        if !is_session {
            assert_eq!(numbers(&other), (0..20).filter(|n| n % 7 != 3).collect::<Vec<_>>(), "{bad}");
        }
        let mut told = 0;
        while let Ok(loss) = losses.try_recv() {
            assert_eq!(loss.session_id, "t", "{bad}");
            told += loss.count;
        }
        assert_eq!(told, count, "{bad}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_takes_no_other_session_with_it() {
    let store = Moody::new().await;
    let (recorder, mut losses) = recorder(&store, RecorderOptions::default());
    // Somebody else seems to have taken it up, and nobody can find out who.
    store.spoilt.set("t".to_owned()).unwrap();
    recorder.claim("t", 7, 0);
    for n in 1..=3u64 {
        recorder.record("t", StoredEventKind::Update, n.into());
        recorder.record("s", StoredEventKind::Update, n.into());
    }
    let lost = losses_of(recorder.flush().await);
    assert!(matches!(&lost[..], [(id, 3, StoreError::Unreadable { .. })] if id == "t"), "{lost:?}");
    assert_eq!(numbers(&store.stored().await), [1, 2, 3]);
    let told = losses.recv().await.unwrap();
    assert_eq!((told.session_id.as_str(), told.count), ("t", 3));
}

#[tokio::test]
async fn what_no_store_can_keep_is_told_at_once_and_does_not_get_into_a_batch() {
    let store = Moody::new().await;
    let (recorder, mut losses) = recorder(&store, RecorderOptions::default());
    let deep = (0..=crate::sessions::MAX_DEPTH).fold(json!(1), |inside, _| json!([inside]));
    let long = "x".repeat(crate::sessions::MAX_KEY_BYTES + 1);
    recorder.record("s", StoredEventKind::Update, deep);
    recorder.record("s", StoredEventKind::from(long.as_str()), 0.into());
    for session in ["", "a\0b", &long] {
        recorder.record(session, StoredEventKind::Update, 0.into());
    }
    recorder.record("s", StoredEventKind::Update, 1.into());
    let lost = losses_of(recorder.flush().await);
    let mut counts: Vec<_> = lost.iter().map(|(id, count, _)| (id.as_str(), *count)).collect();
    counts.sort_unstable();
    assert_eq!(counts, [("", 1), ("a\0b", 1), ("s", 2), (long.as_str(), 1)]);
    assert!(lost.iter().all(|(_, _, error)| matches!(error, StoreError::Invalid(_))), "{lost:?}");
    let stored = store.stored().await;
    assert_eq!((marks(&stored), numbers(&stored)), (vec![2], vec![1]), "in their place");
    assert_eq!(store.appends.load(Ordering::SeqCst), 1);
    for _ in 0..4 {
        losses.recv().await.unwrap();
    }
}

#[tokio::test]
async fn a_store_that_panics_leaves_nobody_waiting() {
    let store = Moody::new().await;
    let (recorder, mut losses) = recorder(&store, RecorderOptions::default());
    store.will(&[Mood::Panics]);
    recorder.record("s", StoredEventKind::Update, 1.into());
    let flushed = tokio::time::timeout(Duration::from_secs(20), recorder.flush()).await.expect("it ends");
    assert!(matches!(&losses_of(flushed)[..], [(id, 1, StoreError::Closed)] if id == "s"));
    assert_eq!(losses.recv().await.unwrap().count, 1);
}

fn mood() -> impl Strategy<Value = Mood> {
    prop_oneof![
        3 => Just(Mood::Good),
        1 => Just(Mood::FailsBefore),
        1 => Just(Mood::FailsAfter),
        1 => Just(Mood::FailsBetween),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// However a store fails, before, after or in the middle of its writing: an event is there once, and in its place.
    #[test]
    fn every_event_is_stored_once_and_in_order_however_the_store_fails(
        moods in prop::collection::vec(mood(), 0..60),
        batch in 1usize..20,
        sessions in prop::collection::vec(any::<bool>(), 1..150),
        flushes in 1usize..40,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let store = Moody::new().await;
            store.will(&moods);
            let options = RecorderOptions::default().batch(batch).patience(Duration::from_secs(3600));
            let (recorder, mut losses) = recorder(&store, options);
            for (n, first) in sessions.iter().enumerate() {
                recorder.record(if *first { "s" } else { "t" }, StoredEventKind::Update, n.into());
                if n % flushes == 0 {
                    recorder.flush().await.unwrap();
                }
            }
            recorder.close().await.unwrap();
            for (session, which) in [("s", true), ("t", false)] {
                let stored = store.stored_of(session).await;
                let expected: Vec<u64> =
                    (0u64..).zip(&sessions).filter(|(_, first)| **first == which).map(|(n, _)| n).collect();
                assert_eq!(numbers(&stored), expected);
                assert!((1..).zip(&stored).all(|(index, event)| event.index == index));
            }
            assert!(losses.try_recv().is_err());
        });
    }
}
