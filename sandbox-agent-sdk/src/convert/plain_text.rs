//! Makes lines of an agent's output safe to show.

use crate::convert::text::is_unsafe;

/// The maximum length of a shown line.
const LINE_CHARS: usize = 400;

/// Removes terminal escapes and control characters from a line, and truncates it.
///
/// The output of an agent may end up in a user's terminal, where an escape sequence can do more than set
/// colours.
pub(crate) fn plain_line(text: &str) -> String {
    let mut plain = String::new();
    let mut length = 0;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let shown = match character {
            '\u{1b}' => {
                skip_escape(&mut characters);
                continue;
            }
            '\u{9b}' => {
                skip_control_sequence(&mut characters);
                continue;
            }
            '\t' | '\n' => ' ',
            other if is_unsafe(other) => continue,
            other => other,
        };
        if length == LINE_CHARS {
            plain.push('…');
            break;
        }
        plain.push(shown);
        length += 1;
    }
    plain
}

type Characters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Skips the rest of an escape: a control sequence, an operating system command, or one character.
fn skip_escape(characters: &mut Characters<'_>) {
    match characters.next() {
        Some('[') => skip_control_sequence(characters),
        Some(']' | 'P' | 'X' | '^' | '_') => {
            // These end at a bell or at a string terminator, `ESC \`.
            while let Some(character) = characters.next() {
                if character == '\u{7}' || (character == '\u{1b}' && characters.next_if_eq(&'\\').is_some()) {
                    break;
                }
            }
        }
        _ => {}
    }
}

/// Skips the parameters and the final letter.
fn skip_control_sequence(characters: &mut Characters<'_>) {
    while let Some(character) = characters.next_if(|character| (' '..='~').contains(character)) {
        if ('@'..='~').contains(&character) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::{LINE_CHARS, plain_line};

    #[test]
    fn escapes_and_control_characters_are_removed_and_text_stays() {
        for (text, plain) in [
            ("plain", "plain"),
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]8;;http://x\u{1b}\\link", "link"),
            ("\u{1b}[2J\u{1b}[1;1Hgone", "gone"),
            ("\u{9b}31mred", "red"),
            ("tab\tbell\u{7}end\r", "tab bellend"),
            ("two\nlines", "two lines"),
            ("un\u{202e}dne", "undne"),
            ("cut \u{1b}[31", "cut "),
            ("ünï 日本 ❌", "ünï 日本 ❌"),
        ] {
            assert_eq!(plain_line(text), plain);
        }
    }

    #[test]
    fn a_long_line_is_cut_with_a_sign() {
        let cut = plain_line(&"é".repeat(LINE_CHARS + 1));
        assert_eq!(cut.chars().count(), LINE_CHARS + 1);
        assert!(cut.ends_with('…'));
        assert!(!plain_line(&"é".repeat(LINE_CHARS)).ends_with('…'));
    }

    proptest! {
        #[test]
        fn no_text_leaves_a_control_character(text in any::<String>()) {
            prop_assert!(!plain_line(&text).chars().any(char::is_control));
        }
    }
}
