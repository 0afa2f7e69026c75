//! The idle timeout and the deadline of a turn.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::Error;
use crate::client::deadline::deadline_after;
use crate::client::event_loop::wait_until;
use crate::client::hub::Progress;
use crate::client::names::PROMPT;
use crate::error::{Phase, Timeout};

/// The limits of a turn.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TurnLimits {
    /// When it must end, and the duration that was set.
    pub(super) deadline: Option<(Instant, Duration)>,
    /// How long it may be silent.
    pub(super) idle: Option<Duration>,
}

/// Waits until a limit is reached. Returns which one, and its duration.
///
/// A turn is not silent while the agent waits for a response of this client.
pub(super) async fn reached(
    limits: &mut watch::Receiver<TurnLimits>,
    mut progress: watch::Receiver<Progress>,
) -> (Phase, Duration) {
    loop {
        let TurnLimits { deadline, idle } = *limits.borrow_and_update();
        let waits_for_us = progress.borrow_and_update().is_being_decided();
        let silent = idle.filter(|_| !waits_for_us).map(deadline_after);
        tokio::select! {
            // An update takes precedence over a limit that is reached at the same time.
            biased;
            // Without an error: a turn whose reader was dropped keeps its limits.
            Ok(()) = limits.changed() => {}
            Ok(()) = progress.changed(), if idle.is_some() => {}
            () = wait_until(deadline.map(|(at, _)| at)) => {
                return (Phase::Deadline, deadline.map_or(Duration::ZERO, |(_, within)| within));
            }
            () = wait_until(silent) => return (Phase::Idle, idle.unwrap_or_default()),
        }
    }
}

/// Waits until an agent request has waited this long in a turn that was not read yet.
pub(super) async fn unread(mut progress: watch::Receiver<Progress>, limit: Duration) {
    loop {
        let since = progress.borrow_and_update().unread_since;
        // A limit that is too long for the clock is none.
        let until = since.and_then(|since| since.checked_add(limit));
        tokio::select! {
            biased;
            Ok(()) = progress.changed() => {}
            () = wait_until(until) => return,
        }
    }
}

/// Waits for a step before the prompt is sent. Fails if a limit is reached first.
pub(super) async fn unsent<T>(
    mut limits: watch::Receiver<TurnLimits>,
    progress: watch::Receiver<Progress>,
    step: impl Future<Output = T>,
) -> Result<T, Error> {
    let deadlines = limits.clone();
    let done = tokio::select! {
        biased;
        (phase, within) = reached(&mut limits, progress) => return Err(late(phase, within, false)),
        done = step => done,
    };
    // A timer may fire a little late.
    match deadlines.borrow().deadline {
        Some((at, within)) if at <= Instant::now() => Err(late(Phase::Deadline, within, false)),
        _ => Ok(done),
    }
}

/// The error of a turn that reached a limit.
pub(super) fn late(phase: Phase, within: Duration, sent: bool) -> Error {
    let mut timeout = Timeout::new(phase, PROMPT, within);
    timeout.sent = sent;
    Error::Timeout(Box::new(timeout))
}

/// Whether a limit of the turn caused an error.
pub(super) fn is_limit(error: &Error) -> bool {
    matches!(error, Error::Timeout(timeout) if matches!(timeout.phase, Phase::Deadline | Phase::Idle))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::watch;
    use tokio::time::{Instant, advance, timeout};

    use super::{TurnLimits, reached};
    use crate::client::hub::Progress;
    use crate::error::Phase;

    const SECOND: Duration = Duration::from_secs(1);

    fn idle(limit: Duration) -> (watch::Sender<TurnLimits>, watch::Sender<Progress>) {
        (
            watch::Sender::new(TurnLimits { idle: Some(limit), ..TurnLimits::default() }),
            watch::Sender::default(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_counted_from_the_last_update() {
        let (limits, progress) = idle(3 * SECOND);
        let began = Instant::now();
        let (mut receiver, watched) = (limits.subscribe(), progress.subscribe());
        let waiting = tokio::spawn(async move { reached(&mut receiver, watched).await });
        for _ in 0..5 {
            tokio::task::yield_now().await;
            advance(2 * SECOND).await;
            progress.send_modify(|_| ());
        }
        assert_eq!(waiting.await.expect("it ends"), (Phase::Idle, 3 * SECOND));
        assert_eq!(began.elapsed(), 13 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_request_stops_the_clock() {
        let (limits, progress) = idle(3 * SECOND);
        progress.send_modify(Progress::request);
        let mut receiver = limits.subscribe();
        let open = timeout(1000 * SECOND, reached(&mut receiver, progress.subscribe())).await;
        assert!(open.is_err(), "{open:?}");
        progress.send_modify(Progress::responded);
        let began = Instant::now();
        assert_eq!(reached(&mut receiver, progress.subscribe()).await.0, Phase::Idle);
        assert_eq!(began.elapsed(), 3 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_holds_whatever_is_reported() {
        let (limits, progress) = idle(1000 * SECOND);
        limits.send_modify(|limits| limits.deadline = Some((Instant::now() + 5 * SECOND, 5 * SECOND)));
        let mut receiver = limits.subscribe();
        let reached = reached(&mut receiver, progress.subscribe()).await;
        assert_eq!(reached, (Phase::Deadline, 5 * SECOND));
    }
}
