//! Text from the wire that is safe to print. Public for the crates of this project, and not part of the API.

use std::fmt::{self, Write};

/// Displays text without the characters that a terminal acts on.
///
/// Control characters except line feed and tab, and the characters that change the direction of text, are written as
/// `\u{1b}`. Everything else is written as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Printable<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escape = |c: char| c.escape_unicode().to_string();
        write!(Escaping { out: f, is_escaped: is_unsafe, escape }, "{}", self.0)
    }
}

/// Displays text in one line, with characters that could control a terminal escaped.
///
/// A server cannot use such text to add lines to a log.
#[derive(Debug, Clone, Copy)]
pub struct OneLine<T>(pub T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Some programs end a line at the separators of Unicode too.
        let is_escaped = |c| matches!(c, '\n' | '\u{2028}' | '\u{2029}') || is_unsafe(c);
        write!(Escaping { out: f, is_escaped, escape: |c| c.escape_default().to_string() }, "{}", self.0)
    }
}

/// Makes the message of an error safe to print: it may quote what the server sent.
pub fn safe_error(error: serde_json::Error) -> serde_json::Error {
    let text = error.to_string();
    // The new error has the line and the column, which are at the end of the message.
    if text.contains(is_unsafe) { serde::de::Error::custom(Printable(text)) } else { error }
}

/// Displays JSON text with the same characters written as JSON escapes, so that it stays the same JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrintableJson<'a>(pub(crate) &'a str);

impl fmt::Display for PrintableJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_escaped = is_unsafe;
        Escaping { out: f, is_escaped, escape: |c| format!("\\u{:04x}", u32::from(c)) }.write_str(self.0)
    }
}

/// Whether a terminal may act on a character instead of showing it.
pub fn is_unsafe(c: char) -> bool {
    let bidirectional =
        matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    bidirectional || (c.is_control() && !matches!(c, '\n' | '\t'))
}

struct Escaping<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    is_escaped: fn(char) -> bool,
    escape: fn(char) -> String,
}

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(self.is_escaped) {
            let (safe, tail) = rest.split_at(at);
            self.out.write_str(safe)?;
            let mut chars = tail.chars();
            if let Some(c) = chars.next() {
                self.out.write_str(&(self.escape)(c))?;
            }
            rest = chars.as_str();
        }
        self.out.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_escaped_and_the_rest_is_kept() {
        let table = [
            ("plain é 💡 text", "plain é 💡 text"),
            ("two\nlines\tand a tab", "two\nlines\tand a tab"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("\r\u{0}\u{7f}", "\\u{d}\\u{0}\\u{7f}"),
            ("\u{9b}2J\u{85}", "\\u{9b}2J\\u{85}"),
            ("a\u{202e}b\u{2066}c\u{2069}\u{200f}", "a\\u{202e}b\\u{2066}c\\u{2069}\\u{200f}"),
            ("", ""),
        ];
        for (text, shown) in table {
            assert_eq!(Printable(text).to_string(), shown);
        }
        assert_eq!(OneLine("a\u{2028}b\u{2029}c").to_string(), "a\\u{2028}b\\u{2029}c");
        assert_eq!(OneLine("a\nb\u{1b}\tc\r").to_string(), "a\\nb\\u{1b}\tc\\r");
    }

    #[test]
    fn an_error_that_quotes_the_server_is_safe_to_print_and_says_where_it_is() {
        #[derive(Debug, serde::Deserialize)]
        enum Known {
            One,
        }
        let read = |text: &str| {
            serde_json::from_str::<Vec<Known>>(text).map(|_| Known::One).map_err(safe_error).unwrap_err()
        };
        let error = read("[\n\"\\u001b]0;owned\\u0007\"]");
        let shown = error.to_string();
        assert!(!shown.chars().any(is_unsafe) && shown.contains("owned"), "{shown:?}");
        assert_eq!((error.line(), error.column() > 0), (2, true), "{shown}");
        assert!(read("[").is_eof(), "an error that is safe stays what it is");
    }

    #[test]
    fn every_control_character_but_two_is_escaped() {
        for c in (0..=0x10_ffff).filter_map(char::from_u32) {
            let shown = Printable(c).to_string();
            let control = c.is_control() && c != '\n' && c != '\t';
            assert!(!control || shown.starts_with("\\u{"), "{shown:?}");
            assert!(shown.chars().all(|c| !is_unsafe(c)));
        }
    }

    #[test]
    fn json_stays_the_same_json() {
        let text = "{\"a\":\"\u{9b}2J \u{7f} \u{202e}é\"}";
        let shown = PrintableJson(text).to_string();
        assert_eq!(shown, "{\"a\":\"\\u009b2J \\u007f \\u202eé\"}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&shown), value(text));
    }
}
