//! Makes text from agents and servers safe to print.

use std::fmt;

pub(crate) use acp_http_client::{OneLine, is_unsafe, safe_error};

/// Text that is safe to print to a terminal or a log. Created by [`printable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Printable<'a>(&'a str);

/// Makes text from an agent or a server safe to print.
///
/// A terminal executes control sequences in the text that it prints: they can set the title, write the
/// clipboard, clear the screen or insert input. `Display` of the result therefore writes every control
/// character (C0, DEL and C1) as its Rust escape, such as `\u{1b}`. Newline and tab are unchanged, and `\r\n`
/// becomes a newline. Characters that change the writing direction (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066
/// to U+2069) can disguise text, so they are escaped as well. No other character changes, and nothing is removed.
///
/// Every `Display` in this crate that shows text of an agent or a server uses it. The original text is in the
/// fields and accessors of those types, such as [`Update::message_text`](crate::Update::message_text) or
/// [`RpcError::message`](crate::error::RpcError::message).
///
/// ```
/// use sandbox_agent_sdk::text::printable;
///
/// let hostile = "done\u{1b}]52;c;cm0gLXJmIH4=\u{7}\n";
/// assert_eq!(printable(hostile).to_string(), "done\\u{1b}]52;c;cm0gLXJmIH4=\\u{7}\n");
/// ```
#[must_use]
pub fn printable(text: &str) -> Printable<'_> {
    Printable(text)
}

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some((at, found)) = rest.char_indices().find(|(_, character)| is_unsafe(*character)) {
            f.write_str(&rest[..at])?;
            rest = &rest[at + found.len_utf8()..];
            if found == '\r' && rest.starts_with('\n') {
                continue;
            }
            write!(f, "{}", found.escape_default())?;
        }
        f.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::{is_unsafe, printable};

    #[test]
    fn attacks_on_a_terminal_become_text() {
        for (attack, shown) in [
            ("\u{1b}]0;owned\u{7}", r"\u{1b}]0;owned\u{7}"),
            ("\u{1b}]52;c;cm0=\u{1b}\\", r"\u{1b}]52;c;cm0=\u{1b}\"),
            ("\u{1b}[2J\u{1b}[H", r"\u{1b}[2J\u{1b}[H"),
            ("\u{9b}2J", r"\u{9b}2J"),
            ("\u{9d}0;owned\u{9c}", r"\u{9d}0;owned\u{9c}"),
            ("rm -rf\rls    ", r"rm -rf\rls    "),
            ("a\u{8}\u{7f}b", r"a\u{8}\u{7f}b"),
            ("\u{202e}txt.exe", r"\u{202e}txt.exe"),
            ("\u{200e}\u{200f}\u{61c}", r"\u{200e}\u{200f}\u{61c}"),
            ("\u{0}", r"\u{0}"),
        ] {
            assert_eq!(printable(attack).to_string(), shown);
        }
    }

    #[test]
    fn ordinary_text_stays_as_it_is() {
        for text in ["", "plain", "two\nlines\tand a tab", "ünï 日本 ❌ עברית \\u{1b}"] {
            assert_eq!(printable(text).to_string(), text);
        }
        assert_eq!(printable("one\r\ntwo\r\n").to_string(), "one\ntwo\n");
    }

    proptest! {
        #[test]
        fn no_text_is_printed_with_a_character_that_a_terminal_obeys(text in any::<String>()) {
            prop_assert!(!printable(&text).to_string().chars().any(is_unsafe));
        }

        #[test]
        fn pieces_are_printed_like_the_whole(one in "[^\r\n]*", two in any::<String>()) {
            let whole = printable(&format!("{one}{two}")).to_string();
            prop_assert_eq!(format!("{}{}", printable(&one), printable(&two)), whole);
        }
    }
}
