//! The terminal: settled lines that scroll away, and below them a few that are redrawn.

use std::io::{self, Write};
use std::sync::Once;

use crossterm::cursor::{Hide, MoveDown, MoveToColumn, MoveUp, RestorePosition, SavePosition, Show};
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{Command, execute};

use super::line::{Line, Paint};

/// A screen narrower than this is treated as if it were so wide.
const NARROWEST: usize = 10;

/// The code with which a program ends that panics.
const PANICKED: i32 = 101;

/// The terminal in raw mode. Dropping it gives the terminal back as it was, and so does a panic.
pub(super) struct Screen {
    paint: Paint,
    width: usize,
    height: usize,
    /// The widths of the rows that are drawn, and in which of them the cursor is.
    drawn: Option<(Vec<usize>, usize)>,
}

/// What is drawn below the settled lines.
#[derive(Debug, Default)]
pub(super) struct Picture {
    /// The rows, from top to bottom. The last one is the line the user writes.
    pub(super) rows: Vec<Line>,
    /// The column of the cursor in the last row.
    pub(super) column: usize,
}

impl Screen {
    /// Takes the terminal over.
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

    /// Takes note of the present size.
    pub(super) fn measure(&mut self) {
        if let Ok((width, height)) = size() {
            self.width = usize::from(width).max(NARROWEST);
            self.height = usize::from(height).max(2);
        }
    }

    /// Writes settled lines, and draws the picture below them.
    pub(super) fn draw(&mut self, settled: &[Line], picture: &Picture) -> io::Result<()> {
        let mut frame = String::new();
        self.erase(&mut frame);
        for line in settled {
            for row in line.wrapped(self.width) {
                frame.push_str(&row.painted(self.paint));
                frame.push_str("\r\n");
            }
        }
        // What does not fit is left out at the top, and the user's line stays.
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

    /// Removes the picture. A terminal that became narrower has broken its rows into several.
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
            // Clearing everything from the first row of the screen on would make some terminals keep it all above.
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
        // The terminal may be gone; the error has no reader.
        let _ = io::stdout().write_all(frame.as_bytes());
        restore();
    }
}

fn push(frame: &mut String, command: &impl Command) {
    // Writing into a string does not fail.
    let _ = command.write_ansi(frame);
}

/// Gives the terminal back.
fn restore() {
    let _ = execute!(io::stdout(), DisableBracketedPaste, Show);
    let _ = disable_raw_mode();
}

/// A panic must not leave the user with a terminal that does not echo. It ends the program on whatever thread it
/// happens, for nothing more can be drawn.
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
