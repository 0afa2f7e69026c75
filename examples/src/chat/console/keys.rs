//! Handles the user's keys.

use std::time::Instant;

use crossterm::event::{Event as Input, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::Console;
use crate::chat::ask::Pressed;
use crate::chat::command::{COMMANDS, Command};
use crate::chat::editor::Edited;
use crate::chat::exit::Exit;
use crate::chat::line::{Line, Style};
use crate::chat::talk::Task;

/// How many lines may wait until the agent has finished its turn.
const QUEUE: usize = 16;

impl Console {
    pub(super) fn input(&mut self, input: Input) {
        match input {
            Input::Key(key) if key.kind != KeyEventKind::Release => self.key(key),
            Input::Paste(text) if !self.asks.paste(&text) => self.editor.insert(&text),
            Input::Resize(..) => self.screen.measure(),
            _ => {}
        }
    }

    fn key(&mut self, key: KeyEvent) {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return self.interrupt();
        }
        self.armed = false;
        match self.asks.key(key) {
            Pressed::NotMine => {}
            Pressed::Taken => return,
            Pressed::Settled(line) => return self.view.put([line]),
        }
        match self.editor.key(key) {
            Edited::Here => {}
            Edited::Line(line) => self.submit(&line),
            Edited::End => self.leave = Some(Exit::Done),
        }
    }

    /// Handles Ctrl-C: cancels the running turn; a second one ends the chat.
    fn interrupt(&mut self) {
        if self.armed {
            self.leave = Some(Exit::Interrupted);
            return;
        }
        self.armed = true;
        if self.turn.is_some() {
            self.asks.cancel();
            self.cancelling = self.talk.cancel();
            if !self.queue.is_empty() {
                self.queue.clear();
                self.view.put([Line::new(Style::Dim, "– queued lines are dropped")]);
            }
        } else if let Some(task) = self.task.take() {
            self.resend = None;
            self.view.put([Line::new(Style::Dim, &format!("– stopped {}", task.what))]);
            if self.talk.session_id().is_none() {
                self.leave = Some(Exit::Interrupted);
            }
        } else {
            self.editor.clear();
        }
    }

    pub(super) fn submit(&mut self, line: &str) {
        let command = Command::parse(line);
        match command {
            Command::Nothing => {}
            Command::Quit => self.leave = Some(Exit::Done),
            Command::Help => {
                self.echo(line);
                self.help();
            }
            _ if self.is_busy() => {
                if self.queue.len() < QUEUE {
                    self.queue.push_back(line.to_owned());
                }
            }
            command => {
                self.echo(line);
                self.perform(command);
            }
        }
    }

    fn echo(&mut self, line: &str) {
        let mut lines = Line::all(Style::Normal, line);
        if let Some(first) = lines.first_mut() {
            *first = first.clone().behind(Style::User, "› ");
        }
        self.view.put([Line::default()]);
        self.view.put(lines);
    }

    pub(super) fn perform(&mut self, command: Command) {
        match command {
            Command::Prompt(text) => self.prompt(text),
            Command::Other { name, line } if self.talk.agent_knows(&name) => self.prompt(line),
            Command::Other { name, .. } => {
                let note = format!(
                    "! There is no command /{name}. /help lists them; //{name} sends it to the agent."
                );
                self.view.put([Line::new(Style::Warn, &note)]);
            }
            command => match self.talk.task(command) {
                Ok(task) => self.start(task),
                Err(lines) => self.view.put(lines),
            },
        }
    }

    pub(super) fn prompt(&mut self, text: String) {
        if self.talk.dead {
            self.resend = Some(text);
            return self.perform(Command::Restart);
        }
        self.turn = self.talk.prompt(&text);
        self.last_update = Instant::now();
    }

    pub(super) fn start(&mut self, task: Task) {
        self.task = Some(task);
        self.last_update = Instant::now();
    }

    fn help(&mut self) {
        let names = COMMANDS.iter().map(|(name, about)| (format!("  {name:<20}"), *about));
        let mut lines: Vec<Line> =
            names.map(|(name, about)| Line::new(Style::Accent, &name).with(Style::Normal, about)).collect();
        for command in &self.talk.snapshot().commands {
            let name = format!(
                "  {:<20}",
                format!("/{} {}", command.name, command.hint.as_deref().unwrap_or_default())
            );
            lines.push(Line::new(Style::Accent, &name).with(Style::Dim, &command.description));
        }
        lines.push(Line::new(
            Style::Dim,
            "  Ctrl-C cancels, twice leaves; Ctrl-D leaves; Alt-Enter breaks the line.",
        ));
        self.view.put(lines);
    }
}
