//! A reservation for a terminal.

use std::sync::{Arc, Weak};

use super::process::{Output, Process};
use super::{Inner, Terminal, TerminalCommand, TerminalError};
use crate::client::random::random_id;

/// A reservation for a terminal of a session. It counts as a terminal until it is used or dropped.
///
/// The end of the session cancels it: a command that is starting at that moment is not started, or is killed.
/// The reservation does not keep the terminals alive.
#[derive(Debug)]
pub(crate) struct Reservation {
    inner: Weak<Inner>,
    number: u64,
    session: String,
}

impl Reservation {
    pub(super) fn take(inner: &Arc<Inner>, session: &str) -> Result<Self, TerminalError> {
        let mut state = inner.lock();
        if state.closed {
            return Err(TerminalError::Closed);
        }
        let limit = inner.options.max_terminals;
        if state.terminals.len() + state.starting.len() >= limit {
            return Err(TerminalError::TooMany { limit });
        }
        let limit = inner.options.max_session_terminals;
        let there = state.terminals.values().map(|terminal| &terminal.session).chain(state.starting.values());
        if there.filter(|of| *of == session).count() >= limit {
            return Err(TerminalError::TooManyInSession { limit });
        }
        state.reservations += 1;
        let number = state.reservations;
        state.starting.insert(number, session.to_owned());
        drop(state);
        Ok(Self { inner: Arc::downgrade(inner), number, session: session.to_owned() })
    }

    /// Starts a command and returns the id of its terminal.
    pub(crate) fn start(self, wanted: &TerminalCommand) -> Result<String, TerminalError> {
        let inner = self.inner.upgrade().ok_or(TerminalError::Closed)?;
        let failed = |source| TerminalError::Io { command: wanted.command.clone(), source: Arc::new(source) };
        // Made before the start: without an id the command must not run.
        let id = format!("term-{}", random_id().map_err(failed)?);
        let command = inner.options.prepare(wanted)?;
        if !inner.lock().starting.contains_key(&self.number) {
            return Err(TerminalError::Closed);
        }
        let (bytes, limit) = (inner.options.limit_of(wanted), inner.options.total_output_limit);
        let admitted = inner.output.admit(bytes);
        let admitted = admitted.ok_or(TerminalError::OutputBudget { limit, wanted: bytes })?;
        let started = Process::start(command, Output::new(bytes, admitted), inner.options.spawner());
        // From here on the supervisor owns the process, and later its task does.
        let (process, supervisor) = started.map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => TerminalError::NoCommand(wanted.command.clone()),
            _ => failed(source),
        })?;
        let mut state = inner.lock();
        if state.starting.remove(&self.number).is_none() {
            drop(state);
            // This kills the process, which takes too long to hold the lock.
            drop(supervisor);
            return Err(TerminalError::Closed);
        }
        while state.tasks.try_join_next().is_some() {}
        state.tasks.spawn(supervisor.run());
        state.terminals.insert(id.clone(), Terminal { session: self.session.clone(), process });
        Ok(id)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.lock().starting.remove(&self.number);
        }
    }
}
