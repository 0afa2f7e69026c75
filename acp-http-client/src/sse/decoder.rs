//! A push decoder for `text/event-stream`, linear in its input and bounded in memory.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr2;

use super::EventId;

/// How much of an oversize event is kept, so that the request it answers can still be told.
const HEAD_BYTES: usize = 4096;
/// How much of a line is kept while its content is being thrown away; an `id` field fits easily.
const SKIPPED_LINE_BYTES: usize = 1024;
const BOM: &[u8] = b"\xef\xbb\xbf";

/// One thing the stream said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A dispatched event: its `data`, and its `id` if the block had one.
    Event { id: Option<EventId>, data: Bytes },
    /// A block that carried an `id` but no data (or whose data was too large and already reported).
    Id(EventId),
    /// A `retry` field.
    Retry(Duration),
    /// An event grew past the limit. What follows of it is skipped; `id` is known if it came first.
    TooLarge { id: Option<EventId>, seen: usize, head: Bytes },
    /// As much again was skipped, and the event still has no end.
    Endless,
}

/// Turns chunks of any size into [`Frame`]s.
///
/// `push` a chunk, then call `next_frame` until it gives `None`. Lines may end with LF, CRLF or CR, a leading
/// byte order mark is dropped, and the bytes of `data` are passed on as they came.
#[derive(Debug)]
pub(crate) struct Decoder {
    limit: usize,
    chunk: Bytes,
    /// The beginning of a line whose end has not been seen.
    line: BytesMut,
    /// The current line is not kept beyond its beginning, and says nothing when it ends.
    overlong: bool,
    /// A CR ended the last line: an LF that follows belongs to it.
    after_cr: bool,
    /// How many bytes of a byte order mark have matched, or `None` once the stream has begun.
    bom: Option<usize>,
    id: Option<EventId>,
    data: Data,
    skipping: bool,
    /// How much of the event has been skipped.
    skipped: usize,
}

/// The `data` lines of the current block.
#[derive(Debug, Default)]
enum Data {
    #[default]
    None,
    /// One line, the usual case: a slice of what arrived.
    Line(Bytes),
    Lines(BytesMut),
}

impl Decoder {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            chunk: Bytes::new(),
            line: BytesMut::new(),
            overlong: false,
            after_cr: false,
            bom: Some(0),
            id: None,
            data: Data::None,
            skipping: false,
            skipped: 0,
        }
    }

    /// Hands over the next chunk. The previous one must have been drained by `next_frame`.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "the previous chunk has not been drained");
        self.chunk = chunk;
    }

    pub(crate) fn next_frame(&mut self) -> Option<Frame> {
        self.strip_bom();
        loop {
            if self.after_cr && self.chunk.first() == Some(&b'\n') {
                self.chunk.advance(1);
                self.after_cr = false;
            }
            if self.chunk.is_empty() {
                return None;
            }
            self.after_cr = false;
            let frame = match memchr2(b'\n', b'\r', &self.chunk) {
                Some(end) => {
                    let frame = if self.line.is_empty() && !self.overlong {
                        self.whole_line(end)
                    } else {
                        self.end_of_line(end)
                    };
                    self.after_cr = self.chunk[end] == b'\r';
                    self.chunk.advance(end + 1);
                    frame
                }
                None => {
                    let rest = std::mem::take(&mut self.chunk);
                    self.grow_line(&rest)
                }
            };
            if frame.is_some() {
                return frame;
            }
        }
    }

    /// Whether an event has begun whose end has not come. Comments are not part of any.
    pub(crate) fn is_within_event(&self) -> bool {
        let in_line = self.line.first().is_some_and(|first| *first != b':');
        in_line || self.skipping || self.id.is_some() || !matches!(self.data, Data::None)
    }

    fn strip_bom(&mut self) {
        while let Some(matched) = self.bom {
            match self.chunk.first() {
                None => return,
                Some(byte) if *byte == BOM[matched] => {
                    self.chunk.advance(1);
                    self.bom = (matched + 1 < BOM.len()).then_some(matched + 1);
                }
                Some(_) => {
                    // Not a mark after all: what matched so far belongs to the first line.
                    self.line.extend_from_slice(&BOM[..matched]);
                    self.bom = None;
                }
            }
        }
    }

    /// Takes the part of a line that has no end yet.
    fn grow_line(&mut self, part: &[u8]) -> Option<Frame> {
        if self.skipping || self.overlong {
            let room = SKIPPED_LINE_BYTES.saturating_sub(self.line.len()).min(part.len());
            self.line.extend_from_slice(&part[..room]);
            self.overlong |= room < part.len();
            let before = self.skipped;
            self.skipped += part.len();
            return (self.skipping && before <= self.limit && self.skipped > self.limit)
                .then_some(Frame::Endless);
        }
        self.line.extend_from_slice(part);
        let seen = self.data.len() + self.line.len();
        if seen <= self.limit {
            return None;
        }
        let frame = is_data(&self.line).then(|| self.too_large(seen));
        self.overlong = true;
        self.line = BytesMut::from(self.line.truncated(SKIPPED_LINE_BYTES));
        frame
    }

    /// A line that lies in one chunk, as most do: only its data is worth a reference to the chunk.
    fn whole_line(&mut self, end: usize) -> Option<Frame> {
        match Field::of(&self.chunk[..end]) {
            Field::Data(at) if !self.skipping => self.add_data(self.chunk.slice(at..end)),
            field => self.take_field(field),
        }
    }

    /// The end of a line that began in an earlier chunk.
    fn end_of_line(&mut self, end: usize) -> Option<Frame> {
        if std::mem::take(&mut self.overlong) {
            self.line.clear();
            return None;
        }
        self.line.extend_from_slice(&self.chunk[..end]);
        let line = std::mem::take(&mut self.line).freeze();
        match Field::of(&line) {
            Field::Data(at) if !self.skipping => self.add_data(line.slice(at..)),
            field => self.take_field(field),
        }
    }

    fn take_field(&mut self, field: Field) -> Option<Frame> {
        match field {
            Field::Blank => return self.dispatch(),
            Field::Retry(delay) => return Some(Frame::Retry(delay)),
            Field::Id(id) => self.id = Some(id),
            Field::Data(_) | Field::Nothing => {}
        }
        None
    }

    fn add_data(&mut self, value: Bytes) -> Option<Frame> {
        let seen = self.data.len() + value.len();
        if seen > self.limit {
            self.data.push(value);
            return Some(self.too_large(seen));
        }
        self.data.push(value);
        None
    }

    fn too_large(&mut self, seen: usize) -> Frame {
        let head = match std::mem::take(&mut self.data) {
            Data::None => Bytes::copy_from_slice(split_field(&self.line).1.truncated(HEAD_BYTES)),
            Data::Line(line) => Bytes::copy_from_slice(line.truncated(HEAD_BYTES)),
            Data::Lines(lines) => Bytes::copy_from_slice(lines.truncated(HEAD_BYTES)),
        };
        self.skipping = true;
        self.skipped = 0;
        Frame::TooLarge { id: self.id.clone(), seen, head }
    }

    fn dispatch(&mut self) -> Option<Frame> {
        let id = self.id.take();
        let data = std::mem::take(&mut self.data);
        self.skipping = false;
        match data {
            Data::None => id.map(Frame::Id),
            Data::Line(data) => Some(Frame::Event { id, data }),
            Data::Lines(lines) => Some(Frame::Event { id, data: lines.freeze() }),
        }
    }
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Data::None => 0,
            Data::Line(line) => line.len(),
            Data::Lines(lines) => lines.len(),
        }
    }

    fn push(&mut self, value: Bytes) {
        *self = match std::mem::take(self) {
            Data::None => Data::Line(value),
            Data::Line(first) => {
                let mut lines = BytesMut::with_capacity(first.len() + 1 + value.len());
                lines.extend_from_slice(&first);
                Data::Lines(joined(lines, &value))
            }
            Data::Lines(lines) => Data::Lines(joined(lines, &value)),
        };
    }
}

/// What a line says.
enum Field {
    /// The end of a block.
    Blank,
    /// Data, from this place on.
    Data(usize),
    Id(EventId),
    Retry(Duration),
    /// Comments, `event` and unknown fields carry nothing for a JSON-RPC stream.
    Nothing,
}

impl Field {
    fn of(line: &[u8]) -> Self {
        if line.is_empty() {
            return Self::Blank;
        }
        let (name, value) = split_field(line);
        match name {
            b"data" => Self::Data(line.len() - value.len()),
            b"id" if !value.contains(&0) => Self::Id(EventId::read(value)),
            b"retry" => parse_retry(value).map_or(Self::Nothing, Self::Retry),
            _ => Self::Nothing,
        }
    }
}

fn joined(mut lines: BytesMut, value: &[u8]) -> BytesMut {
    lines.extend_from_slice(b"\n");
    lines.extend_from_slice(value);
    lines
}

/// Name and value of a field; one space after the colon belongs to neither. A comment has an empty name.
fn split_field(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b':', line) {
        None => (line, &[]),
        Some(colon) => {
            let value = &line[colon + 1..];
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        }
    }
}

fn is_data(line: &[u8]) -> bool {
    split_field(line).0 == b"data"
}

fn parse_retry(value: &[u8]) -> Option<Duration> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok().map(Duration::from_millis)
}

trait Truncated {
    fn truncated(&self, len: usize) -> &[u8];
}

impl Truncated for [u8] {
    fn truncated(&self, len: usize) -> &[u8] {
        &self[..len.min(self.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1 << 20;

    fn decode(input: &[u8], chunk: usize, limit: usize) -> Vec<Frame> {
        let mut decoder = Decoder::new(limit);
        let mut frames = Vec::new();
        for part in input.chunks(chunk.max(1)) {
            decoder.push(Bytes::copy_from_slice(part));
            while let Some(frame) = decoder.next_frame() {
                frames.push(frame);
            }
        }
        frames
    }

    fn event(id: Option<&str>, data: &str) -> Frame {
        Frame::Event { id: id.map(EventId::from), data: Bytes::copy_from_slice(data.as_bytes()) }
    }

    fn all_chunkings(input: &[u8], expected: &[Frame]) {
        for chunk in 1..=input.len() {
            assert_eq!(
                decode(input, chunk, LIMIT),
                expected,
                "in chunks of {chunk}: {:?}",
                input.escape_ascii()
            );
        }
    }

    #[test]
    fn the_standard_is_kept_in_any_chunking() {
        let table: &[(&str, &[Frame])] = &[
            ("data: a\n\n", &[event(None, "a")]),
            ("data:a\n\n", &[event(None, "a")]),
            ("data:  a\n\n", &[event(None, " a")]),
            ("data: a\r\n\r\n", &[event(None, "a")]),
            ("data: a\r\r", &[event(None, "a")]),
            ("data: a\r\n\rdata: b\n\r\n", &[event(None, "a"), event(None, "b")]),
            ("id: 1\nevent: message\ndata: a\n\n", &[event(Some("1"), "a")]),
            ("data: a\nid: 1\n\ndata: b\n\n", &[event(Some("1"), "a"), event(None, "b")]),
            ("data: a\ndata: b\ndata\n\n", &[event(None, "a\nb\n")]),
            ("data\n\n", &[event(None, "")]),
            (": comment\n\n:\n\n", &[]),
            ("id: 4\n\ndata: x\n\n", &[Frame::Id("4".into()), event(None, "x")]),
            ("id: 1\0\ndata: a\n\n", &[event(None, "a")]),
            ("id\ndata: a\n\n", &[event(Some(""), "a")]),
            ("retry: 250\nretry: x\nretry:\n\n", &[Frame::Retry(Duration::from_millis(250))]),
            ("unknown: x\ndata: a\n\ndata: incomplete\n", &[event(None, "a")]),
            ("\u{feff}data: a\n\n", &[event(None, "a")]),
            ("\u{feff}\u{feff}data: a\n\n", &[]),
            ("data: \u{feff}é💡\n\n", &[event(None, "\u{feff}é💡")]),
        ];
        for (input, expected) in table {
            all_chunkings(input.as_bytes(), expected);
        }
    }

    #[test]
    fn a_partial_byte_order_mark_belongs_to_the_first_line() {
        all_chunkings(b"\xef\xbbdata: a\n\ndata: b\n\n", &[event(None, "b")]);
    }

    #[test]
    fn invalid_utf8_is_passed_on_as_it_came() {
        let expected = Frame::Event { id: None, data: Bytes::from_static(b"a\xffb") };
        all_chunkings(b"data: a\xffb\n\n", &[expected]);
    }

    #[test]
    fn an_event_over_the_limit_is_reported_once_and_skipped() {
        let input = b"id: 7\ndata: 0123456789abcdef01234567\ndata: more\n\nid: 8\ndata: ok\n\n";
        for chunk in 1..=input.len() {
            let frames = decode(input, chunk, 20);
            assert_eq!(frames.len(), 3, "in chunks of {chunk}: {frames:?}");
            assert!(
                matches!(&frames[0], Frame::TooLarge { id: Some(id), seen, .. } if id.as_number() == Some(7) && *seen > 20)
            );
            assert_eq!(frames[1], Frame::Id("7".into()));
            assert_eq!(frames[2], event(Some("8"), "ok"));
        }
    }

    #[test]
    fn an_id_behind_oversize_data_is_still_read() {
        let input = b"data: 0123456789abcdef01234567\nid: 7\n\ndata: ok\n\n";
        for chunk in 1..=input.len() {
            let frames = decode(input, chunk, 20);
            assert!(matches!(&frames[0], Frame::TooLarge { id: None, .. }), "{frames:?}");
            assert_eq!(frames[1..], [Frame::Id("7".into()), event(None, "ok")]);
        }
    }

    #[test]
    fn an_unterminated_event_is_reported_at_the_limit_and_takes_no_more_memory() {
        let mut decoder = Decoder::new(LIMIT);
        decoder.push(Bytes::from_static(b"id: 3\ndata: "));
        assert_eq!(decoder.next_frame(), None);
        let part = Bytes::from(vec![b'x'; 64 * 1024]);
        let mut reports = Vec::new();
        for _ in 0..1024 {
            decoder.push(part.clone());
            while let Some(frame) = decoder.next_frame() {
                reports.push(frame);
            }
            assert!(decoder.line.capacity() <= 4 * LIMIT, "{}", decoder.line.capacity());
        }
        assert!(
            matches!(&reports[..], [Frame::TooLarge { head, .. }, Frame::Endless] if head.len() == HEAD_BYTES),
            "{reports:?}"
        );
        assert!(decoder.line.len() <= SKIPPED_LINE_BYTES);
    }

    #[test]
    fn a_comment_of_any_length_is_not_kept() {
        let mut input = vec![b':'; 100];
        input.extend_from_slice(b"\n\ndata: a\n\n");
        for chunk in 1..=input.len() {
            assert_eq!(decode(&input, chunk, 10), [event(None, "a")]);
        }
    }
}
