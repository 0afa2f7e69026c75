//! More happens than the store takes.

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

async fn told(losses: &mut mpsc::Receiver<Unrecorded>) -> Unrecorded {
    tokio::time::timeout(LIMIT, losses.recv()).await.expect("it is told in time").expect("somebody tells")
}

#[tokio::test]
async fn an_overflow_is_told_while_the_store_stands_still() {
    let store = Moody::new().await;
    let (recorder, mut losses) = recorder(&store, RecorderOptions::default().capacity(3).batch(1));
    store.stop();
    recorder.record("s", StoredEventKind::Update, 0.into());
    store.reached(1).await;
    for n in 1..=5u64 {
        recorder.record("s", StoredEventKind::Update, n.into());
    }
    recorder.record("t", StoredEventKind::Update, 9.into());
    // Nobody records or flushes, and the store takes nothing.
    let mut all = [told(&mut losses).await, told(&mut losses).await];
    all.sort_by(|a, b| a.session_id.cmp(&b.session_id));
    let counts: Vec<_> = all.iter().map(|loss| (loss.session_id.as_str(), loss.count)).collect();
    assert_eq!(counts, [("s", 2), ("t", 1)]);
    assert!(all.iter().all(|loss| loss.error.is_none()));
    assert_eq!(store.stored().await, []);
    // Once the store goes on it is told as well, without anybody who asks for it.
    store.go_on(PLENTY);
    let marked = async {
        while marks(&store.stored().await) != [2] || marks(&store.stored_of("t").await) != [1] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, marked).await.expect("the store has the marks in time");
    assert_eq!(numbers(&store.stored().await), [0, 1, 2, 3]);
    assert!(losses.try_recv().is_err(), "a loss is told of once");
}

#[tokio::test]
async fn bytes_of_every_kind_count_until_they_are_written_and_are_given_back_one_by_one() {
    let store = Moody::new().await;
    let options = RecorderOptions::default().bytes(10_000).batch(1);
    let (recorder, mut losses) = recorder(&store, options);
    let record = |n: u64, kind: StoredEventKind| {
        recorder.record("s", kind, json!({"n": n, "text": "x".repeat(2_500)}));
    };
    store.stop();
    let kinds = [
        StoredEventKind::Prompt,
        StoredEventKind::Permission,
        StoredEventKind::Notification,
        StoredEventKind::TurnEnded,
        StoredEventKind::Update,
    ];
    let kind = |n: u64| kinds[n as usize % kinds.len()].clone();
    record(0, kind(0));
    store.reached(1).await;
    record(1, kind(1));
    record(2, kind(2));
    // Each one that is written makes room for the next, although the queue is never empty.
    for n in 3..10u64 {
        store.go_on(1);
        store.reached(n as usize - 1).await;
        record(n, kind(n));
        assert_eq!(recorder.waiting(), 2);
    }
    assert!(losses.try_recv().is_err());
    // The one that is being written takes its room, too.
    record(10, kind(10));
    assert_eq!(recorder.waiting(), 2);
    assert_eq!(told(&mut losses).await.count, 1);
    store.go_on(PLENTY);
    recorder.flush().await.unwrap();
    let stored = store.stored().await;
    let kept: Vec<u64> = stored.iter().filter_map(|event| event.payload["n"].as_u64()).collect();
    assert_eq!((kept, marks(&stored)), ((0..10).collect(), vec![1]));
    // One that is larger than everything is taken when it is alone.
    recorder.record("s", StoredEventKind::Update, json!("x".repeat(50_000)));
    recorder.flush().await.unwrap();
    assert_eq!(store.stored().await.last().unwrap().payload.as_str().map(str::len), Some(50_000));
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_is_lost_itself_comes_back_with_its_count() {
    let store = Moody::new().await;
    let options = RecorderOptions::default().capacity(2).patience(Duration::from_secs(1));
    let (recorder, mut losses) = recorder(&store, options);
    store.will(&[Mood::FailsBefore; 500]);
    for n in 0..5u64 {
        recorder.record("s", StoredEventKind::Update, n.into());
    }
    // Two are given up by the store and three did not fit; so is the mark for them, again and again.
    for _ in 0..3 {
        let lost = losses_of(recorder.flush().await);
        assert!(matches!(&lost[..], [(id, 5, StoreError::Unavailable(_))] if id == "s"), "{lost:?}");
    }
    assert_eq!(store.stored().await, []);
    store.will(&[]);
    recorder.record("s", StoredEventKind::Update, 5.into());
    recorder.flush().await.unwrap();
    let stored = store.stored().await;
    assert_eq!((marks(&stored), numbers(&stored)), (vec![5], vec![5]));
    let mut counts = Vec::new();
    while let Ok(loss) = losses.try_recv() {
        counts.push((loss.count, loss.error.is_some()));
    }
    counts.sort_unstable();
    assert_eq!(counts, [(2, true), (3, false)], "each loss is told of once");
}

#[tokio::test(start_paused = true)]
async fn what_stands_for_lost_events_counts_as_many() {
    let store = Moody::new().await;
    let (recorder, _losses) = recorder(&store, RecorderOptions::default().capacity(1).batch(1));
    store.stop();
    recorder.record("s", StoredEventKind::Update, 0.into());
    store.reached(1).await;
    recorder.record("s", StoredEventKind::Update, 1.into());
    recorder.record("s", StoredEventKind::Lost, json!({"count": 7}));
    recorder.record("s", StoredEventKind::Update, 2.into());
    store.go_on(PLENTY);
    recorder.flush().await.unwrap();
    assert_eq!(marks(&store.stored().await), [8]);
}

#[tokio::test]
async fn whoever_drops_a_recorder_or_records_after_its_end_is_told() {
    let store = Moody::new().await;
    let (recorder, mut losses) = recorder(&store, RecorderOptions::default().batch(2));
    store.stop();
    for n in 0..5u64 {
        recorder.record("s", StoredEventKind::Update, n.into());
    }
    recorder.record("t", StoredEventKind::Update, 0.into());
    store.reached(1).await;
    drop(recorder);
    let mut counts = Vec::new();
    for _ in 0..2 {
        let loss = told(&mut losses).await;
        assert!(matches!(loss.error, Some(StoreError::Closed)), "{loss:?}");
        counts.push((loss.session_id, loss.count));
    }
    counts.sort_unstable();
    assert_eq!(counts, [("s".to_owned(), 5), ("t".to_owned(), 1)]);

    store.go_on(PLENTY);
    let (recorder, mut losses) = super::recorder(&store, RecorderOptions::default());
    recorder.record("t", StoredEventKind::Update, 1.into());
    recorder.close().await.unwrap();
    recorder.record("t", StoredEventKind::Update, 2.into());
    let loss = told(&mut losses).await;
    assert!(loss.count == 1 && matches!(loss.error, Some(StoreError::Closed)), "{loss:?}");
    let lost = losses_of(recorder.flush().await);
    assert!(matches!(&lost[..], [(id, 1, StoreError::Closed)] if id == "t"), "{lost:?}");
    assert_eq!(numbers(&store.stored_of("t").await), [1], "a closed recorder takes nothing down");
}
