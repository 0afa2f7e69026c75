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

/// How many positions of a line are tried as the beginning of a message.
const TRIED_PLACES: usize = 16;

/// Splits a line that consists of text followed by a message. Some agents print text without a line ending
/// before the next message, and that message must not be lost.
///
/// Returns the text and the message; `None` for any other line.
pub(super) fn text_before_message(line: &[u8]) -> Option<(&[u8], &[u8])> {
    if line.trim_ascii_start().first().is_none_or(|&first| first == b'{') {
        return None;
    }
    let places = line.iter().enumerate().filter(|(_, byte)| **byte == b'{').map(|(place, _)| place);
    let place = places.take(TRIED_PLACES).find(|&place| is_message(&line[place..]))?;
    Some(line.split_at(place))
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

    #[test]
    fn text_before_a_message_is_split_off() {
        let message = r#"{"id":1,"jsonrpc":"2.0","result":{}}"#;
        for text in ["Loaded cached credentials.", "warning: {x} and {\"a\":1} ", "日本 "] {
            let line = format!("{text}{message}");
            assert_eq!(
                text_before_message(line.as_bytes()),
                Some((text.as_bytes(), message.as_bytes())),
                "{line}"
            );
        }
    }

    #[test]
    fn other_lines_stay_whole() {
        for line in [
            r#"{"jsonrpc":"2.0","method":"x"}"#,
            r#"  {"jsonrpc":"2.0"} trailing"#,
            "only text",
            r#"text {"jsonrpc":"2.0"} and more text"#,
            r#"text {"jsonrpc":"1.0"}"#,
            r#"text {"no":"message"}"#,
            "",
        ] {
            assert_eq!(text_before_message(line.as_bytes()), None, "{line}");
        }
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
