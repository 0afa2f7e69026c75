//! Ranges of lines in a text.

use std::ops::Range;

use memchr::memchr;

/// A range of lines in a text: the first line and the number of lines.
///
/// A line ends with a line feed; a carriage return before it belongs to the line. Text after the last line feed
/// is one more line.
///
/// | range | selected text |
/// |---|---|
/// | neither `line` nor `limit` | the whole text |
/// | `line` 1 | the text from the first line on |
/// | `line` 0 | the same: some agents count from 0 |
/// | `line` past the end | the empty text |
/// | `limit` 0 | the empty text |
/// | `limit` past the end | the text up to its end |
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LineRange {
    /// The number of the first line, from 1.
    pub line: Option<u64>,
    /// The maximum number of lines.
    pub limit: Option<u64>,
}

impl LineRange {
    /// Creates a range.
    #[must_use]
    pub fn new(line: Option<u64>, limit: Option<u64>) -> Self {
        Self { line, limit }
    }

    /// Returns these lines of a text.
    #[must_use]
    pub fn of<'a>(&self, text: &'a str) -> &'a str {
        let range = Window::new(*self).feed(text.as_bytes());
        // Both ends follow a line feed or are an end of the text, so they are character boundaries.
        text.get(range).unwrap_or_default()
    }

    /// Returns whether this is the whole text.
    #[cfg_attr(not(feature = "files"), allow(dead_code))]
    pub(crate) fn is_whole(&self) -> bool {
        self.line.unwrap_or(1) <= 1 && self.limit.is_none()
    }
}

/// Finds the lines in a text that arrives in chunks.
#[derive(Debug)]
pub(crate) struct Window {
    /// How many lines remain to be skipped.
    skip: u64,
    /// How many lines remain to be selected; `None` for all.
    left: Option<u64>,
}

impl Window {
    pub(crate) fn new(range: LineRange) -> Self {
        Self { skip: range.line.unwrap_or(1).saturating_sub(1), left: range.limit }
    }

    /// Returns the part of the next chunk that belongs to the lines.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Range<usize> {
        let mut start = 0;
        while self.skip > 0 {
            let Some(at) = memchr(b'\n', &piece[start..]) else { return piece.len()..piece.len() };
            start += at + 1;
            self.skip -= 1;
        }
        let Some(left) = &mut self.left else { return start..piece.len() };
        let mut end = start;
        while *left > 0 {
            let Some(at) = memchr(b'\n', &piece[end..]) else { return start..piece.len() };
            end += at + 1;
            *left -= 1;
        }
        start..end
    }

    /// Returns whether all lines were found.
    #[cfg_attr(not(feature = "files"), allow(dead_code))]
    pub(crate) fn is_done(&self) -> bool {
        self.left == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{LineRange, Window};

    /// A simple reference implementation.
    fn naive(text: &str, range: LineRange) -> String {
        let lines = text.split_inclusive('\n').skip(range.line.unwrap_or(1).max(1) as usize - 1);
        lines.take(range.limit.map_or(usize::MAX, |limit| limit as usize)).collect()
    }

    #[test]
    fn edge_cases_are_defined() {
        let text = "one\r\ntwo\n\nfour";
        let table = [
            (None, None, text),
            (Some(1), None, text),
            (Some(0), None, text),
            (Some(2), None, "two\n\nfour"),
            (Some(2), Some(1), "two\n"),
            (Some(1), Some(1), "one\r\n"),
            (None, Some(2), "one\r\ntwo\n"),
            (Some(3), Some(1), "\n"),
            (Some(4), Some(9), "four"),
            (Some(5), None, ""),
            (Some(5), Some(5), ""),
            (Some(u64::MAX), Some(u64::MAX), ""),
            (None, Some(0), ""),
            (Some(0), Some(0), ""),
            (Some(0), Some(1), "one\r\n"),
        ];
        for (line, limit, expected) in table {
            assert_eq!(LineRange::new(line, limit).of(text), expected, "{line:?} {limit:?}");
        }
        assert_eq!(LineRange::new(Some(2), None).of("one\n"), "", "a line feed ends a line and begins none");
        assert_eq!(LineRange::new(Some(1), Some(3)).of(""), "");
        assert_eq!(LineRange::new(Some(1), Some(1)).of("a\rb\n"), "a\rb\n", "a lone return ends no line");
    }

    proptest! {
        #[test]
        fn lines_equal_those_of_the_reference_implementation(
            text in "([a-zé\u{1F980}\u{2028}]|\r|\n|\r\n){0,40}",
            line in proptest::option::of(0u64..12),
            limit in proptest::option::of(0u64..12),
        ) {
            let range = LineRange::new(line, limit);
            prop_assert_eq!(range.of(&text), naive(&text, range));
        }

        #[test]
        fn chunk_boundaries_make_no_difference(
            text in "([a-c]|\r|\n|é){0,40}",
            line in proptest::option::of(0u64..12),
            limit in proptest::option::of(0u64..12),
            size in 1usize..9,
        ) {
            let range = LineRange::new(line, limit);
            let mut window = Window::new(range);
            let mut taken = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                taken.extend_from_slice(&piece[window.feed(piece)]);
            }
            prop_assert_eq!(String::from_utf8(taken).unwrap(), naive(&text, range));
        }
    }
}
