//! Collects the output of a server.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

/// How many lines are buffered.
const LINES: usize = 256;
/// How many bytes of a line are buffered.
const LINE_BYTES: usize = 4096;
/// How much is read at once.
const CHUNK: usize = 16 << 10;

/// Where the output of a server goes. The last 256 lines are always buffered in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LocalLog {
    /// The output is only buffered in memory.
    #[default]
    Buffer,
    /// The output is also written to this program's standard error.
    Forward,
}

/// The last lines of a server's output, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct Lines {
    policy: LocalLog,
    /// Guards the complete lines; held for a push or a copy.
    buffered: Mutex<VecDeque<String>>,
}

impl Lines {
    pub(super) fn new(policy: LocalLog) -> Self {
        Self { policy, buffered: Mutex::default() }
    }

    /// Returns the buffered lines, oldest first.
    pub(super) fn last(&self) -> Vec<String> {
        self.buffered.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Reads to the end. It never pauses, because a full pipe would block the server.
    pub(super) async fn read(&self, mut pipe: impl AsyncRead + Unpin) {
        let (mut buffer, mut line) = (vec![0; CHUNK], Vec::new());
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            let mut parts = buffer[..count].split(|byte| *byte == b'\n').peekable();
            while let Some(part) = parts.next() {
                let room = LINE_BYTES.saturating_sub(line.len());
                line.extend_from_slice(&part[..part.len().min(room)]);
                if parts.peek().is_some() {
                    self.push(&std::mem::take(&mut line));
                }
            }
            // A server that prints without pause must not starve other tasks.
            tokio::task::coop::consume_budget().await;
        }
        if !line.is_empty() {
            self.push(&line);
        }
    }

    fn push(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
        if self.policy == LocalLog::Forward {
            // An error means that this program has no standard error.
            let _ = writeln!(std::io::stderr().lock(), "{}", crate::convert::text::printable(&line));
        }
        let mut buffered = self.buffered.lock().unwrap_or_else(PoisonError::into_inner);
        if buffered.len() == LINES {
            buffered.pop_front();
        }
        buffered.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_last_lines_are_buffered() {
        let lines = Lines::new(LocalLog::Buffer);
        let text: String = (0..1000).map(|number| format!("line {number}\r\n")).collect();
        lines.read((text + "no end").as_bytes()).await;
        let buffered = lines.last();
        assert_eq!((buffered.len(), buffered[0].as_str()), (LINES, "line 745"));
        assert_eq!((buffered[LINES - 2].as_str(), buffered[LINES - 1].as_str()), ("line 999", "no end"));
    }

    #[tokio::test]
    async fn a_line_without_an_end_does_not_grow() {
        let lines = Lines::new(LocalLog::Buffer);
        lines.read([b'x'; 100_000].as_slice()).await;
        lines.read(b"\xff\n".as_slice()).await;
        assert_eq!(lines.last().iter().map(String::len).collect::<Vec<_>>(), [LINE_BYTES, 3]);
    }
}
