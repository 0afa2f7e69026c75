//! A push decoder for `text/event-stream`, linear in its input and bounded in memory.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr2;

use super::EventId;
use crate::Limits;

/// How much of an oversize event is stored, enough to find the id of the request it responds to.
const HEAD_BYTES: usize = 4096;
/// The longest line that has to be stored besides the value of an id: `event: message`.
const FIELD_BYTES: usize = 16;
const BOM: &[u8] = b"\xef\xbb\xbf";

/// One item of an event stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A dispatched event: its `data`, and its `id` if the block had one.
    Event { id: Option<EventId>, data: Bytes },
    /// A block that carried an `id` but no data (or whose data was too large and already reported).
    Id(EventId),
    /// An event that is not a message: its `event` field has another type than `message`, or its data is blank.
    /// Servers send such events to keep a connection alive.
    Ignored { id: Option<EventId> },
    /// An `id` field over the limit. Its event has no id.
    IdTooLong { size: usize, start: Bytes },
    /// A `retry` field.
    Retry(Duration),
    /// An event grew past the limit. The rest of it is skipped; `id` is known if it came first.
    TooLarge { id: Option<EventId>, seen: usize, head: Bytes },
    /// As much again was skipped, and the event still has no end.
    Endless,
}

/// Turns chunks of any size into [`Frame`]s.
///
/// `push` a chunk, then call `next_frame` until it returns `None`. Lines may end with LF, CRLF or CR, a leading
/// byte order mark is dropped, and the bytes of `data` are passed on unchanged.
#[derive(Debug)]
pub(crate) struct Decoder {
    limit: usize,
    id_limit: usize,
    chunk: Bytes,
    /// The beginning of a line without its end.
    line: BytesMut,
    /// Only the beginning of the current line is stored: how many bytes it has.
    overlong: Option<usize>,
    /// A CR ended the last line: an LF that follows belongs to it.
    after_cr: bool,
    /// How many bytes of a byte order mark have matched, or `None` once the stream has begun.
    bom: Option<usize>,
    id: Option<EventId>,
    data: Data,
    /// Whether the `event` field of the current block names another type than `message`.
    named: bool,
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
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            limit: limits.message,
            id_limit: limits.id,
            chunk: Bytes::new(),
            line: BytesMut::new(),
            overlong: None,
            after_cr: false,
            bom: Some(0),
            id: None,
            data: Data::None,
            named: false,
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
                    let frame = if self.line.is_empty() && self.overlong.is_none() {
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

    /// Whether an event has begun and not ended. Comments are not part of any.
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
                    // Not a mark: what matched so far belongs to the first line.
                    self.line.extend_from_slice(&BOM[..matched]);
                    self.bom = None;
                }
            }
        }
    }

    /// Takes the part of a line that has no end yet.
    fn grow_line(&mut self, part: &[u8]) -> Option<Frame> {
        if self.skipping || self.overlong.is_some() {
            let size = self.overlong.unwrap_or(self.line.len()) + part.len();
            let room = self.field_limit().saturating_sub(self.line.len()).min(part.len());
            self.line.extend_from_slice(&part[..room]);
            self.overlong = (size > self.line.len()).then_some(size);
            let before = self.skipped;
            self.skipped += part.len();
            return (self.skipping && before <= self.limit && self.skipped > self.limit)
                .then_some(Frame::Endless);
        }
        self.line.extend_from_slice(part);
        let (name, value) = split_field(&self.line);
        let frame = if name == b"data" {
            let seen = self.data.len() + value.len();
            if seen <= self.limit {
                return None;
            }
            Some(self.too_large(seen))
        } else if self.line.len() <= self.field_limit() {
            return None;
        } else {
            None
        };
        self.overlong = Some(self.line.len());
        self.line = BytesMut::from(self.line.truncated(self.field_limit()));
        frame
    }

    /// How much is stored of a line that is not data, or whose data is skipped: an `id` field within the limit.
    fn field_limit(&self) -> usize {
        self.id_limit.saturating_add(FIELD_BYTES)
    }

    /// A line that lies in one chunk, as most do. Only data is worth a reference to the chunk.
    fn whole_line(&mut self, end: usize) -> Option<Frame> {
        match Field::of(&self.chunk[..end], self.id_limit) {
            Field::Data(at) if !self.skipping => self.add_data(self.chunk.slice(at..end)),
            field => self.take_field(field),
        }
    }

    /// The end of a line that began in an earlier chunk.
    fn end_of_line(&mut self, end: usize) -> Option<Frame> {
        if let Some(size) = self.overlong.take() {
            let line = std::mem::take(&mut self.line);
            let (name, value) = split_field(&line);
            let size = (size + end).saturating_sub(line.len() - value.len());
            // A type as long as this is not `message`.
            self.named |= name == b"event";
            return (name == b"id").then(|| id_too_long(value, size));
        }
        self.line.extend_from_slice(&self.chunk[..end]);
        let line = std::mem::take(&mut self.line).freeze();
        match Field::of(&line, self.id_limit) {
            Field::Data(at) if !self.skipping => self.add_data(line.slice(at..)),
            field => self.take_field(field),
        }
    }

    fn take_field(&mut self, field: Field) -> Option<Frame> {
        match field {
            Field::Blank => return self.dispatch(),
            Field::Retry(delay) => return Some(Frame::Retry(delay)),
            Field::Id(id) => self.id = Some(id),
            Field::IdTooLong(frame) => return Some(frame),
            Field::Event { named } => self.named = named,
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
        let named = std::mem::take(&mut self.named);
        self.skipping = false;
        let data = match std::mem::take(&mut self.data) {
            Data::None => return id.map(Frame::Id),
            Data::Line(data) => data,
            Data::Lines(lines) => lines.freeze(),
        };
        if named || data.trim_ascii_start().is_empty() {
            return Some(Frame::Ignored { id });
        }
        Some(Frame::Event { id, data })
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

/// The content of a line.
enum Field {
    /// The end of a block.
    Blank,
    /// Data, from this index on.
    Data(usize),
    Id(EventId),
    IdTooLong(Frame),
    /// The type of the event, and whether it is another one than `message`.
    Event {
        named: bool,
    },
    Retry(Duration),
    /// A comment or an unknown field.
    Nothing,
}

impl Field {
    fn of(line: &[u8], id_limit: usize) -> Self {
        if line.is_empty() {
            return Self::Blank;
        }
        let (name, value) = split_field(line);
        match name {
            b"data" => Self::Data(line.len() - value.len()),
            b"id" if value.len() > id_limit => Self::IdTooLong(id_too_long(value, value.len())),
            b"id" if value.contains(&0) => Self::Nothing,
            b"id" => Self::Id(EventId::read(value)),
            b"event" => Self::Event { named: !matches!(value, b"" | b"message") },
            b"retry" => parse_retry(value).map_or(Self::Nothing, Self::Retry),
            _ => Self::Nothing,
        }
    }
}

fn id_too_long(value: &[u8], size: usize) -> Frame {
    Frame::IdTooLong { size, start: Bytes::copy_from_slice(value.truncated(HEAD_BYTES)) }
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

    const ID_LIMIT: usize = 32;

    fn limits(message: usize) -> Limits {
        Limits::default().message(message).id(ID_LIMIT)
    }

    fn decode(input: &[u8], chunk: usize, limit: usize) -> Vec<Frame> {
        let mut decoder = Decoder::new(&limits(limit));
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
    fn the_standard_is_followed_in_any_chunking() {
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
            ("data\n\n", &[Frame::Ignored { id: None }]),
            ("id: 3\ndata:\ndata: \n\n", &[Frame::Ignored { id: Some("3".into()) }]),
            (
                "event: ping\nid: 3\ndata: {}\n\ndata: a\n\n",
                &[Frame::Ignored { id: Some("3".into()) }, event(None, "a")],
            ),
            ("data: {}\nevent: ping\n\n", &[Frame::Ignored { id: None }]),
            ("event: ping\nevent: message\ndata: a\n\n", &[event(None, "a")]),
            ("event:\ndata: a\n\nevent\ndata: b\n\n", &[event(None, "a"), event(None, "b")]),
            ("event: ping\n\ndata: a\n\n", &[event(None, "a")]),
            ("event: ping\nid: 4\n\n", &[Frame::Id("4".into())]),
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
    fn invalid_utf8_is_passed_on_unchanged() {
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
        let mut decoder = Decoder::new(&limits(LIMIT));
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
        assert!(decoder.line.len() <= decoder.field_limit());
    }

    #[test]
    fn data_at_the_limit_passes_in_any_chunking_and_one_byte_more_does_not() {
        for (size, passes) in [(19, true), (20, true), (21, false)] {
            let input = format!("data: {}\n\n", "x".repeat(size));
            for chunk in 1..=input.len() {
                let frames = decode(input.as_bytes(), chunk, 20);
                assert_eq!(
                    matches!(frames[..], [Frame::Event { .. }]),
                    passes,
                    "{size} in {chunk}: {frames:?}"
                );
                assert_eq!(matches!(frames[..], [Frame::TooLarge { .. }]), !passes);
            }
        }
    }

    #[test]
    fn an_id_over_the_limit_is_reported_and_its_event_is_not_lost() {
        for (size, fits) in [(ID_LIMIT - 1, true), (ID_LIMIT, true), (ID_LIMIT + 1, false), (500, false)] {
            let id = "i".repeat(size);
            let input = format!("id: {id}\ndata: a\n\ndata: b\n\n");
            for chunk in 1..=input.len() {
                let mut frames = decode(input.as_bytes(), chunk, LIMIT);
                if !fits {
                    let Frame::IdTooLong { size: seen, start } = frames.remove(0) else {
                        panic!("{frames:?}")
                    };
                    assert!(seen == size && id.as_bytes().starts_with(&start), "{size} in {chunk}: {seen}");
                }
                let expected = event(fits.then_some(&*id), "a");
                assert_eq!(frames, [expected, event(None, "b")], "{size} in {chunk}");
            }
        }
    }

    #[test]
    fn an_id_at_the_limit_is_read_behind_data_that_is_too_large() {
        let id = "i".repeat(ID_LIMIT);
        let input = format!("data: {}\nid: {id}\n\ndata: ok\n\n", "x".repeat(150));
        for chunk in 1..=input.len() {
            let frames = decode(input.as_bytes(), chunk, 100);
            assert_eq!(frames[1..], [Frame::Id(id.as_str().into()), event(None, "ok")], "in {chunk}");
        }
    }

    #[test]
    fn a_comment_of_any_length_is_not_stored() {
        let mut input = vec![b':'; 100];
        input.extend_from_slice(b"\n\ndata: a\n\n");
        for chunk in 1..=input.len() {
            assert_eq!(decode(&input, chunk, 10), [event(None, "a")]);
        }
    }
}
