//! Lines with styles. Nothing else is written to the screen.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::plain::Plain;

/// The style of a piece of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Style {
    /// The default style of the terminal.
    #[default]
    Normal,
    /// For thoughts, hints and details.
    Dim,
    /// For titles.
    Bold,
    /// For text of the user.
    User,
    /// For names.
    Accent,
    /// For results that are done, added or allowed.
    Good,
    /// For results that are failed, removed or refused.
    Bad,
    /// For things that need attention.
    Warn,
}

/// Which styles are sent to the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paint {
    /// No escape sequences.
    Never,
    /// Bold and dim, but no colours, as `NO_COLOR` requires.
    Colourless,
    /// All styles.
    Full,
}

impl Style {
    fn code(self, paint: Paint) -> Option<&'static str> {
        let (full, colourless) = match self {
            Self::Normal => return None,
            Self::Dim => ("2", Some("2")),
            Self::Bold => ("1", Some("1")),
            Self::User => ("1;34", Some("1")),
            Self::Accent => ("36", None),
            Self::Good => ("32", None),
            Self::Bad => ("31", None),
            Self::Warn => ("33", None),
        };
        match paint {
            Paint::Never => None,
            Paint::Colourless => colourless,
            Paint::Full => Some(full),
        }
    }
}

/// One line of text without control characters, as pieces of one style each.
///
/// Text passes through [`Plain`] first, so nothing from an agent, a server or a file can reach the terminal as an
/// escape sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line {
    spans: Vec<(Style, String)>,
}

impl Line {
    pub(super) fn new(style: Style, text: &str) -> Self {
        Self::default().with(style, text)
    }

    pub(super) fn with(mut self, style: Style, text: &str) -> Self {
        let text = Plain::line(text);
        if !text.is_empty() {
            self.spans.push((style, text));
        }
        self
    }

    /// Splits a text into lines of one style.
    pub(super) fn all(style: Style, text: &str) -> Vec<Self> {
        Plain::of(text).trim_end_matches('\n').split('\n').map(|line| Self::new(style, line)).collect()
    }

    pub(super) fn width(&self) -> usize {
        self.spans.iter().map(|(_, text)| text.width()).sum()
    }

    pub(super) fn text(&self) -> String {
        self.spans.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// Returns the line with a prefix.
    pub(super) fn behind(self, style: Style, text: &str) -> Self {
        let mut line = Self::new(style, text);
        line.spans.extend(self.spans);
        line
    }

    /// Returns the beginning of the line, with a symbol if something was cut off.
    pub(super) fn clipped(&self, width: usize) -> Self {
        if self.width() <= width {
            return self.clone();
        }
        let mut rows = self.rows(width.saturating_sub(1), Break::Anywhere);
        if rows.is_empty() {
            return Self::default();
        }
        rows.swap_remove(0).with(Style::Dim, "…")
    }

    /// Splits the line into rows for a screen of this width.
    pub(super) fn wrapped(&self, width: usize) -> Vec<Self> {
        let mut rows = self.rows(width, Break::AtWords);
        if rows.len() > 1 {
            rows.pop_if(|last| last.spans.is_empty());
        }
        rows
    }

    /// Like [`wrapped`](Self::wrapped), for a line that will continue. The last row is the one that continues; it is
    /// empty if the row before it ends with a space.
    pub(super) fn wrapped_so_far(&self, width: usize) -> Vec<Self> {
        self.rows(width, Break::AtWords)
    }

    fn rows(&self, width: usize, breaks: Break) -> Vec<Self> {
        let mut rows = Rows { width: width.max(1), rows: Vec::new(), row: Vec::new(), used: 0, space: None };
        for (style, text) in &self.spans {
            for character in text.chars() {
                rows.push(*style, character, breaks);
            }
        }
        rows.end_row();
        rows.rows
    }

    /// Returns the text to write to a terminal.
    pub(super) fn painted(&self, paint: Paint) -> String {
        let mut out = String::new();
        for (style, text) in &self.spans {
            match style.code(paint) {
                Some(code) => out.push_str(&format!("\u{1b}[{code}m{text}\u{1b}[0m")),
                None => out.push_str(text),
            }
        }
        out
    }
}

/// Where a row may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Break {
    AtWords,
    Anywhere,
}

/// A line that is being split into rows.
struct Rows {
    width: usize,
    rows: Vec<Line>,
    row: Vec<(Style, char)>,
    used: usize,
    /// The position of the last space in the row.
    space: Option<usize>,
}

impl Rows {
    fn push(&mut self, style: Style, character: char, breaks: Break) {
        let width = character.width().unwrap_or(0);
        if self.used + width > self.width && !self.row.is_empty() {
            match self.space.filter(|_| breaks == Break::AtWords) {
                // The space at which the row breaks is not shown.
                _ if character == ' ' && breaks == Break::AtWords => {
                    self.end_row();
                    return;
                }
                Some(space) => {
                    let rest = self.row.split_off(space + 1);
                    self.row.pop();
                    self.end_row();
                    self.used = rest.iter().map(|(_, character)| character.width().unwrap_or(0)).sum();
                    self.row = rest;
                }
                None => self.end_row(),
            }
        }
        if character == ' ' && self.row.iter().any(|(_, character)| *character != ' ') {
            self.space = Some(self.row.len());
        }
        self.row.push((style, character));
        self.used += width;
    }

    fn end_row(&mut self) {
        let mut line = Line::default();
        for (style, character) in self.row.drain(..) {
            match line.spans.last_mut() {
                Some((last, text)) if *last == style => text.push(character),
                _ => line.spans.push((style, character.to_string())),
            }
        }
        self.rows.push(line);
        (self.used, self.space) = (0, None);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]
mod tests {
    use super::{Line, Paint, Style};

    fn wrapped(text: &str, width: usize) -> Vec<String> {
        Line::new(Style::Normal, text).wrapped(width).iter().map(Line::text).collect()
    }

    #[test]
    fn lines_break_at_words_and_inside_words_that_are_too_long() {
        for (text, width, rows) in [
            ("", 10, vec![""]),
            ("one two three", 7, vec!["one two", "three"]),
            ("one two three", 8, vec!["one two", "three"]),
            ("abcdefghij", 4, vec!["abcd", "efgh", "ij"]),
            ("a abcdefgh b", 4, vec!["a", "abcd", "efgh", "b"]),
            ("日本語日本語", 5, vec!["日本", "語日", "本語"]),
            ("    indented text", 12, vec!["    indented", "text"]),
            ("x", 0, vec!["x"]),
            ("abcd ", 4, vec!["abcd"]),
        ] {
            assert_eq!(wrapped(text, width), rows, "{text:?} at {width}");
        }
    }

    #[test]
    fn no_row_is_wider_than_the_screen() {
        let text = "many words of 日本語 and e\u{301}e\u{301} 👩 mixed ".repeat(20);
        for width in 2..60 {
            for row in Line::new(Style::Dim, &text).wrapped(width) {
                assert!(row.width() <= width, "{} at {width}", row.text());
            }
            assert!(Line::new(Style::Dim, &text).clipped(width).width() <= width);
        }
    }

    #[test]
    fn nothing_gets_into_a_line_as_an_escape_sequence() {
        let line = Line::new(Style::Bad, "a\u{1b}[2Jb\nc\u{7}");
        assert_eq!(line.painted(Paint::Never), "ab c");
        assert_eq!(line.painted(Paint::Colourless), "ab c");
        assert_eq!(line.painted(Paint::Full), "\u{1b}[31mab c\u{1b}[0m");
    }

    #[test]
    fn styles_survive_the_end_of_a_row() {
        let line = Line::new(Style::Dim, "one two").with(Style::Bold, " three");
        let rows = line.wrapped(6);
        assert_eq!(rows[0], Line::new(Style::Dim, "one"));
        assert_eq!(rows[1], Line::new(Style::Dim, "two"));
        assert_eq!(rows[2], Line::new(Style::Bold, "three"));
    }
}
