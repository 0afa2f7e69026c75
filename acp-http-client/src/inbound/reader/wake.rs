//! When the reader of a stream wakes, apart from bytes of the stream.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    task::{Context, Poll, ready},
};

use futures::task::AtomicWaker;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::inbound::order::Moment;

/// Wakes a reader after an input with a deadline before the reader's own timer.
#[derive(Debug, Default)]
pub(in crate::inbound) struct Wake {
    /// When the timer of the reader fires, in microseconds; 0 if the reader checks the deadline in any case. Guarded
    /// by the lock of the ordered core, so no input can occur between reading the deadline and setting this.
    timer_at: AtomicU64,
    woken: AtomicBool,
    waker: AtomicWaker,
}

impl Wake {
    /// Wakes the reader if its timer fires after the deadline. The caller holds the lock of the ordered core.
    pub(in crate::inbound) fn before(&self, deadline: Option<Moment>) {
        if deadline.is_some_and(|deadline| micros(deadline) < self.timer_at.load(Ordering::Relaxed)) {
            self.woken.store(true, Ordering::Release);
            self.waker.wake();
        }
    }

    /// The timer of the reader fires at this time. The caller holds the lock of the ordered core.
    pub(super) fn set_timer(&self, at: Option<Moment>) {
        self.timer_at.store(at.map_or(u64::MAX, micros), Ordering::Relaxed);
    }

    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        if self.woken.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }
}

fn micros(moment: Moment) -> u64 {
    u64::try_from(moment.as_micros()).unwrap_or(u64::MAX - 1)
}

/// A timer that is only moved to an earlier time. A deadline that moves to a later time costs one check when the
/// timer fires, and nothing per event.
#[derive(Debug, Default)]
pub(super) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    at: Option<Instant>,
}

impl Timer {
    /// Sets the timer to fire at this time at the latest. Returns the time at which it fires.
    pub(super) fn arm(&mut self, at: Option<Instant>) -> Option<Instant> {
        if let Some(at) = at.filter(|at| self.at.is_none_or(|armed| *at < armed)) {
            match &mut self.sleep {
                Some(sleep) => sleep.as_mut().reset(at),
                None => self.sleep = Some(Box::pin(sleep_until(at))),
            }
            self.at = Some(at);
        }
        self.at
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(sleep) = self.sleep.as_mut().filter(|_| self.at.is_some()) else { return Poll::Pending };
        ready!(sleep.as_mut().poll(context));
        self.at = None;
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timer_fires_at_the_earliest_time_and_then_at_the_next() {
        let mut timer = Timer::default();
        let begin = Instant::now();
        let after = |seconds| Some(begin + Duration::from_secs(seconds));
        assert_eq!(timer.arm(None), None);
        assert_eq!(timer.arm(after(9)), after(9));
        assert_eq!(timer.arm(after(5)), after(5));
        assert_eq!(timer.arm(after(7)), after(5), "it is not moved to a later time");
        poll_fn(|context| timer.poll(context)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(5));
        assert_eq!(timer.arm(after(7)), after(7));
        poll_fn(|context| timer.poll(context)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(7));
        assert!(
            futures::poll!(poll_fn(|context| timer.poll(context))).is_pending(),
            "it was not armed again"
        );
    }

    #[tokio::test]
    async fn a_reader_is_woken_by_a_deadline_before_its_timer_and_by_no_other() {
        let wake = Wake::default();
        let second = |seconds| Some(Duration::from_secs(seconds));
        // The timer, the deadline after an input, and whether the reader is woken.
        let table = [
            (second(10), None, false),
            (second(10), second(11), false),
            (second(10), second(10), false),
            (second(10), second(9), true),
            (None, second(9), true),
            (None, None, false),
        ];
        for (timer, deadline, woken) in table {
            wake.set_timer(timer);
            wake.before(deadline);
            let polled = futures::poll!(poll_fn(|context| wake.poll(context)));
            assert_eq!(polled.is_ready(), woken, "{timer:?} {deadline:?}");
        }
    }
}
