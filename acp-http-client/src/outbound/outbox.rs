//! One outbox per session: messages about a session are sent in the order of the application.

use std::{collections::HashMap, sync::Arc};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::sync::{Mutex, MutexGuard, PoisonError};

/// The outboxes of a connection.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Guards the lanes and their turns; held for a look-up.
    lanes: Mutex<HashMap<Arc<str>, Lane>>,
    /// A turn ended, or a cancel has its status.
    changed: Notify,
}

/// The state of one session with messages to send.
#[derive(Debug)]
struct Lane {
    /// One permit, granted in the order of requests.
    order: Arc<Semaphore>,
    /// How many hold or want the permit.
    users: usize,
    turns: Vec<Turn>,
    /// Cancels that have no status yet.
    cancels: usize,
}

#[derive(Debug)]
struct Turn {
    number: u64,
    /// Whether its prompt was sent.
    started: bool,
    cancelled: bool,
}

/// The result of marking a session's turns as cancelled.
#[derive(Debug)]
pub(super) struct Cancelled {
    /// Prompts that were not sent yet: they are withdrawn.
    pub(super) withdrawn: Vec<u64>,
    /// The turns that run.
    pub(super) running: Vec<u64>,
    /// The cancel counts from here on: no prompt is sent before it has its status.
    pub(super) cancelling: Cancelling,
}

impl Outbox {
    /// Waits for the turn to send about a session.
    pub(crate) async fn enter(self: &Arc<Self>, session: &Arc<str>) -> Slot {
        let (order, mut slot) = {
            let mut lanes = self.lock();
            let lane = lanes.entry(session.clone()).or_insert_with(Lane::new);
            lane.users += 1;
            (lane.order.clone(), Slot { outbox: self.clone(), session: session.clone(), permit: None })
        };
        // The semaphore is never closed.
        slot.permit = order.acquire_owned().await.ok();
        slot
    }

    /// A prompt was made.
    pub(super) fn begin_turn(&self, session: &Arc<str>, number: u64) {
        let turn = Turn { number, started: false, cancelled: false };
        self.lock().entry(session.clone()).or_insert_with(Lane::new).turns.push(turn);
    }

    /// Its prompt is about to be sent; `false` if it was withdrawn.
    pub(super) fn start_turn(&self, session: &Arc<str>, number: u64) -> bool {
        let mut lanes = self.lock();
        let turn =
            lanes.get_mut(session).and_then(|lane| lane.turns.iter_mut().find(|turn| turn.number == number));
        match turn {
            Some(turn) => {
                turn.started = true;
                true
            }
            None => false,
        }
    }

    /// The server refused the prompt unread: its turn has not started. `false` if it was cancelled: then it has
    /// ended.
    pub(super) fn unstart_turn(&self, number: u64) -> bool {
        for turn in self.lock().values_mut().flat_map(|lane| &mut lane.turns) {
            if turn.number == number {
                turn.started = false;
                return !turn.cancelled;
            }
        }
        true
    }

    /// The turn of this prompt has ended, or was never sent.
    pub(crate) fn end_turn(&self, number: u64) {
        let mut lanes = self.lock();
        let mut ended = false;
        lanes.retain(|_, lane| {
            let before = lane.turns.len();
            lane.turns.retain(|turn| turn.number != number);
            ended |= lane.turns.len() < before;
            lane.is_used()
        });
        drop(lanes);
        if ended {
            self.changed.notify_waiters();
        }
    }

    /// Marks one turn as cancelled: its future was dropped.
    pub(super) fn abandon(&self, number: u64) {
        for turn in self.lock().values_mut().flat_map(|lane| &mut lane.turns) {
            turn.cancelled |= turn.number == number;
        }
    }

    /// Whether a turn of the session was sent and has not ended, even if its future was dropped.
    pub(crate) fn has_turn(&self, session: &str) -> bool {
        self.lock().get(session).is_some_and(|lane| lane.turns.iter().any(|turn| turn.started))
    }

    /// The cancelled turns of one session, or all of them.
    pub(crate) fn cancelled_turns(&self, session: Option<&str>) -> Vec<u64> {
        let lanes = self.lock();
        let lanes = lanes.iter().filter(|(name, _)| session.is_none_or(|session| ***name == *session));
        let turns = lanes.flat_map(|(_, lane)| &lane.turns).filter(|turn| turn.cancelled);
        turns.map(|turn| turn.number).collect()
    }

    /// Marks the turns of a session as cancelled, withdraws those that were not started, and counts the cancel.
    pub(super) fn cancel(self: &Arc<Self>, session: &Arc<str>) -> Cancelled {
        let mut lanes = self.lock();
        let lane = lanes.entry(session.clone()).or_insert_with(Lane::new);
        lane.cancels += 1;
        let (mut withdrawn, mut running) = (Vec::new(), Vec::new());
        lane.turns.retain_mut(|turn| {
            turn.cancelled = true;
            let list = if turn.started { &mut running } else { &mut withdrawn };
            list.push(turn.number);
            turn.started
        });
        drop(lanes);
        Cancelled { withdrawn, running, cancelling: self.counted(session) }
    }

    /// Counts another cancel of these turns; `None` if none of them runs.
    pub(super) fn cancel_again(self: &Arc<Self>, session: &Arc<str>, turns: &[u64]) -> Option<Cancelling> {
        let mut lanes = self.lock();
        let lane = lanes.get_mut(session)?;
        if !lane.turns.iter().any(|turn| turns.contains(&turn.number)) {
            return None;
        }
        lane.cancels += 1;
        drop(lanes);
        Some(self.counted(session))
    }

    /// Waits until none of these turns runs.
    pub(super) async fn ended(&self, session: &Arc<str>, turns: &[u64]) {
        self.until(|lanes| {
            let lane = lanes.get(session);
            lane.is_none_or(|lane| !lane.turns.iter().any(|turn| turns.contains(&turn.number)))
        })
        .await;
    }

    /// Waits until the lanes fulfil a condition that the end of a turn or of a cancel can change.
    async fn until(&self, is_met: impl Fn(&HashMap<Arc<str>, Lane>) -> bool) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Registered before the check, so that no change is missed.
            changed.as_mut().enable();
            if is_met(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// A cancel that was counted.
    fn counted(self: &Arc<Self>, session: &Arc<str>) -> Cancelling {
        Cancelling { outbox: self.clone(), session: session.clone() }
    }

    /// Whether a cancel of the session has no status yet.
    #[cfg(test)]
    pub(crate) fn is_cancelling(&self, session: &Arc<str>) -> bool {
        self.lock().get(session).is_some_and(|lane| lane.cancels > 0)
    }

    /// Waits until no cancelled turn runs in the session and every cancel has its status; `false` if the timeout
    /// expired first.
    pub(super) async fn settled(&self, session: &Arc<str>, until: Option<Instant>) -> bool {
        let settled = self.until(|lanes| {
            lanes.get(session).is_none_or(|lane| {
                lane.cancels == 0 && !lane.turns.iter().any(|turn| turn.cancelled && turn.started)
            })
        });
        match until {
            None => {
                settled.await;
                true
            }
            Some(until) => tokio::time::timeout_at(until, settled).await.is_ok(),
        }
    }

    /// How many sessions are remembered.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    fn new() -> Self {
        Self { order: Arc::new(Semaphore::new(1)), users: 0, turns: Vec::new(), cancels: 0 }
    }

    fn is_used(&self) -> bool {
        self.users > 0 || self.cancels > 0 || !self.turns.is_empty()
    }
}

/// The right to send about a session. Dropping it lets the next one send.
#[derive(Debug)]
pub(crate) struct Slot {
    outbox: Arc<Outbox>,
    session: Arc<str>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.permit = None;
        let mut lanes = self.outbox.lock();
        if let Some(lane) = lanes.get_mut(&self.session) {
            lane.users -= 1;
            if !lane.is_used() {
                lanes.remove(&self.session);
            }
        }
    }
}

/// A cancel that has no status yet.
#[derive(Debug)]
pub(super) struct Cancelling {
    outbox: Arc<Outbox>,
    session: Arc<str>,
}

impl Drop for Cancelling {
    fn drop(&mut self) {
        let mut lanes = self.outbox.lock();
        if let Some(lane) = lanes.get_mut(&self.session) {
            lane.cancels -= 1;
            if !lane.is_used() {
                lanes.remove(&self.session);
            }
        }
        drop(lanes);
        self.outbox.changed.notify_waiters();
    }
}
