//! Counts the usage of turns, and cancels turns that exceed a budget.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, OptionFuture};

use super::handle::SandboxAgentClient;
use super::lifecycle::Inner;
use super::session::{Session, TurnState};
use super::turn::TurnOutcome;
use crate::convert::text::OneLine;
use crate::usage::{Budget, BudgetEvent, TurnEnd, UsageTotals};
use crate::{Error, Event};

type Outcome = Result<TurnOutcome, Error>;

impl Session {
    /// Returns the usage of the session so far: tokens, cost, turns, time. See [`usage`](crate::usage).
    #[must_use]
    pub fn usage(&self) -> UsageTotals {
        self.client().inner().hub.usage(|usage| usage.of_session(self.id()))
    }

    /// Sets the budget of the session, or removes it with `None`. Earlier usage counts.
    pub fn set_budget(&self, budget: impl Into<Option<Budget>>) {
        self.client().inner().hub.usage(|usage| usage.set_budget(Some(self.id()), budget.into()));
    }
}

impl SandboxAgentClient {
    /// Returns the total usage of all sessions that this client has created, loaded, resumed or prompted.
    #[must_use]
    pub fn usage(&self) -> UsageTotals {
        self.inner().hub.usage(|usage| usage.of_all())
    }

    /// Sets one budget for all sessions of this client, or removes it with `None`. Earlier usage counts.
    pub fn set_budget(&self, budget: impl Into<Option<Budget>>) {
        self.inner().hub.usage(|usage| usage.set_budget(None, budget.into()));
    }
}

/// Runs a turn under the budgets that apply to it, and adds its usage to its outcome.
pub(super) async fn metered(
    inner: &Arc<Inner>,
    session: &str,
    turn: impl Future<Output = Outcome> + Send,
) -> Outcome {
    let began = now();
    if let Some(spent) = inner.hub.usage(|usage| usage.refuses(session, began)) {
        return Err(Error::BudgetSpent(Box::new(spent)));
    }
    inner.hub.usage(|usage| usage.begin_turn(session, began));
    let running = Running { inner, session, began, done: false };
    let (outcome, spent) = running.watch(turn).await;
    running.finish(outcome, spent)
}

/// A turn that is being counted.
struct Running<'a> {
    inner: &'a Arc<Inner>,
    session: &'a str,
    began: Instant,
    done: bool,
}

impl Running<'_> {
    /// Waits for the end of the turn, and cancels the turn when a budget is spent.
    async fn watch(&self, turn: impl Future<Output = Outcome> + Send) -> (Outcome, Option<BudgetEvent>) {
        let hub = &self.inner.hub;
        let mut turn = std::pin::pin!(turn);
        let mut changed = hub.usage(|usage| usage.watch());
        let mut spent = None;
        let mut cancelling: OptionFuture<_> = None.into();
        loop {
            self.publish(false);
            if spent.is_none() {
                spent = hub.usage(|usage| usage.cancels(self.session, now()));
                cancelling = spent.is_some().then(|| self.cancel().fuse()).into();
            }
            let moment = hub.usage(|usage| usage.next_moment(self.session, now()));
            tokio::select! {
                biased;
                outcome = &mut turn => return (outcome, spent),
                Some(()) = &mut cancelling => {}
                Ok(()) = changed.changed() => {}
                () = wait_for(moment) => {}
            }
        }
    }

    fn cancel(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let cancelled = match self.inner.connection().await {
                Ok(connection) => connection.cancel(self.session).await,
                Err(error) => Err(error),
            };
            if let Err(error) = cancelled {
                tracing::debug!(error = %OneLine(&error), "a turn over its budget could not be cancelled");
            }
        })
    }

    fn finish(mut self, outcome: Outcome, spent: Option<BudgetEvent>) -> Outcome {
        self.done = true;
        let cancelled = *self.inner.hub.watch_turn(self.session).borrow() == TurnState::Cancelling;
        let end = TurnEnd {
            response: outcome.as_ref().ok().map(|outcome| &outcome.raw),
            elapsed: now().saturating_duration_since(self.began),
            cancelled,
            executed: outcome.as_ref().map_or_else(is_executed, |outcome| outcome.sent),
        };
        let used = self.inner.hub.usage(|usage| usage.end_turn(self.session, &end));
        self.publish(end.executed);
        outcome.map(|mut outcome| {
            outcome.usage = Box::new(used);
            outcome.budget = spent.map(Box::new);
            outcome
        })
    }

    fn publish(&self, after_turn: bool) {
        let news = self.inner.hub.usage(|usage| usage.news(self.session, now(), after_turn));
        for news in news {
            self.inner.hub.publish(&Event::Budget(Box::new(news)));
        }
    }
}

impl Drop for Running<'_> {
    /// The task of the turn was aborted.
    fn drop(&mut self) {
        if !self.done {
            let elapsed = now().saturating_duration_since(self.began);
            let end = TurnEnd { response: None, elapsed, cancelled: true, executed: true };
            self.inner.hub.usage(|usage| usage.end_turn(self.session, &end));
        }
    }
}

/// Whether a prompt that failed may have been sent. This includes prompts that the agent received and refused.
fn is_executed(error: &Error) -> bool {
    error.maybe_executed() || error.rpc_error().is_some()
}

/// The time by the clock of the runtime, so that tests can pause it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

async fn wait_for(time: Option<Duration>) {
    match time {
        // A timer may fire a little early; then the limit is checked again.
        Some(time) => tokio::time::sleep(time.max(Duration::from_millis(1))).await,
        None => std::future::pending().await,
    }
}
