//! The turns of sessions.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Hub, Progress};
use crate::client::event::{Class, Queue};
use crate::client::session::TurnState;
use crate::client::stream::{LogEntry, LogRecord};
use crate::client::turn::TurnItem;
use crate::event::Origin;
use crate::update::Missed;
use crate::{DropPolicy, Error, TurnOutcome};

impl Hub {
    /// Records that something may be missing in every session.
    pub(in crate::client) fn miss(&self, missed: Missed) {
        for (id, book) in &mut self.lock().sessions {
            book.miss(id, missed);
        }
    }

    /// Records that something may be missing in one session.
    pub(in crate::client) fn miss_in(&self, id: &str, missed: Missed) {
        self.lock().book(id).miss(id, missed);
    }

    /// Creates the queue of a turn. Its reader counts as deciding until it shows otherwise.
    pub(in crate::client) fn turn_queue(&self) -> Arc<Queue<TurnItem>> {
        let queue = Queue::new(self.budget);
        queue.set_deciding(true);
        Arc::new(queue)
    }

    /// Starts a turn if none is running, and returns the state before.
    pub(in crate::client) fn begin_turn(&self, id: &str, queue: &Arc<Queue<TurnItem>>) -> TurnState {
        let mut state = self.lock();
        let book = state.book(id);
        let before = *book.turn_state.borrow();
        if before == TurnState::Idle {
            book.turn = Some(Arc::clone(queue));
            book.turn_missed.clear();
            book.is_prompted = false;
            book.progress.send_modify(Progress::begin);
            book.turn_state.send_replace(TurnState::Running);
        }
        before
    }

    /// The prompt of the turn was sent: updates belong to the turn from now on.
    pub(in crate::client) fn prompt_sent(&self, id: &str) {
        self.lock().book(id).is_prompted = true;
    }

    /// The prompt of the turn was not executed: updates do not belong to the turn until it is sent again.
    pub(in crate::client) fn prompt_withdrawn(&self, id: &str) {
        self.lock().book(id).is_prompted = false;
    }

    /// Returns what is missing in the running turn.
    pub(in crate::client) fn turn_missed(&self, id: &str) -> Vec<Missed> {
        self.lock().book(id).turn_missed.clone()
    }

    /// The reader of a turn does not decide requests. Returns those that waited for it.
    pub(in crate::client) fn stop_deciding(&self, queue: &Queue<TurnItem>) -> Vec<TurnItem> {
        // Requests are published under the same lock, so that none comes between.
        let _state = self.lock();
        queue.set_deciding(false);
        queue.take_class(Class::Request)
    }

    /// The turn is being cancelled. Its updates are still delivered to it.
    pub(crate) fn cancelling_turn(&self, id: &str) {
        let mut state = self.lock();
        let running = |turn: &mut TurnState| {
            let running = *turn == TurnState::Running;
            if running {
                *turn = TurnState::Cancelling;
            }
            running
        };
        state.book(id).turn_state.send_if_modified(running);
    }

    /// The reader of a turn was dropped. If the turn runs, it continues or is cancelled by the policy.
    pub(in crate::client) fn drop_turn(&self, id: &str, queue: &Arc<Queue<TurnItem>>, policy: DropPolicy) {
        let mut state = self.lock();
        let Some(book) = state.sessions.get_mut(id) else { return };
        if book.turn.as_ref().is_some_and(|turn| Arc::ptr_eq(turn, queue)) {
            book.turn = None;
            if policy == DropPolicy::Cancel {
                book.turn_state.send_replace(TurnState::Cancelling);
            }
        }
    }

    /// The reader of the turn was dropped; the turn continues.
    pub(crate) fn leave_turn(&self, id: &str) {
        self.lock().book(id).turn = None;
    }

    /// The running turn moves to the session that took the place of its own; `false` if another turn runs there.
    pub(in crate::client) fn move_turn(&self, from: &str, to: &str, queue: &Arc<Queue<TurnItem>>) -> bool {
        let mut state = self.lock();
        if from == to {
            return true;
        }
        let old = state.book(from);
        let turn = old.turn.take();
        let before = old.turn_state.send_replace(TurnState::Idle);
        let new = state.book(to);
        if *new.turn_state.borrow() != TurnState::Idle {
            return false;
        }
        new.turn = turn.filter(|turn| Arc::ptr_eq(turn, queue));
        new.turn_missed.clear();
        new.is_prompted = false;
        new.progress.send_modify(Progress::begin);
        new.turn_state.send_replace(before);
        true
    }

    /// Publishes the outcome of a turn, after all its updates.
    pub(crate) fn turn_outcome(
        &self,
        id: &str,
        request_id: Option<String>,
        outcome: &Result<TurnOutcome, Error>,
    ) {
        let mut state = self.lock();
        if !state.logs.is_empty() {
            let (session_id, outcome) = (id.to_owned(), outcome.clone());
            let ended = LogRecord::TurnEnded { session_id, request_id, outcome };
            state.log(&LogEntry::new(ended, None, Origin::Live));
        }
    }

    /// Ends the turn and its queue; the next turn may begin.
    pub(crate) fn end_turn(&self, id: &str) {
        let mut state = self.lock();
        let book = state.book(id);
        if let Some(queue) = book.turn.take() {
            queue.end();
        }
        book.end_turn();
    }

    /// Watches the turn state of a session.
    pub(crate) fn watch_turn(&self, id: &str) -> watch::Receiver<TurnState> {
        self.lock().book(id).turn_state.subscribe()
    }

    /// Watches the progress of a session's turn.
    pub(in crate::client) fn watch_progress(&self, id: &str) -> watch::Receiver<Progress> {
        self.lock().book(id).progress.subscribe()
    }

    /// Notifies the watchers of a session's progress about every update from now on.
    pub(in crate::client) fn time_progress(&self, id: &str) {
        self.lock().book(id).progress.send_modify(|progress| progress.timed = true);
    }
}
