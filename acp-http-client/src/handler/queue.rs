//! The queue between a connection and the reader of its agent requests.

use std::{
    collections::VecDeque,
    task::{Context, Poll, Waker},
};

use super::{
    channel::{AgentRequest, Responder},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The queue length at which cancelled requests are first removed.
const FIRST_SWEEP: usize = 32;

type Entry = (AgentRequest, Responder);

/// Holds agent requests until they are read, in the order of the wire.
///
/// [`Limits::open_requests`](crate::Limits#structfield.open_requests) is its bound: only admitted requests are
/// pushed, and cancelled ones are removed whenever the queue has doubled.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    /// Guards the queue; held for a push, a pop or a sweep, and not while requests are dropped.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<Entry>,
    /// The reader, if it waits.
    waker: Option<Waker>,
    /// At this length cancelled requests are removed.
    sweep_at: usize,
    /// The connection has ended.
    ended: bool,
    /// The reader is gone.
    unread: bool,
}

impl RequestQueue {
    /// Queues a request. Without a reader it is dropped, which cancels it.
    pub(super) fn push(&self, request: AgentRequest, responder: Responder) {
        let mut state = self.lock();
        if state.ended || state.unread {
            drop(state);
            return drop((request, responder));
        }
        let swept = state.sweep();
        state.entries.push_back((request, responder));
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        drop(swept);
    }

    pub(super) fn try_pop(&self) -> Option<Entry> {
        self.lock().entries.pop_front()
    }

    pub(super) fn poll_pop(&self, context: &Context<'_>) -> Poll<Option<Entry>> {
        let mut state = self.lock();
        match state.entries.pop_front() {
            Some(entry) => Poll::Ready(Some(entry)),
            None if state.ended => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The connection has ended: what is queued can still be read.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The reader is gone: what is queued is cancelled.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        state.unread = true;
        let entries = std::mem::take(&mut state.entries);
        drop(state);
        drop(entries);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Removes cancelled requests when the queue has doubled, so that a push costs the same on average.
    fn sweep(&mut self) -> VecDeque<Entry> {
        if self.entries.len() < self.sweep_at.max(FIRST_SWEEP) {
            return VecDeque::new();
        }
        let (closed, open) =
            std::mem::take(&mut self.entries).into_iter().partition(|(_, responder)| responder.is_closed());
        self.entries = open;
        self.sweep_at = 2 * self.entries.len();
        closed
    }
}
