//! Handles events of the agent and the server.

use std::time::Instant;

use sandbox_agent_sdk::event::Origin;
use sandbox_agent_sdk::{ConnectionState, Error, Event, Events, StopReason, TurnOutcome};

use super::Console;
use crate::chat::card;
use crate::chat::exit::Exit;
use crate::chat::line::{Line, Style};
use crate::chat::talk::{Done, Login};

/// How many events are handled before the screen is drawn.
const BATCH: usize = 512;

impl Console {
    pub(super) fn events_from(&mut self, first: Event) {
        self.event(first);
        for _ in 0..BATCH {
            let Some(event) = self.events.as_mut().and_then(Events::try_next) else { return };
            self.event(event);
        }
    }

    fn event(&mut self, event: Event) {
        let note = |text: String| [Line::new(Style::Warn, &format!("! {text}"))];
        let writing = !self.editor.is_empty();
        self.last_update = Instant::now();
        self.talk.observe(&event);
        match event {
            Event::Update(update) if update.origin() != Origin::History => {
                self.view.take(&update, self.screen.width() - 2);
            }
            Event::Permission(request) => self.asks.permission(request, writing),
            Event::Question(request) => self.asks.question(request, writing),
            // During a turn, its outcome reports the same after the last output of the agent.
            Event::SessionEnded(ended) if self.turn.is_none() && !self.talk.dead => {
                self.talk.dead = true;
                self.view.put(card::crash(&ended.termination));
            }
            // Released servers report stderr minutes later, when another turn may be running.
            Event::TerminationDetails(ended) if self.turn.is_none() || self.talk.termination().is_none() => {
                self.view.put(card::late_details(&ended.termination));
            }
            Event::Connection(ConnectionState::Connected) | Event::Reconnected { .. } => self.notice = None,
            Event::Connection(state @ ConnectionState::Reconnecting { .. }) => {
                self.notice = Some(Line::new(Style::Warn, &format!("! the connection is {state}")));
            }
            Event::ServerRestarted => self.view.put(note("the server was restarted".to_owned())),
            Event::Gap(gap) => self.view.put(note(format!("{} events are missing here", gap.count()))),
            Event::Lagged(count) => self.view.put(note(format!("{count} events were skipped here"))),
            Event::AgentUnparsed { unparsed, .. } => {
                self.view.put([Line::new(Style::Dim, &format!("the agent printed: {}", unparsed.raw))]);
            }
            Event::Malformed { reason, .. } => {
                self.view.put(note(format!("the server sent an invalid message: {reason}")))
            }
            Event::ResponseLost { error, .. } => {
                self.view.put(card::failure("your answer was not delivered", &error))
            }
            _ => {}
        }
    }

    pub(super) fn turn_over(&mut self, outcome: Result<TurnOutcome, Error>) {
        // Events before the end of the turn have been delivered by now. They are shown first.
        while let Some(event) = self.events.as_mut().and_then(Events::try_next) {
            self.event(event);
        }
        self.turn = None;
        self.cancelling = None;
        self.asks.cancel();
        self.view.end();
        let login = self.talk.turn_over(&outcome);
        match outcome {
            Ok(outcome) => match outcome.stop_reason {
                StopReason::EndTurn => {}
                StopReason::Cancelled => self.view.put([Line::new(Style::Dim, "– cancelled")]),
                other => self.view.put([Line::new(Style::Warn, &format!("– stopped: {other}"))]),
            },
            Err(error) => match error.termination() {
                Some(end) => {
                    self.talk.dead = true;
                    self.queue.clear();
                    // Details may have arrived since the turn failed.
                    let complete = self.talk.termination().filter(|_| end.stderr.is_none());
                    self.view.put(card::crash(complete.as_ref().unwrap_or(end)));
                }
                None => {
                    self.talk.dead = error.is_terminal();
                    if let Some(login) = login {
                        return self.log_in(login);
                    }
                    self.queue.clear();
                    self.view.put(self.talk.failure("the turn failed", &error));
                }
            },
        }
        self.next_in_queue();
    }

    /// Logs in, and sends the prompt again unless the agent had begun to work on it.
    fn log_in(&mut self, login: Login) {
        if login.failure.is_empty() {
            self.resend = Some(login.prompt);
        } else {
            self.queue.clear();
            self.view.put(login.failure);
            if self.editor.is_empty() {
                self.editor.insert(&login.prompt);
            }
        }
        self.start(login.task);
    }

    pub(super) fn cancelled(&mut self, outcome: Result<(), Error>) {
        self.cancelling = None;
        if let Err(error) = outcome {
            self.view.put(card::failure("the agent does not stop", &error));
        }
    }

    pub(super) fn task_ended(&mut self, outcome: Result<Done, Error>) {
        let what = self.task.take().map(|task| task.what).unwrap_or_default();
        match outcome {
            Ok(done) => {
                let first = self.talk.session_id().is_none();
                let shown = self.talk.finish(done);
                for update in &shown.history {
                    self.view.take(update, self.screen.width() - 2);
                }
                self.view.end();
                self.events = shown.events.or(self.events.take());
                self.view.put(shown.lines);
                if first {
                    self.view.put([Line::new(Style::Dim, "/help lists the commands, Ctrl-D leaves.")]);
                }
            }
            Err(error) => {
                self.view.put(self.talk.failure(&what, &error));
                self.queue.clear();
                if self.talk.session_id().is_none() {
                    self.leave = Some(Exit::NotStarted);
                } else if error.termination().is_some() {
                    self.talk.dead = true;
                    self.view.put([card::restart_hint()]);
                }
            }
        }
        self.next_in_queue();
    }

    pub(super) fn next_in_queue(&mut self) {
        match self.resend.take() {
            Some(text) if !self.talk.dead => self.prompt(text),
            // The agent could not be restarted: the user can send the text again.
            Some(text) if self.editor.is_empty() => self.editor.insert(&text),
            Some(text) => self.view.put([Line::new(Style::Warn, &format!("! not sent: {text}"))]),
            None => {}
        }
        while !self.is_busy() && self.leave.is_none() {
            let Some(line) = self.queue.pop_front() else { return };
            self.submit(&line);
        }
    }
}
