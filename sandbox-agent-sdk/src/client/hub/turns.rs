//! The turns of sessions.

use std::sync::Arc;

use tokio::sync::watch;

use super::known_prompts::KnownPrompts;
use super::session_state::SessionState;
use super::{Hub, Progress};
use crate::client::event::Queue;
use crate::client::session::TurnState;
use crate::client::turn::TurnItem;
use crate::event::TurnEnded;
use crate::update::Missed;
use crate::{DropPolicy, Event};

/// The end of one turn of a session.
#[derive(Debug)]
pub(in crate::client) struct TurnEnd {
    ended: watch::Receiver<u64>,
    /// How many turns have ended then.
    number: u64,
}

impl TurnEnd {
    /// The end of the running turn. If none runs, it has passed.
    fn of(session: &SessionState) -> Self {
        let ended = session.turns_ended.subscribe();
        let runs = *session.turn_state.borrow() != TurnState::Idle;
        let number = *ended.borrow() + u64::from(runs);
        Self { ended, number }
    }

    /// Waits until the turn has ended, or was moved to another session.
    pub(in crate::client) async fn passed(mut self) {
        // The sender lives as long as the state of the session; without one there is no turn.
        let _ = self.ended.wait_for(|ended| *ended >= self.number).await;
    }
}

impl Hub {
    /// Records that something may be missing in every session.
    pub(in crate::client) fn miss(&self, missed: Missed) {
        for (id, session) in &mut self.lock().sessions {
            session.miss(id, missed);
        }
    }

    /// Records that something may be missing in one session.
    pub(in crate::client) fn miss_in(&self, id: &str, missed: Missed) {
        self.lock().session(id).miss(id, missed);
    }

    /// The stream was lost.
    pub(in crate::client) fn stream_lost(&self) {
        let mut state = self.lock();
        (state.losses, state.is_lost) = (state.losses + 1, true);
    }

    /// The stream that was lost is open again, or that of another connection begins.
    pub(in crate::client) fn stream_reopened(&self) {
        self.lock().is_lost = false;
    }

    /// Whether the stream is lost, or was lost since the last event of a session: updates may follow.
    pub(in crate::client) fn is_interrupted(&self, id: &str) -> bool {
        let state = self.lock();
        state.is_lost || state.sessions.get(id).is_some_and(|session| session.losses < state.losses)
    }

    /// Creates the queue of a turn. Its reader counts as deciding until it shows otherwise.
    pub(in crate::client) fn turn_queue(&self) -> Arc<Queue<TurnItem>> {
        let queue = Queue::new(self.budget);
        queue.set_deciding(true);
        Arc::new(queue)
    }

    /// Starts a turn if none is running, and returns the state before. While a turn is being cancelled, and while an
    /// earlier prompt waits for that, this one waits behind them: the state is then `Cancelling`.
    pub(in crate::client) fn begin_turn(&self, id: &str, queue: &Arc<Queue<TurnItem>>) -> TurnState {
        let mut state = self.lock();
        let session = state.session(id);
        let before = *session.turn_state.borrow();
        match before {
            TurnState::Idle if session.waiting.is_empty() => {
                session.begin_turn(queue);
                TurnState::Idle
            }
            TurnState::Idle | TurnState::Cancelling => {
                session.waiting.push_back(Arc::clone(queue));
                TurnState::Cancelling
            }
            TurnState::Running => before,
        }
    }

    /// Starts a turn whose prompt waits, if it is its turn, and returns the state before; `None` if it was cancelled.
    pub(in crate::client) fn begin_waiting(
        &self,
        id: &str,
        queue: &Arc<Queue<TurnItem>>,
    ) -> Option<TurnState> {
        let mut state = self.lock();
        let session = state.session(id);
        if !session.waits(queue) {
            return None;
        }
        let before = *session.turn_state.borrow();
        let is_first = session.waiting.front().is_some_and(|first| Arc::ptr_eq(first, queue));
        match before {
            TurnState::Idle if !is_first => return Some(TurnState::Cancelling),
            TurnState::Idle => {
                session.waiting.pop_front();
                session.begin_turn(queue);
            }
            TurnState::Running | TurnState::Cancelling => {}
        }
        Some(before)
    }

    /// A prompt no longer waits for a turn to stop. The next one that waits may begin.
    pub(in crate::client) fn stop_waiting(&self, id: &str, queue: &Arc<Queue<TurnItem>>) {
        self.lock().session(id).stop_waiting(queue);
    }

    /// The prompt of the turn is sent: updates belong to the turn from now on. `false` if a call loads the session: the
    /// history that it replays would belong to the turn.
    pub(in crate::client) fn prompt_sent(&self, id: &str) -> bool {
        let mut state = self.lock();
        let session = state.session(id);
        let is_loading = *session.loads.borrow() > 0;
        if !is_loading {
            session.send_prompt();
        }
        !is_loading
    }

    /// Watches how many calls load a session.
    pub(in crate::client) fn watch_loads(&self, id: &str) -> watch::Receiver<usize> {
        self.lock().session(id).loads.subscribe()
    }

    /// The session is new, so that all its prompts are those of this client.
    pub(in crate::client) fn know_prompts(&self, id: &str) {
        self.lock().session(id).prompts = Some(KnownPrompts::default());
    }

    /// Records the text of a prompt that is sent, if all prompts of the session are known: this client has created it.
    /// Returns how many earlier prompts had the same text.
    pub(in crate::client) fn record_prompt(&self, id: &str, text: &str) -> Option<usize> {
        let mut state = self.lock();
        let prompts = &mut state.session(id).prompts;
        let earlier = prompts.as_mut()?.record(text);
        if earlier.is_none() {
            *prompts = None;
        }
        earlier
    }

    /// The prompt of the turn was not executed: updates do not belong to the turn until it is sent again.
    pub(in crate::client) fn prompt_withdrawn(&self, id: &str) {
        self.lock().session(id).is_prompted = false;
    }

    /// Whether the running turn has an update.
    pub(in crate::client) fn has_updates(&self, id: &str) -> bool {
        self.lock().session(id).has_updates
    }

    /// Returns what is missing in the running turn.
    pub(in crate::client) fn turn_missed(&self, id: &str) -> Vec<Missed> {
        self.lock().session(id).missing()
    }

    /// The reader of a turn decides requests.
    pub(in crate::client) fn start_deciding(&self, id: &str, queue: &Queue<TurnItem>) {
        let mut state = self.lock();
        queue.commit();
        state.session(id).progress.send_modify(Progress::read);
    }

    /// The reader of a turn does not decide requests. Returns those that waited for it.
    pub(in crate::client) fn stop_deciding(&self, id: &str, queue: &Queue<TurnItem>) -> Vec<TurnItem> {
        // Requests are published under the same lock, so none can arrive in between.
        self.lock().session(id).stop_deciding(queue)
    }

    /// Rejects the requests that wait in a turn, unless the turn is read with its requests. It decides none until then.
    pub(in crate::client) fn refuse_unread(&self, id: &str, queue: &Queue<TurnItem>) {
        // A reader commits the queue under the same lock.
        let refused = {
            let mut state = self.lock();
            if queue.is_committed() {
                return;
            }
            state.session(id).stop_deciding(queue)
        };
        for request in refused {
            request.or_refuse(self);
        }
    }

    /// A request of a turn that comes from a layer waits in a turn that was not read yet.
    pub(in crate::client) fn request_unread(&self, id: &str) {
        self.lock().session(id).progress.send_modify(Progress::unread);
    }

    /// The turn is being cancelled. Its updates are still delivered to it.
    pub(crate) fn cancelling_turn(&self, id: &str) {
        self.lock().session(id).cancelling_turn();
    }

    /// Cancels the running turn and the prompts that wait. Returns the end of that turn, which has passed if only prompts
    /// waited; `None` if there is nothing to cancel. A prompt that follows is not affected.
    pub(in crate::client) fn cancel_all(&self, id: &str) -> Option<TurnEnd> {
        let mut state = self.lock();
        let session = state.session(id);
        let has_waiting = !std::mem::take(&mut session.waiting).is_empty();
        let is_idle = *session.turn_state.borrow() == TurnState::Idle;
        if is_idle && !has_waiting {
            return None;
        }
        let end = TurnEnd::of(session);
        session.cancelling_turn();
        session.cancels.send_modify(|cancels| *cancels += 1);
        // Wakes the prompts that waited.
        session.turn_state.send_modify(|_| ());
        Some(end)
    }

    /// Cancels the turn with this queue. Returns its end if it runs. A prompt that waits is withdrawn.
    pub(in crate::client) fn cancel_turn(&self, id: &str, queue: &Arc<Queue<TurnItem>>) -> Option<TurnEnd> {
        let mut state = self.lock();
        let is_here = |session: &SessionState| session.runs(queue) || session.waits(queue);
        let session = match state.sessions.get(id).is_some_and(is_here) {
            true => state.sessions.get_mut(id)?,
            // It may be moving to another session.
            false => state.sessions.values_mut().find(|session| is_here(session))?,
        };
        if session.waits(queue) {
            session.stop_waiting(queue);
            return None;
        }
        session.cancelling_turn();
        session.cancels.send_modify(|cancels| *cancels += 1);
        Some(TurnEnd::of(session))
    }

    /// Watches how often the application cancels the turn.
    pub(in crate::client) fn watch_cancels(&self, id: &str) -> watch::Receiver<u64> {
        self.lock().session(id).cancels.subscribe()
    }

    /// The reader of a turn was dropped. If the turn runs, it continues or is cancelled by the policy.
    pub(in crate::client) fn drop_turn(&self, id: &str, queue: &Arc<Queue<TurnItem>>, policy: DropPolicy) {
        let mut state = self.lock();
        let Some(session) = state.sessions.get_mut(id) else { return };
        if session.runs(queue) {
            session.turn = None;
            if policy == DropPolicy::Cancel {
                session.turn_state.send_replace(TurnState::Cancelling);
            }
        }
    }

    /// The reader of the turn was dropped; the turn continues.
    pub(crate) fn leave_turn(&self, id: &str) {
        self.lock().session(id).turn = None;
    }

    /// Moves the running turn to the session that replaced its own; `false` if another turn runs there.
    pub(in crate::client) fn move_turn(&self, from: &str, to: &str, queue: &Arc<Queue<TurnItem>>) -> bool {
        let mut state = self.lock();
        if from == to {
            state.session(to).progress.send_modify(Progress::begin);
        } else {
            if *state.session(to).turn_state.borrow() != TurnState::Idle {
                return false;
            }
            let old = state.session(from);
            let turn = old.turn.take();
            let before = old.free();
            let new = state.session(to);
            new.turn = turn.filter(|turn| Arc::ptr_eq(turn, queue));
            new.is_prompted = false;
            new.progress.send_modify(Progress::begin);
            new.turn_state.send_replace(before);
        }
        state.logs.iter().for_each(|log| log.moved(from, to));
        true
    }

    /// Ends the turn and publishes its outcome, after all its updates. The next turn may begin.
    pub(in crate::client) fn finish_turn(&self, ended: TurnEnded) {
        // Under one lock, so that a reader of the event finds the session free, and no event of the next turn is
        // published before it.
        let mut state = self.lock();
        state.session(&ended.session_id).end_turn();
        self.publish_in(&mut state, &Event::TurnEnded(Box::new(ended)), None);
    }

    /// Ends the turn and its queue; the next turn may begin.
    pub(crate) fn end_turn(&self, id: &str) {
        self.lock().session(id).end_turn();
    }

    /// Watches the turn state of a session.
    pub(crate) fn watch_turn(&self, id: &str) -> watch::Receiver<TurnState> {
        self.lock().session(id).turn_state.subscribe()
    }

    /// Whether the running turn is being cancelled.
    pub(in crate::client) fn is_cancelling(&self, id: &str) -> bool {
        *self.lock().session(id).turn_state.borrow() == TurnState::Cancelling
    }

    /// Whether no turn of this client runs in the session.
    pub(in crate::client) fn is_idle(&self, id: &str) -> bool {
        self.lock().sessions.get(id).is_none_or(|session| *session.turn_state.borrow() == TurnState::Idle)
    }

    /// A session was opened, with or without a request to report the ends of its interrupted runs.
    pub(in crate::client) fn requested_ends(&self, id: &str, requested: bool) {
        self.lock().session(id).progress.send_modify(|progress| progress.open(requested));
    }

    /// An interrupted run has ended; `false` if this client has not requested the report.
    pub(in crate::client) fn run_ended(&self, id: &str) -> bool {
        let mut state = self.lock();
        let Some(session) = state.sessions.get_mut(id) else { return false };
        session.progress.send_if_modified(Progress::end_run)
    }

    /// The wait for the end of a cancelled run is over; `is_late` if its report did not arrive in time although the run was
    /// certainly interrupted.
    pub(in crate::client) fn run_end_awaited(&self, id: &str, is_late: bool) {
        self.lock().session(id).progress.send_modify(|progress| progress.stop_waiting(is_late));
    }

    /// A prompt has run to its end, and so have all runs before it.
    pub(in crate::client) fn run_completed(&self, id: &str) {
        self.lock().session(id).progress.send_modify(Progress::complete);
    }

    /// Watches the progress of a session's turn.
    pub(in crate::client) fn watch_progress(&self, id: &str) -> watch::Receiver<Progress> {
        self.lock().session(id).progress.subscribe()
    }

    /// Notifies the watchers of a session's progress about every update from now on.
    pub(in crate::client) fn time_progress(&self, id: &str) {
        self.lock().session(id).progress.send_modify(|progress| progress.timed = true);
    }
}
