//! The event stream of a process's log entries.

use bytes::{Buf, BytesMut};
use futures::StreamExt;

use super::info::LogEntry;
use crate::Error;
use crate::control::FileReader;
use crate::convert::text::safe_error;

/// The stream of log entries.
#[derive(Debug)]
pub(super) struct LogEvents {
    body: FileReader,
    lines: LineBuffer,
    /// The `data` lines of the current event.
    data: Vec<u8>,
    /// The size of all complete lines of the current event.
    size: usize,
    /// The largest event.
    limit: usize,
}

impl LogEvents {
    pub(super) fn new(body: FileReader, limit: usize) -> Self {
        Self { body, lines: LineBuffer::default(), data: Vec::new(), size: 0, limit }
    }

    /// Returns the next entry, or `None` at the end of the stream.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub(super) async fn next(&mut self) -> Option<Result<LogEntry, Error>> {
        loop {
            while let Some(line) = self.lines.next() {
                self.size = if line.is_empty() { 0 } else { self.size + line.len() };
                if let Err(error) = self.check(self.size) {
                    return Some(Err(error));
                }
                if let Some(entry) = self.line(&line) {
                    return Some(entry);
                }
            }
            // The last byte may be the first of a line ending, which does not count.
            if let Err(error) = self.check(self.size + self.lines.len().saturating_sub(1)) {
                return Some(Err(error));
            }
            match self.body.next().await? {
                Ok(piece) => self.lines.push(&piece),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn check(&self, seen: usize) -> Result<(), Error> {
        let limit = self.limit;
        if seen > limit { Err(Error::MessageTooLarge { limit, seen, event_id: None }) } else { Ok(()) }
    }

    fn line(&mut self, line: &[u8]) -> Option<Result<LogEntry, Error>> {
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            return (!data.is_empty()).then(|| entry(&data));
        }
        let value = line.strip_prefix(b"data:")?;
        if !self.data.is_empty() {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        None
    }
}

fn entry(data: &[u8]) -> Result<LogEntry, Error> {
    acp_http_client::json::from_slice(data).map_err(|source| Error::Decode {
        what: "follow process logs".to_owned(),
        raw: String::from_utf8_lossy(data).into_owned(),
        source: std::sync::Arc::new(safe_error(source)),
    })
}

/// Splits bytes into lines that end with LF or CRLF.
#[derive(Debug, Default)]
struct LineBuffer {
    bytes: BytesMut,
    /// How many bytes were already searched for a line ending.
    searched: usize,
}

impl LineBuffer {
    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn next(&mut self) -> Option<BytesMut> {
        let Some(end) = memchr::memchr(b'\n', &self.bytes[self.searched..]) else {
            self.searched = self.bytes.len();
            return None;
        };
        let mut line = self.bytes.split_to(self.searched + end);
        self.bytes.advance(1);
        self.searched = 0;
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_gives_the_same_lines() {
        let stream = b"event: log\r\nid: 2\ndata: {}\n\n:\n\ndata: x\ndata: y\n\n";
        let whole: Vec<Vec<u8>> = lines(&[stream]);
        assert_eq!(whole.len(), 9);
        for first in 0..stream.len() {
            assert_eq!(lines(&[&stream[..first], &stream[first..]]), whole, "cut at {first}");
        }
    }

    #[test]
    fn an_error_that_quotes_the_server_is_safe_to_print() {
        for hostile in [r#""\u001b]0;owned\u0007""#, r#"{"sequence":"\u001b]0;owned\u0007"}"#] {
            let Err(Error::Decode { source, .. }) = entry(hostile.as_bytes()) else { panic!("{hostile}") };
            assert!(!source.to_string().contains(char::is_control), "{source:?}");
        }
    }

    fn lines(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut buffer = LineBuffer::default();
        let mut lines = Vec::new();
        for piece in pieces {
            buffer.push(piece);
            lines.extend(std::iter::from_fn(|| buffer.next()).map(|line| line.to_vec()));
        }
        lines
    }
}
