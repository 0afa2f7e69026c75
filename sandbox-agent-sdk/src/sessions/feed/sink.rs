//! Passes the events of a connection to the trackers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use serde_json::Value;

use super::{Command, Entry, Feed, Mailbox, Offered, Position, RunningTurn, State};
use crate::client::event::Hold;
use crate::client::hub::LogSink;
use crate::error::RpcError;
use crate::event::Origin;
use crate::sessions::holder::Holder;
use crate::sessions::tracker::EndedTurn;
use crate::stream::{LogEntry, LogRecord};
use crate::{ConnectionState, Error, Event, TurnOutcome};

impl LogSink for Feed {
    fn push(&self, entry: &LogEntry, is_of_turn: bool) -> Option<Hold> {
        let position = entry.position.filter(|_| self.is_numbered.load(Ordering::Acquire));
        let mut state = self.lock();
        if let Some(position) = position
            && state.progress.pass(position) == self.advance_every
        {
            self.is_due.store(true, Ordering::Release);
            self.overflow.news.notify_one();
        }
        match &entry.record {
            LogRecord::Response { request_id, result } => state.responded(request_id, result),
            LogRecord::Event(Event::TurnEnded(ended)) => {
                return state.turn_ended(&ended.session_id, &ended.outcome, self.holds);
            }
            LogRecord::Settled(settlement) => {
                if let Some(route) = state.routes.get(&settlement.session_id) {
                    route.inbox.note(Command::Described);
                }
            }
            _ => return self.happened(&mut state, entry, position, is_of_turn),
        }
        None
    }

    fn unordered(&self, request_id: &str) {
        if let Some(turn) = self.lock().turn_of_request(request_id) {
            turn.is_unordered = true;
        }
    }

    fn moved(&self, from: &str, to: &str) {
        let mut state = self.lock();
        if let Some(turn) = state.take_turn(from) {
            // The tracker that has the session now.
            let inbox = state.routes.get(to).map_or(turn.inbox, |route| Arc::clone(&route.inbox));
            state.put_turn(to, RunningTurn::new(turn.id, inbox));
        }
    }

    fn latest_hold(&self, session: &str) -> Option<Hold> {
        if self.holds { self.lock().latest_hold(session) } else { None }
    }

    fn leaves_requests(&self, session: &str) -> bool {
        self.lock().is_stored(session)
    }

    fn is_read(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }
}

impl Feed {
    fn happened(
        &self,
        state: &mut State,
        entry: &LogEntry,
        position: Option<Position>,
        is_of_turn: bool,
    ) -> Option<Hold> {
        let Some(session) = entry.session_id() else {
            if let LogRecord::Event(event) = &entry.record {
                if let Event::Connection(connection) = event
                    && !matches!(connection, ConnectionState::Connecting)
                {
                    self.set_asleep(self.falling_asleep.load(Ordering::Acquire));
                }
                state.happened_to_all(event);
            }
            return None;
        };
        if entry.origin != Origin::Live {
            return None;
        }
        state.last_active = Some(SystemTime::now().into());
        let turn_id = state.turn_of(session).filter(|_| is_of_turn);
        let entry = Entry { turn_id, ..Entry::of_record(&entry.record, position)? };
        self.deliver(state, session, entry)
    }

    /// The tracker that stores the answer to an agent request of a session, and the turn of the request: the one for which
    /// it is offered, the one of this process that runs, or the one of another process that may be running.
    pub(in crate::sessions) fn answering(
        &self,
        session: &str,
        request: &str,
    ) -> Option<(Mailbox, Option<String>)> {
        let state = self.lock();
        if let Some(Offered { inbox, turn }) = state.offered.get(&(session.to_owned(), request.to_owned())) {
            return Some((Arc::clone(inbox), Some(turn.clone())));
        }
        let running = state.turns.get(session);
        if let Some(Offered { inbox, turn }) = state.claimed.get(session).filter(|_| running.is_none()) {
            return Some((Arc::clone(inbox), Some(turn.clone())));
        }
        let route = state.routes.get(session).map(|route| &route.inbox);
        let inbox = route.or_else(|| running.map(|turn| &turn.inbox))?;
        Some((Arc::clone(inbox), running.map(|turn| turn.id.clone())))
    }

    /// Whether a turn runs, although the tracker may not show it yet: it is of this process, or its requests are offered.
    pub(in crate::sessions) fn is_running(&self, turn: &str) -> bool {
        let state = self.lock();
        state.sessions_of_turns.contains_key(turn)
            || state.offered.values().any(|offered| offered.turn == turn)
    }
}

impl State {
    fn responded(&mut self, request: &str, response: &Result<Value, RpcError>) {
        if let Some(turn) = self.turn_of_request(request) {
            // Everything before it has arrived.
            turn.request = None;
            self.sessions_of_requests.remove(request);
        }
        if let Some(inbox) = self.awaited.remove(request) {
            inbox.note(Command::Responded(request.to_owned(), response.clone()));
        }
    }

    fn turn_ended(
        &mut self,
        session: &str,
        outcome: &Result<TurnOutcome, Error>,
        holds: bool,
    ) -> Option<Hold> {
        self.last_active = Some(SystemTime::now().into());
        // A turn that another layer began is not stored as a turn.
        let RunningTurn { id, request, is_unordered, inbox } = self.take_turn(session)?;
        self.is_echoing |= outcome.is_ok() && !is_unordered;
        let trailing = request.filter(|_| is_unordered);
        if let Some(request) = &trailing {
            self.awaited.insert(request.clone(), Arc::clone(&inbox));
        }
        let holder = holds.then(Holder::new);
        let hold = holder.as_ref().map(Holder::hold);
        let ended = EndedTurn { id, outcome: outcome.clone(), trailing, holder: holder.map(Arc::new) };
        inbox.note(Command::TurnEnded(Box::new(ended)));
        hold
    }
}
