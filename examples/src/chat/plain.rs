//! Text from an agent, made safe for a terminal.

/// The maximum length of a string inside an escape sequence. A longer one is treated as text after a broken sequence.
const LONGEST_STRING: usize = 4096;

/// Removes escape sequences and control characters from text that arrives in chunks.
///
/// Text of an agent is printed to the user's terminal, where an escape sequence can do more than change colours: set
/// the title, write the clipboard, hide text, or generate input as if the user had typed it. The only control character
/// that remains is the line feed; a tab becomes spaces. A sequence may be split across chunks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plain {
    state: State,
    after_return: bool,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Text,
    /// After the escape character.
    Escape,
    /// After the escape character and a character that announces another one.
    Intermediate,
    /// In the parameters of a control sequence.
    Control,
    /// In a string that ends with a bell or a string terminator, after this many characters.
    String(usize),
    /// After an escape character in such a string.
    StringEscape,
}

impl Plain {
    /// Appends the plain part of `text` to `out`.
    pub(super) fn push(&mut self, text: &str, out: &mut String) {
        for character in text.chars() {
            self.take(character, out);
        }
    }

    /// Returns the plain part of a complete text.
    pub(super) fn of(text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        Self::default().push(text, &mut out);
        out
    }

    /// Returns the plain part of a text as a single line.
    pub(crate) fn line(text: &str) -> String {
        Self::of(text).replace('\n', " ")
    }

    fn take(&mut self, character: char, out: &mut String) {
        self.state = match (self.state, character) {
            // A sequence ends at the end of a line at the latest, so a broken one hides at most one line.
            (State::Text, _) | (_, '\n' | '\r') => self.text(character, out),
            (State::String(_), '\u{7}' | '\u{9c}') => State::Text,
            (State::String(_), '\u{1b}') => State::StringEscape,
            (State::String(length), _) if length < LONGEST_STRING => State::String(length + 1),
            (State::StringEscape, '\\') => State::Text,
            (State::StringEscape | State::Escape, _) => escape(character),
            (State::Control, ' '..='?') => State::Control,
            (State::Control | State::Intermediate, ' '..='~') => State::Text,
            (State::Control | State::Intermediate | State::String(_), _) => self.text(character, out),
        };
    }

    fn text(&mut self, character: char, out: &mut String) -> State {
        let after_return = std::mem::take(&mut self.after_return);
        match character {
            '\n' if after_return => {}
            '\n' => out.push('\n'),
            '\r' => {
                out.push('\n');
                self.after_return = true;
            }
            '\t' => out.push_str("    "),
            '\u{1b}' => return State::Escape,
            '\u{9b}' => return State::Control,
            '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}' => return State::String(0),
            // Some terminals break lines at these separators, and others do not show them.
            '\u{2028}' | '\u{2029}' => out.push(' '),
            control if control.is_control() => {}
            // Overrides of the writing direction can disguise text.
            '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            // Tag characters are invisible.
            '\u{e0000}'..='\u{e007f}' => {}
            shown => out.push(shown),
        }
        State::Text
    }
}

fn escape(character: char) -> State {
    match character {
        '[' => State::Control,
        ']' | 'P' | 'X' | '^' | '_' => State::String(0),
        ' '..='/' => State::Intermediate,
        '\u{1b}' => State::Escape,
        _ => State::Text,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]
mod tests {
    use super::Plain;

    const CASES: [(&str, &str); 16] = [
        ("plain", "plain"),
        ("\u{1b}[31mred\u{1b}[0m", "red"),
        ("\u{1b}]0;title\u{7}after", "after"),
        ("\u{1b}]52;c;aGk=\u{1b}\\after", "after"),
        ("\u{1b}]8;;http://x\u{9c}link", "link"),
        ("\u{1b}[2J\u{1b}[1;1Hgone", "gone"),
        ("\u{9b}31mred", "red"),
        ("\u{90}q payload\u{9c}after", "after"),
        ("\u{1b}(0after", "after"),
        ("\u{1b}cafter\u{1b}7", "after"),
        ("tab\tbell\u{7}\u{8}end", "tab    bellend"),
        ("one\r\ntwo\rthree\nfour", "one\ntwo\nthree\nfour"),
        ("un\u{202e}dne\u{2028}x", "undne x"),
        ("hidden \u{1b}]0;never ended\nbut here", "hidden \nbut here"),
        ("ünï 日本 👨\u{200d}👩\u{200d}👧 ❌", "ünï 日本 👨\u{200d}👩\u{200d}👧 ❌"),
        ("\u{1b}\u{1b}[1mtwice", "twice"),
    ];

    #[test]
    fn escapes_and_control_characters_are_removed_and_text_stays() {
        for (text, plain) in CASES {
            assert_eq!(Plain::of(text), plain, "{text:?}");
        }
    }

    #[test]
    fn every_cut_gives_the_same() {
        for (text, plain) in CASES {
            for cut in (0..text.len()).filter(|cut| text.is_char_boundary(*cut)) {
                let (mut filter, mut out) = (Plain::default(), String::new());
                filter.push(&text[..cut], &mut out);
                filter.push(&text[cut..], &mut out);
                assert_eq!(out, plain, "{text:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn no_two_characters_make_a_control_character_come_through() {
        let all: Vec<char> = (0..0x300).filter_map(char::from_u32).collect();
        for first in &all {
            for second in &all {
                let out = Plain::of(&format!("\u{1b}{first}{second}a{first}{second}"));
                assert!(!out.chars().any(|c| c.is_control() && c != '\n'), "{first:?} {second:?}");
            }
        }
    }

    #[test]
    fn an_endless_string_hides_no_more_than_its_limit() {
        let text = format!("\u{1b}]0;{}end", "x".repeat(10_000));
        assert!(Plain::of(&text).ends_with("xend"));
    }
}
