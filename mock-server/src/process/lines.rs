//! Splits a byte stream into lines of bounded length.

/// The size limit of a line of standard output.
///
/// It is far above the size of any reasonable message. Only the first 64 KiB of a longer line are forwarded.
/// They are not valid JSON, so the line is reported as unparsed instead of being lost.
pub const MAX_STDOUT_LINE_BYTES: usize = 64 * 1024 * 1024;

/// How many bytes of an overlong line are forwarded.
const SHORTENED_BYTES: usize = 64 * 1024;

/// Collects bytes until a line is complete.
///
/// Lines end in LF or CRLF. Blank lines are skipped, as in all servers of this protocol.
#[derive(Debug)]
pub(super) struct Lines {
    /// The incomplete line.
    open: Vec<u8>,
    /// Whether the incomplete line exceeds the limit; then only its beginning is kept.
    overlong: bool,
    /// The size limit of a complete line.
    limit: usize,
}

impl Lines {
    pub(super) fn new(limit: usize) -> Self {
        Self { open: Vec::new(), overlong: false, limit }
    }

    /// Adds bytes and passes every completed line to `sink`.
    pub(super) fn push(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Vec<u8>)) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.extend(&bytes[..end]);
            self.end_line(&mut sink);
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    /// Ends the stream. An unterminated last line counts as a line.
    pub(super) fn finish(&mut self, mut sink: impl FnMut(Vec<u8>)) {
        self.end_line(&mut sink);
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.overlong {
            return;
        }
        // One byte more than the limit, because a carriage return may belong to the line ending.
        if self.open.len() + bytes.len() > self.limit + 1 {
            self.overlong = true;
            let room = SHORTENED_BYTES.saturating_sub(self.open.len()).min(bytes.len());
            self.open.extend_from_slice(&bytes[..room]);
            self.open.truncate(SHORTENED_BYTES);
            self.open.shrink_to_fit();
            return;
        }
        self.open.extend_from_slice(bytes);
    }

    fn end_line(&mut self, sink: &mut impl FnMut(Vec<u8>)) {
        let mut line = std::mem::take(&mut self.open);
        if !std::mem::take(&mut self.overlong) && line.last() == Some(&b'\r') {
            line.pop();
        }
        if !line.iter().all(u8::is_ascii_whitespace) {
            sink(line);
        }
    }
}

/// Splits a line into text and the messages behind it. Some agents print text without a line ending before the next
/// message, and that message must not be lost. Any other line is one piece.
pub(super) fn pieces(line: &[u8]) -> Vec<&[u8]> {
    let blanks = line.len() - line.trim_ascii_start().len();
    let (mut rest, mut pieces) = (line, Vec::new());
    while let Some(start) = start_of_last_object(rest)
        && start > blanks
        && is_message(&rest[start..])
    {
        let (before, message) = rest.split_at(start);
        pieces.push(message);
        rest = before;
    }
    pieces.push(rest);
    pieces.reverse();
    pieces
}

/// Finds the beginning of the JSON object that a text ends with, if it ends with one.
///
/// Reads backwards and each byte once, so that the work for a hostile line is linear too. Only the result for a valid
/// object means anything.
fn start_of_last_object(text: &[u8]) -> Option<usize> {
    let text = text.trim_ascii_end();
    if text.last() != Some(&b'}') {
        return None;
    }
    let (mut depth, mut in_string) = (0_usize, false);
    let mut place = text.len();
    while let Some(before) = place.checked_sub(1) {
        place = before;
        match text[place] {
            b'"' => {
                // In a string, an odd number of backslashes escapes the quote.
                let backslashes = text[..place].iter().rev().take_while(|&&byte| byte == b'\\').count();
                in_string ^= backslashes % 2 == 0;
                place -= backslashes;
            }
            b'}' | b']' if !in_string => depth += 1,
            b'{' | b'[' if !in_string => {
                depth -= 1;
                if depth == 0 {
                    return Some(place);
                }
            }
            _ => {}
        }
    }
    None
}

fn is_message(text: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Message<'t> {
        #[serde(borrow)]
        jsonrpc: std::borrow::Cow<'t, str>,
    }
    serde_json::from_slice::<Message<'_>>(text).is_ok_and(|message| message.jsonrpc == "2.0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_pieces(expected: &[&str]) {
        let line = expected.concat();
        let pieces: Vec<_> = pieces(line.as_bytes()).into_iter().map(String::from_utf8_lossy).collect();
        assert_eq!(pieces, expected);
    }

    #[test]
    fn text_before_a_message_is_split_off() {
        let message = r#"{"id":1,"jsonrpc":"2.0","result":{"quoted":"\"}\\","list":[{}]}}"#;
        let braces = "{x} ".repeat(40);
        for text in [
            "Loaded cached credentials.",
            "warning: {x} and {\"a\":1} ",
            "日本 ",
            "{ debug: 1 }",
            "{\"a\":1}",
            "{{[\"\\",
            braces.as_str(),
        ] {
            assert_pieces(&[text, message]);
            assert_pieces(&[text, message, &format!("{message} \t")]);
        }
    }

    #[test]
    fn other_lines_stay_whole() {
        for line in [
            r#"{"jsonrpc":"2.0","method":"x"}"#,
            r#"  {"jsonrpc":"2.0"}"#,
            r#"  {"jsonrpc":"2.0"} trailing"#,
            "only text",
            r#"text {"jsonrpc":"2.0"} and more text"#,
            r#"text {"jsonrpc":"1.0"}"#,
            r#"text {"no":"message"}"#,
            "]}",
            "",
        ] {
            assert_pieces(&[line]);
        }
    }

    #[test]
    fn a_hostile_line_is_read_once() {
        let length = 4 * 1024 * 1024;
        for part in ["{", "}", "\\", "\"", "\"\\", "{}", "{\"", "\"}"] {
            let line = format!("{}}}", part.repeat(length / part.len()));
            assert_eq!(pieces(line.as_bytes()), [line.as_bytes()], "{part}");
        }
        let message = r#"{"jsonrpc":"2.0"}"#;
        let count = length / 2 / message.len();
        let line = " ".repeat(length / 2) + &message.repeat(count);
        let pieces = pieces(line.as_bytes());
        assert_eq!(pieces.len(), count);
        assert!(pieces.iter().all(|piece| piece.trim_ascii() == message.as_bytes()));
    }

    fn split(chunks: &[&[u8]], limit: usize) -> Vec<String> {
        let mut lines = Lines::new(limit);
        let mut seen = Vec::new();
        for chunk in chunks {
            lines.push(chunk, |line| seen.push(line));
        }
        lines.finish(|line| seen.push(line));
        seen.into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn every_cut_gives_the_same_lines() {
        let stream = b"{\"a\":1}\r\n\n  \t\r\n[2]\n\"x\r\"\nlast";
        let expected = ["{\"a\":1}", "[2]", "\"x\r\"", "last"];
        for cut in 0..=stream.len() {
            assert_eq!(split(&[&stream[..cut], &stream[cut..]], 1024), expected, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(split(&bytes, 1024), expected);
    }

    #[test]
    fn a_line_at_the_limit_is_whole_and_a_longer_one_is_shortened() {
        let limit = SHORTENED_BYTES * 2;
        let whole = "x".repeat(limit);
        assert_eq!(split(&[whole.as_bytes(), b"\r\nnext\n"], limit), [whole.as_str(), "next"]);
        let long = "y".repeat(limit * 3);
        let chunks: Vec<&[u8]> = long.as_bytes().chunks(1000).chain([b"\nnext".as_slice()]).collect();
        assert_eq!(split(&chunks, limit), ["y".repeat(SHORTENED_BYTES).as_str(), "next"]);
    }

    #[test]
    fn an_endless_line_stays_in_bounded_memory() {
        let mut lines = Lines::new(4 * SHORTENED_BYTES);
        for _ in 0..1000 {
            lines.push(&[b'z'; 10_000], |_| panic!("no line has ended"));
        }
        assert!(lines.open.capacity() <= 4 * SHORTENED_BYTES);
    }
}
