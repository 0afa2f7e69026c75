//! The terminal: finished lines that scroll away, and some lines below them that are redrawn.

use std::io::{self, Write};
use std::sync::Once;

use crossterm::cursor::{Hide, MoveDown, MoveToColumn, MoveUp, RestorePosition, SavePosition, Show};
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{Command, execute};

use super::line::{Line, Paint};

/// The minimum width. Narrower screens are treated as if they had this width.
const NARROWEST: usize = 10;

/// The exit code after a panic.
const PANICKED: i32 = 101;

/// The terminal in raw mode. Dropping it restores the terminal, and so does a panic.
pub(super) struct Screen {
    paint: Paint,
    width: usize,
    height: usize,
    /// The widths of the drawn rows, and the row of the cursor.
    drawn: Option<(Vec<usize>, usize)>,
}

/// The rows below the finished lines.
#[derive(Debug, Default)]
pub(super) struct Picture {
    /// The rows, from top to bottom. The last row is the input line.
    pub(super) rows: Vec<Line>,
    /// The column of the cursor in the last row.
    pub(super) column: usize,
}

impl Screen {
    /// Switches the terminal to raw mode.
    pub(super) fn open(paint: Paint) -> io::Result<Self> {
        restore_on_panic();
        enable_raw_mode()?;
        let mut screen = Self { paint, width: 80, height: 24, drawn: None };
        execute!(io::stdout(), EnableBracketedPaste)?;
        screen.measure();
        Ok(screen)
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn height(&self) -> usize {
        self.height
    }

    /// Reads the current size of the terminal.
    pub(super) fn measure(&mut self) {
        if let Ok((width, height)) = size() {
            self.width = usize::from(width).max(NARROWEST);
            self.height = usize::from(height).max(2);
        }
    }

    /// Writes finished lines and draws the picture below them.
    pub(super) fn draw(&mut self, settled: &[Line], picture: &Picture) -> io::Result<()> {
        let mut frame = String::new();
        self.erase(&mut frame);
        for line in settled {
            for row in line.wrapped(self.width) {
                frame.push_str(&row.painted(self.paint));
                frame.push_str("\r\n");
            }
        }
        // If there are too many rows, the first ones are omitted. The input line stays visible.
        let skipped = picture.rows.len().saturating_sub(self.height - 1);
        let rows: Vec<Line> =
            picture.rows.iter().skip(skipped).map(|row| row.clipped(self.width - 1)).collect();
        let painted: Vec<String> = rows.iter().map(|row| row.painted(self.paint)).collect();
        frame.push_str(&painted.join("\r\n"));
        push(&mut frame, &MoveToColumn(u16::try_from(picture.column.min(self.width - 1)).unwrap_or(0)));
        push(&mut frame, &Show);
        push(&mut frame, &EndSynchronizedUpdate);
        self.drawn = Some((rows.iter().map(Line::width).collect(), rows.len().saturating_sub(1)));
        let mut out = io::stdout().lock();
        out.write_all(frame.as_bytes())?;
        out.flush()
    }

    /// Removes the picture. A terminal that became narrower has wrapped its rows.
    fn erase(&mut self, frame: &mut String) {
        push(frame, &BeginSynchronizedUpdate);
        push(frame, &Hide);
        if let Some((widths, cursor)) = self.drawn.take() {
            let above: usize = widths[..cursor].iter().map(|width| width.div_ceil(self.width).max(1)).sum();
            let above = above.min(self.height);
            if above > 0 {
                push(frame, &MoveUp(u16::try_from(above).unwrap_or(u16::MAX)));
            }
            push(frame, &MoveToColumn(0));
            push(frame, &Clear(ClearType::CurrentLine));
            // Clearing from the first row of the screen would make some terminals move everything to the scrollback.
            push(frame, &SavePosition);
            push(frame, &MoveDown(1));
            push(frame, &Clear(ClearType::FromCursorDown));
            push(frame, &RestorePosition);
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut frame = String::new();
        self.erase(&mut frame);
        push(&mut frame, &EndSynchronizedUpdate);
        // The terminal may be closed, so the error is ignored.
        let _ = io::stdout().write_all(frame.as_bytes());
        restore();
    }
}

fn push(frame: &mut String, command: &impl Command) {
    // Writing to a string does not fail.
    let _ = command.write_ansi(frame);
}

/// Restores the terminal.
fn restore() {
    let _ = execute!(io::stdout(), DisableBracketedPaste, Show);
    let _ = disable_raw_mode();
}

/// Restores the terminal after a panic on any thread and ends the program, because nothing more can be drawn.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
            std::process::exit(PANICKED);
        }));
    });
}
