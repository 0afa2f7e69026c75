//! What the ledger sees.

use std::collections::HashSet;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::Ledger;
use super::books::Books;
use crate::client::Observer;
use crate::client::snapshot::Patch;
use crate::error::LostReason;
use crate::event::Origin;
use crate::sessions::StoredEventKind;
use crate::sessions::amend::Amendment;
use crate::sessions::entry::Entry;
use crate::{ConnectionState, Error, Event, TurnOutcome};

impl Ledger {
    /// Something happened that is not of one session.
    fn happened_to_all(&self, books: &mut Books, event: &Event) {
        match event {
            Event::ServerRestarted => {
                books.restart();
                if let Some(recorder) = self.recorder.get() {
                    recorder.restarted();
                }
            }
            Event::Connection(ConnectionState::Reconnecting { .. }) => books.notice(true),
            Event::Reconnected { .. } => books.notice(false),
            Event::Connection(
                ConnectionState::AgentEnded(_) | ConnectionState::Disconnected | ConnectionState::Lost(_),
            ) => books.lose_all(),
            Event::Gap(_) | Event::Lagged(_) => {
                let to = if let Event::Gap(gap) = event { Some(gap.to) } else { books.stream.reached() };
                to.into_iter().for_each(|to| books.strangers.miss(to));
                let Some(entry) = Entry::of(event, None) else { return };
                let live = || books.bound.iter().filter(|(_, binding)| binding.live);
                live().for_each(|(id, _)| self.record_entry(id, entry.clone()));
                // A session that is being taken up misses it too, and it is told with what is held back.
                let told: HashSet<&str> = live().map(|(_, binding)| binding.agent_session.as_str()).collect();
                books.early.take_for_all_but(&told, &entry);
            }
            _ => {}
        }
    }
}

impl Observer for Ledger {
    fn happened(&self, event: &Event, place: Option<&str>) {
        let mut books = self.books();
        if let Some(place) = place {
            books.pass(place);
        }
        let Some(session) = event.session_id() else { return self.happened_to_all(&mut books, event) };
        if event.origin() == Origin::Live {
            books.last_active = Some(SystemTime::now().into());
        }
        let id = books.kept.get(session).cloned();
        let binding = id.as_ref().and_then(|id| books.bound.get_mut(id));
        if let (Some(id), Some(binding)) = (&id, binding) {
            if binding.agent_session == session {
                binding.notice(event);
                if let Some(entry) = Entry::of(event, None) {
                    self.amend(id, binding.epoch, amendment(&entry));
                }
            } else if matches!(event, Event::SessionEnded(_)) {
                // It goes on in another session of the agent.
                return;
            }
            if place.is_some_and(|place| binding.stored.remove(place)) {
                return;
            }
        }
        if books.early.take(session, event, place) {
            return;
        }
        let is_live = event.origin() == Origin::Live;
        let Some(entry) = Entry::whenever(event, place).filter(|_| event.origin() != Origin::History) else {
            return;
        };
        let binding = id.as_ref().and_then(|id| books.bound.get_mut(id));
        let is_behind = binding.as_ref().is_some_and(|binding| binding.is_behind) && place.is_some();
        match id.filter(|_| is_live && !is_behind) {
            Some(id) => {
                if let Some(binding) = binding {
                    binding.see(&entry);
                }
                self.record_entry(&id, entry);
            }
            // Also what came while there was no connection, for a session that this program had.
            None => books.strangers.put(session, entry, is_live),
        }
    }

    fn passed(&self, place: &str) {
        self.books().pass(place);
    }

    fn turn_ended(&self, session: &str, outcome: &Result<TurnOutcome, Error>) {
        let mut books = self.books();
        books.last_active = Some(SystemTime::now().into());
        let leaving = books.leaving.remove(session);
        let Some(id) = books.kept.get(session).cloned().or(leaving) else { return };
        if let Some(binding) = books.bound.get_mut(&id).filter(|binding| binding.agent_session == session) {
            let told = binding.end_turn(outcome);
            binding.live &= !outcome.as_ref().is_err_and(is_unknown_session);
            self.amend(&id, binding.epoch, Amendment { told, ..Amendment::default() });
        }
        self.recorder().record(&id, StoredEventKind::TurnEnded, outcome_payload(outcome));
    }

    fn replied(&self, session: &str, payload: Value) {
        let mut books = self.books();
        let entry = Entry::own(StoredEventKind::Answered, payload);
        if books.early.take_own(session, &entry) {
            return;
        }
        if let Some(id) = books.kept.get(session).or_else(|| books.leaving.get(session)) {
            self.record_entry(id, entry);
        }
    }

    fn answered(&self, session: &str, patch: &Patch) {
        let books = self.books();
        let Some(id) = books.kept.get(session) else { return };
        if let Some(binding) = books.bound.get(id).filter(|binding| binding.agent_session == session) {
            let (config_options, mode) = (patch.options_as_sent(), patch.mode().map(str::to_owned));
            self.amend(id, binding.epoch, Amendment { config_options, mode, ..Amendment::default() });
        }
    }
}

/// What an event changes in the record of its session.
pub(super) fn amendment(entry: &Entry) -> Amendment {
    let mut amendment = Amendment::default();
    match (&entry.kind, entry.payload["sessionUpdate"].as_str()) {
        (StoredEventKind::Update, Some("config_option_update")) => {
            amendment.config_options = entry.payload.get("configOptions").cloned();
        }
        (StoredEventKind::Update, Some("current_mode_update")) => {
            amendment.mode = entry.payload["currentModeId"].as_str().map(str::to_owned);
        }
        (StoredEventKind::Ended, _) => {
            amendment.termination = serde_json::from_value(entry.payload.clone()).ok();
        }
        _ => {}
    }
    amendment
}

pub(super) fn outcome_payload(outcome: &Result<TurnOutcome, Error>) -> Value {
    match outcome {
        Ok(outcome) => json!({"stopReason": outcome.stop_reason, "answer": outcome.raw}),
        Err(error) => {
            let executed = error.maybe_executed() || error.rpc_error().is_some();
            json!({"error": error.to_string(), "termination": error.termination(), "executed": executed})
        }
    }
}

/// Whether a failure says that the session, or everything, is gone on the other side.
pub(in crate::sessions) fn is_unknown_session(error: &Error) -> bool {
    /// What agents say of a session that they do not have.
    const NOT_FOUND: i64 = -32002;
    match error {
        Error::AgentEnded(_) | Error::ServerRestarted { .. } | Error::NotConnected => true,
        Error::ConnectionEnded { reason, .. } => *reason != LostReason::Unauthorized,
        Error::Http(http) => matches!(http.status, 400 | 404 | 410),
        Error::Rpc { error, .. } => {
            let words = error.message.to_lowercase();
            error.code == NOT_FOUND
                || (words.contains("session") && (words.contains("not found") || words.contains("unknown")))
                || error.data.as_ref().and_then(|data| data.get("sessionId")).is_some_and(Value::is_string)
                    && words.contains("not found")
        }
        _ => false,
    }
}
