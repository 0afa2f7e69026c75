//! Draws the screen.

use std::io;

use super::Console;
use crate::chat::line::{Line, Style};
use crate::chat::screen::Picture;

/// How many seconds must pass without an update before the spinner shows the time since the last one.
const LONG: u64 = 2;
/// How many rows of the screen a request of the agent leaves to everything else: the status line, a queued line, the
/// user's line, and the row that scrolls.
const OTHER_ROWS: usize = 4;

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

impl Console {
    pub(super) fn draw(&mut self) -> io::Result<()> {
        let width = self.screen.width();
        let spinner = SPINNER[self.ticks % SPINNER.len()];
        let mut rows = self.view.moving(spinner);
        rows.extend(self.asks.card(width - 1, self.screen.height().saturating_sub(OTHER_ROWS)));
        rows.extend(self.status(spinner));
        rows.extend(self.queue.iter().map(|line| Line::new(Style::Dim, &format!("  then: {line}"))));
        let (line, column) = self.asks.input(width).unwrap_or_else(|| self.editor.view("› ", width));
        rows.push(line);
        self.screen.draw(&self.view.settled(), &Picture { rows, column })
    }

    /// The status line.
    fn status(&self, spinner: &str) -> Option<Line> {
        if self.armed && !self.is_busy() {
            return Some(Line::new(Style::Warn, "Ctrl-C again leaves"));
        }
        if let Some(notice) = &self.notice {
            return Some(notice.clone());
        }
        if !self.asks.is_empty() && self.cancelling.is_none() {
            return None;
        }
        let what = match (&self.task, &self.turn, &self.cancelling) {
            (_, Some(_), Some(_)) => "cancelling",
            (_, Some(_), None) => "working",
            (Some(task), None, _) => &task.what,
            (None, None, _) => return None,
        };
        let seconds = self.last_update.elapsed().as_secs();
        let time = if seconds >= LONG { format!(" {seconds}s") } else { String::new() };
        let hint = if self.armed { "Ctrl-C again leaves" } else { "Ctrl-C cancels" };
        let line = Line::new(Style::Accent, spinner).with(Style::Normal, &format!(" {what}{time}"));
        Some(line.with(Style::Dim, &format!("  {hint}")))
    }
}
