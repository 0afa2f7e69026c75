//! Captures the stderr output of an agent in bounded memory.

use std::{collections::VecDeque, mem};

use crate::agent::StderrSummary;

/// How many lines a summary shows completely before it splits them into head and tail.
const WHOLE_LINES: u64 = 100;

/// How many lines head and tail hold each. Twice this is [`WHOLE_LINES`], so the two parts together contain all lines
/// until a line is dropped.
const PART_LINES: usize = 50;

/// How many of the last lines a summary quotes individually.
const QUOTED_LINES: usize = 16;

/// How many bytes of one line are stored.
///
/// A longer line is cut after the last complete character within this limit, followed by `… (N more bytes)`.
/// With the limit of one hundred lines, a capture needs less than a megabyte.
pub const MAX_STDERR_LINE_BYTES: usize = 8 * 1024;

/// The first and the last lines of a byte stream, in bounded memory.
///
/// Lines end in LF or CRLF; an unterminated last line counts. The summary replaces invalid UTF-8.
///
/// ```
/// let mut capture = mock_server::StderrCapture::default();
/// capture.push(b"one\ntw");
/// capture.push(b"o");
/// let summary = capture.summary();
/// assert_eq!((summary.head.as_deref(), summary.total_lines), (Some("one\ntwo"), 2));
/// ```
#[derive(Debug, Default)]
pub struct StderrCapture {
    /// The first lines, filled once and never changed.
    first: Vec<Line>,
    /// The lines after those; the oldest are dropped first.
    recent: VecDeque<Line>,
    /// The incomplete line.
    open: Line,
    /// The number of complete lines.
    ended: u64,
}

impl StderrCapture {
    /// Adds bytes of the stream. They may be split anywhere.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.open.extend(&bytes[..end]);
            self.end_line();
            bytes = &bytes[end + 1..];
        }
        self.open.extend(bytes);
    }

    /// Returns the number of lines, including an incomplete one.
    pub fn total_lines(&self) -> u64 {
        self.ended + u64::from(!self.open.is_empty())
    }

    /// Returns a summary of the lines so far.
    pub fn summary(&self) -> StderrSummary {
        let total_lines = self.total_lines();
        let last = self.last_lines(QUOTED_LINES);
        if total_lines == 0 {
            return StderrSummary::default();
        }
        let rest = self.recent.iter().chain(self.unfinished());
        if total_lines <= WHOLE_LINES {
            let head = Some(join(self.first.iter().chain(rest)));
            return StderrSummary { head, tail: None, truncated: false, total_lines, last };
        }
        let kept = self.recent.len() + self.unfinished().count();
        StderrSummary {
            head: Some(join(self.first.iter())),
            tail: Some(join(rest.skip(kept.saturating_sub(PART_LINES)))),
            truncated: true,
            total_lines,
            last,
        }
    }

    /// Returns the last lines, oldest first, at most `count` and at most fifty.
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        let lines: Vec<&Line> =
            self.first.iter().chain(self.recent.iter()).chain(self.unfinished()).collect();
        let count = count.min(PART_LINES).min(lines.len());
        lines[lines.len() - count..].iter().map(|line| line.text()).collect()
    }

    /// Returns the incomplete line, if it is not empty.
    fn unfinished(&self) -> impl Iterator<Item = &Line> {
        Some(&self.open).filter(|line| !line.is_empty()).into_iter()
    }

    /// Completes the current line and starts the next one, which reuses the buffer of a dropped line.
    fn end_line(&mut self) {
        self.ended += 1;
        self.open.drop_carriage_return();
        if self.first.len() < PART_LINES {
            self.first.push(mem::take(&mut self.open));
            return;
        }
        let mut next = if self.recent.len() < PART_LINES {
            Line::default()
        } else {
            self.recent.pop_front().unwrap_or_default()
        };
        next.clear();
        self.recent.push_back(mem::replace(&mut self.open, next));
    }
}

/// The beginning of one line, and how much of it was dropped.
#[derive(Debug, Default)]
struct Line {
    /// At most [`MAX_STDERR_LINE_BYTES`].
    kept: Vec<u8>,
    /// How many bytes were dropped.
    cut: u64,
    /// Whether the last byte was a carriage return, which belongs to the line ending if LF follows.
    ends_in_cr: bool,
}

impl Line {
    fn extend(&mut self, bytes: &[u8]) {
        let Some(&last) = bytes.last() else { return };
        self.ends_in_cr = last == b'\r';
        let room = MAX_STDERR_LINE_BYTES - self.kept.len();
        let kept = bytes.len().min(room);
        self.kept.extend_from_slice(&bytes[..kept]);
        self.cut += (bytes.len() - kept) as u64;
    }

    fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    fn clear(&mut self) {
        self.kept.clear();
        self.cut = 0;
        self.ends_in_cr = false;
    }

    fn drop_carriage_return(&mut self) {
        if !self.ends_in_cr {
            return;
        }
        if self.cut > 0 {
            self.cut -= 1;
        } else {
            self.kept.pop();
        }
    }

    fn text(&self) -> String {
        if self.cut == 0 {
            return String::from_utf8_lossy(&self.kept).into_owned();
        }
        let whole = without_partial_character(&self.kept);
        let cut = self.cut + (self.kept.len() - whole.len()) as u64;
        format!("{}… ({cut} more bytes)", String::from_utf8_lossy(whole))
    }
}

fn join<'a>(lines: impl Iterator<Item = &'a Line>) -> String {
    lines.map(Line::text).collect::<Vec<_>>().join("\n")
}

/// Removes the first bytes of a character whose other bytes were dropped.
fn without_partial_character(bytes: &[u8]) -> &[u8] {
    for back in 1..=bytes.len().min(3) {
        let start = bytes.len() - back;
        let begins_a_character = std::str::from_utf8(&bytes[start..])
            .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none());
        if begins_a_character {
            return &bytes[..start];
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(lines: std::ops::RangeInclusive<u64>) -> String {
        lines.map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n")
    }

    fn captured(bytes: &[u8]) -> StderrCapture {
        let mut capture = StderrCapture::default();
        capture.push(bytes);
        capture
    }

    fn kept_bytes(capture: &StderrCapture) -> usize {
        let lines = capture.first.iter().chain(&capture.recent).chain([&capture.open]);
        lines.map(|line| line.kept.capacity()).sum()
    }

    #[test]
    fn a_silent_process_has_an_empty_summary() {
        assert_eq!(StderrCapture::default().summary(), StderrSummary::default());
        assert_eq!(captured(b"").summary().head, None);
    }

    #[test]
    fn up_to_a_hundred_lines_are_all_in_the_head() {
        for total in [1, 2, 49, 50, 51, 99, 100] {
            let summary = captured((numbered(1..=total) + "\n").as_bytes()).summary();
            assert_eq!(summary.head, Some(numbered(1..=total)));
            assert_eq!(summary.tail, None);
            assert!(!summary.truncated);
            assert_eq!(summary.total_lines, total);
        }
    }

    #[test]
    fn beyond_a_hundred_lines_the_first_and_last_fifty_remain() {
        for total in [101, 149, 150, 151, 250, 10_000] {
            let summary = captured((numbered(1..=total) + "\n").as_bytes()).summary();
            assert_eq!(summary.head, Some(numbered(1..=50)));
            assert_eq!(summary.tail, Some(numbered(total - 49..=total)));
            assert!(summary.truncated);
            assert_eq!(summary.total_lines, total);
            assert_eq!(summary.last.join("\n"), numbered(total - 15..=total));
        }
    }

    #[test]
    fn a_last_line_without_newline_counts() {
        for total in [1, 50, 51, 100, 101, 151] {
            let text = numbered(1..=total);
            let with_end = captured((text.clone() + "\n").as_bytes()).summary();
            assert_eq!(captured(text.as_bytes()).summary(), with_end, "{total} lines");
        }
    }

    #[test]
    fn every_cut_of_the_stream_gives_the_same_summary() {
        let stream = "a\r\n\n\r\nü\r\rb\nlast".as_bytes();
        let whole = captured(stream).summary();
        assert_eq!(whole.head.as_deref().unwrap(), "a\n\n\nü\r\rb\nlast");
        assert_eq!(whole.total_lines, 5);
        for cut in 0..=stream.len() {
            let mut capture = captured(&stream[..cut]);
            capture.push(&stream[cut..]);
            assert_eq!(capture.summary(), whole, "cut at {cut}");
        }
        let mut bytewise = StderrCapture::default();
        stream.iter().for_each(|&byte| bytewise.push(&[byte]));
        assert_eq!(bytewise.summary(), whole);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced() {
        let summary = captured(b"ok\n\xff\xfebad\nend \xf0\x9f\n").summary();
        assert_eq!(summary.head.unwrap(), "ok\n\u{fffd}\u{fffd}bad\nend \u{fffd}");
        assert_eq!(summary.total_lines, 3);
    }

    #[test]
    fn long_lines_are_cut_at_the_cap_and_say_so() {
        const MIB: usize = 1024 * 1024;
        let mut capture = StderrCapture::default();
        for _ in 0..150 {
            capture.push(&vec![b'x'; MIB]);
            capture.push(b"\r\n");
        }
        let summary = capture.summary();
        let cut =
            format!("{}… ({} more bytes)", "x".repeat(MAX_STDERR_LINE_BYTES), MIB - MAX_STDERR_LINE_BYTES);
        assert_eq!(summary.total_lines, 150);
        assert_eq!(summary.head.unwrap().lines().collect::<Vec<_>>(), vec![cut.as_str(); 50]);
        assert_eq!(summary.tail.unwrap().lines().collect::<Vec<_>>(), vec![cut.as_str(); 50]);
        assert!(kept_bytes(&capture) <= 102 * 2 * MAX_STDERR_LINE_BYTES);
    }

    #[test]
    fn a_line_of_exactly_the_cap_is_whole() {
        let line = "y".repeat(MAX_STDERR_LINE_BYTES);
        assert_eq!(captured((line.clone() + "\r\n").as_bytes()).summary().head.unwrap(), line);
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        let line = "é".repeat(MAX_STDERR_LINE_BYTES);
        let summary = captured(format!("x{line}").as_bytes()).summary();
        let head = summary.head.unwrap();
        assert!(!head.contains('\u{fffd}'));
        let kept = MAX_STDERR_LINE_BYTES - 1;
        assert!(head.ends_with(&format!("é… ({} more bytes)", 1 + line.len() - kept)));
    }

    #[test]
    fn ten_million_lines_stay_in_bounded_memory() {
        const TOTAL: u64 = 10_000_000;
        let chunk = "0123456\n".repeat(10_000);
        let mut capture = StderrCapture::default();
        for _ in 0..TOTAL / 10_000 {
            capture.push(chunk.as_bytes());
        }
        let summary = capture.summary();
        assert_eq!(summary.total_lines, TOTAL);
        assert_eq!(summary.head, Some(["0123456"; 50].join("\n")));
        assert_eq!(summary.tail, summary.head);
        assert!(kept_bytes(&capture) < 16 * 1024);
    }

    #[test]
    fn an_endless_line_stays_in_bounded_memory() {
        let mut capture = StderrCapture::default();
        let chunk = vec![b'z'; 1024 * 1024];
        (0..256).for_each(|_| capture.push(&chunk));
        assert_eq!(capture.total_lines(), 1);
        assert!(kept_bytes(&capture) <= 2 * MAX_STDERR_LINE_BYTES);
        let cut = 256 * 1024 * 1024 - MAX_STDERR_LINE_BYTES;
        assert!(capture.summary().head.unwrap().ends_with(&format!("z… ({cut} more bytes)")));
    }

    #[test]
    fn the_last_lines_are_available_while_the_process_runs() {
        let capture = captured((numbered(1..=120) + "\nopen").as_bytes());
        assert_eq!(capture.last_lines(3), ["line 119", "line 120", "open"]);
        assert_eq!(capture.last_lines(1000).len(), 50);
        assert_eq!(captured(b"a\nb\n").last_lines(16), ["a", "b"]);
    }
}
