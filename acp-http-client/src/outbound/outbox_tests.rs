//! The outboxes of a connection.

use std::sync::Arc;

use super::outbox::Outbox;

#[tokio::test]
async fn messages_leave_in_the_order_of_asking_and_sessions_do_not_wait_for_each_other() {
    let outbox = Arc::new(Outbox::default());
    let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
    let first = outbox.enter(&one).await;
    let mut second = std::pin::pin!(outbox.enter(&one));
    let mut third = std::pin::pin!(outbox.enter(&one));
    assert!(futures::poll!(&mut second).is_pending() && futures::poll!(&mut third).is_pending());
    drop(outbox.enter(&two).await);
    drop(first);
    assert!(futures::poll!(&mut third).is_pending(), "the second one asked first");
    let second = second.await;
    drop(second);
    drop(third.await);
    assert_eq!(outbox.len(), 0);
}

#[tokio::test]
async fn a_waiter_that_gives_up_delays_no_other() {
    let outbox = Arc::new(Outbox::default());
    let session: Arc<str> = "s".into();
    let first = outbox.enter(&session).await;
    {
        let mut second = std::pin::pin!(outbox.enter(&session));
        assert!(futures::poll!(&mut second).is_pending());
    }
    drop(first);
    drop(outbox.enter(&session).await);
    assert_eq!(outbox.len(), 0);
}

#[tokio::test]
async fn a_cancel_withdraws_what_was_not_sent_and_the_next_prompt_waits_for_the_rest() {
    let outbox = Arc::new(Outbox::default());
    let session: Arc<str> = "s".into();
    outbox.begin_turn(&session, 1);
    assert!(outbox.start_turn(&session, 1));
    outbox.begin_turn(&session, 2);
    let cancelled = outbox.cancel(&session);
    assert_eq!((&*cancelled.withdrawn, &*cancelled.running), (&[2][..], &[1][..]));
    assert!(!outbox.start_turn(&session, 2));
    let mut settled = std::pin::pin!(outbox.settled(&session, None));
    assert!(futures::poll!(&mut settled).is_pending());
    outbox.end_turn(1);
    assert!(futures::poll!(&mut settled).is_pending() && outbox.is_cancelling(&session));
    assert!(outbox.cancel_again(&session, &[1]).is_none(), "the turn has ended");
    drop(cancelled.cancelling);
    assert!(settled.await);
    assert_eq!(outbox.len(), 0);
}
