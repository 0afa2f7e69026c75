//! Requests of the agent that wait for the user.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent};
use sandbox_agent_sdk::PermissionRequest;
use sandbox_agent_sdk::requests::QuestionRequest;

use super::card::Piece;
use super::editor::{Edited, Editor};
use super::form::{Filled, Form};
use super::line::{Line, Style};
use super::permission;

/// How long a request must be visible before a key can answer it. It prevents accidental answers.
const GLANCE: Duration = Duration::from_millis(400);

/// The requests of the agent, in order.
///
/// A request that arrives while the user is typing does not receive keys: a letter that was meant for the text, or
/// for the previous request, must not allow anything.
#[derive(Default)]
pub(super) struct Asks {
    waiting: VecDeque<Ask>,
    focused: bool,
    /// When the first request became visible.
    seen: Option<Instant>,
    editor: Editor,
}

enum Ask {
    Permission(PermissionRequest),
    Question(Form),
}

/// The effect of a key.
pub(super) enum Pressed {
    /// The key was not meant for a request.
    NotMine,
    /// The key was used, and there is nothing to show.
    Taken,
    /// The request was answered or is no longer open.
    Settled(Line),
}

impl Asks {
    pub(super) fn permission(&mut self, request: PermissionRequest, writing: bool) {
        self.add(Ask::Permission(request), writing);
    }

    pub(super) fn question(&mut self, request: QuestionRequest, writing: bool) {
        self.add(Ask::Question(Form::new(request)), writing);
    }

    fn add(&mut self, ask: Ask, writing: bool) {
        if self.waiting.is_empty() {
            self.focused = !writing;
            self.seen = Some(Instant::now());
        }
        self.waiting.push_back(ask);
    }

    /// Whether keys answer the first request.
    fn is_open(&self) -> bool {
        self.focused && self.seen.is_some_and(|seen| seen.elapsed() >= GLANCE)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Cancels all requests, because the turn has ended.
    pub(super) fn cancel(&mut self) {
        for ask in self.waiting.drain(..) {
            if let Ask::Permission(request) = ask {
                // The agent may have cancelled the request already.
                let _ = request.cancel();
            }
        }
        self.editor.clear();
    }

    /// Returns the card of the first request, in at most `height` rows of this width if its keys leave room.
    pub(super) fn card(&self, width: usize, height: usize) -> Vec<Line> {
        let Some(ask) = self.waiting.front() else { return Vec::new() };
        let (body, mut keys) = match ask {
            Ask::Permission(request) if self.is_open() => {
                (permission::body(request), permission::keys(request))
            }
            Ask::Permission(request) => (permission::body(request), Vec::new()),
            Ask::Question(form) => (Vec::new(), form.card(self.is_open())),
        };
        if !self.focused {
            keys.push(Line::new(Style::Warn, "  Tab: answer this (your text stays)"));
        }
        if self.waiting.len() > 1 {
            keys.push(Line::new(Style::Dim, &format!("  and {} more to answer", self.waiting.len() - 1)));
        }
        let keys: Vec<Line> = keys.iter().flat_map(|line| line.wrapped(width)).collect();
        let mut rows = cut(&body, width, height.saturating_sub(keys.len()));
        rows.extend(keys);
        rows
    }

    /// The line with the answer to a question and the column of its cursor, if a question is being answered.
    pub(super) fn input(&self, width: usize) -> Option<(Line, usize)> {
        match self.waiting.front() {
            Some(Ask::Question(_)) if self.is_open() => Some(self.editor.view("answer › ", width)),
            _ => None,
        }
    }

    pub(super) fn paste(&mut self, text: &str) -> bool {
        let mine = self.is_open() && matches!(self.waiting.front(), Some(Ask::Question(_)));
        if mine {
            self.editor.insert(text);
        }
        mine
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Pressed {
        let open = self.is_open();
        let Some(ask) = self.waiting.front_mut() else { return Pressed::NotMine };
        if !self.focused {
            self.focused = key.code == KeyCode::Tab;
            return if self.focused { Pressed::Taken } else { Pressed::NotMine };
        }
        if !open {
            // The user pressed the key before seeing this request.
            self.focused = !matches!(key.code, KeyCode::Char(_));
            return if self.focused { Pressed::Taken } else { Pressed::NotMine };
        }
        let settled = match (ask, key.code) {
            (Ask::Permission(request), KeyCode::Esc) => permission::refuse(request),
            (Ask::Permission(request), KeyCode::Char(letter)) => match permission::answer(request, letter) {
                Some(answered) => answered,
                None => return Pressed::Taken,
            },
            (Ask::Permission(_), _) => return Pressed::Taken,
            (Ask::Question(form), KeyCode::Esc) => form.decline(),
            (Ask::Question(form), _) => match self.editor.key(key) {
                Edited::Line(line) => match form.fill(&line) {
                    Filled::More => return Pressed::Taken,
                    Filled::Done(line) => Ok(line),
                    Filled::Stale(error) => Err(error),
                },
                Edited::Here | Edited::End => return Pressed::Taken,
            },
        };
        self.waiting.pop_front();
        self.editor.clear();
        self.seen = Some(Instant::now());
        Pressed::Settled(settled.unwrap_or_else(|error| Line::new(Style::Dim, &format!("– {error}"))))
    }
}

/// Wraps what a request is about. If it takes more than `height` rows, its last row says how much follows.
fn cut(body: &[Piece], width: usize, height: usize) -> Vec<Line> {
    let rows = body.iter().flat_map(|piece| {
        let rows = piece.line.wrapped(width).into_iter().enumerate();
        rows.map(|(index, row)| (row, piece.is_file && index == 0))
    });
    let mut rows: Vec<(Line, bool)> = rows.collect();
    if rows.len() > height {
        let hidden = rows.split_off(height.saturating_sub(1).max(1));
        let count =
            |number: usize, what: &str| format!("{number} more {what}{}", if number == 1 { "" } else { "s" });
        let mut more = format!("  … {}", count(hidden.len(), "line"));
        let files = hidden.iter().filter(|(_, is_file)| *is_file).count();
        if files > 0 {
            more += &format!(", {}", count(files, "file"));
        }
        rows.push((Line::new(Style::Warn, &more), false));
    }
    rows.into_iter().map(|(row, _)| row).collect()
}
