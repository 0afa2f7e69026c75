//! A push decoder for `text/event-stream`, linear in its input and bounded in memory.

#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::{Buf, Bytes};
use memchr::memchr2;

use super::EventId;
use crate::Limits;

/// How much of an oversize event is stored, enough to find the id of the request it responds to.
const HEAD_BYTES: usize = 4096;
/// The first bytes of a line in which the end of a field name is looked for one by one.
const FIELD_NAME_BYTES: usize = 8;
/// The longest line that has to be stored besides the value of an id: `retry: ` and its digits.
const FIELD_BYTES: usize = 7 + RETRY_DIGITS;
/// The name of a `data` field, its colon and a space.
const DATA_BYTES: usize = 6;
/// The digits of the largest `retry` field. A longer one is ignored, whatever its value.
pub(crate) const RETRY_DIGITS: usize = 20;
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
    /// Another part of that size was skipped, and the event has still not ended.
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
    line: Vec<u8>,
    /// Only the beginning of the current line is stored: how many bytes it has.
    overlong: Option<usize>,
    /// A CR ended the last line: an LF that follows belongs to it.
    after_cr: bool,
    /// How many bytes of a byte order mark have matched, or `None` once the stream has begun.
    bom: Option<usize>,
    id: Option<EventId>,
    /// The `data` lines of the current block. They are copied: a slice would keep its whole chunk in memory, of
    /// which a budget counts only the slice.
    data: Option<Vec<u8>>,
    /// Whether the `event` field of the current block names another type than `message`.
    named: bool,
    skipping: bool,
    /// How much of the event has been skipped.
    skipped: usize,
}

impl Decoder {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            limit: limits.message,
            id_limit: limits.id,
            chunk: Bytes::new(),
            line: Vec::new(),
            overlong: None,
            after_cr: false,
            bom: Some(0),
            id: None,
            data: None,
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
        in_line || self.skipping || self.id.is_some() || self.data.is_some()
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
        let limit = self.line_limit();
        extend_within(&mut self.line, &[part], limit);
        let (name, value) = split_field(&self.line);
        // Without its colon the name may not be complete.
        let frame = if name == b"data" && name.len() < self.line.len() {
            let seen = len_with(self.data.as_deref(), value);
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
        self.line = self.line.truncated(self.field_limit()).to_vec();
        frame
    }

    /// How much is stored of a line that is not data, or whose data is skipped: an `id` field within the limit.
    fn field_limit(&self) -> usize {
        self.id_limit.saturating_add(FIELD_BYTES)
    }

    /// How much of a line is stored at most: data within the limit, or a field.
    fn line_limit(&self) -> usize {
        self.limit.saturating_add(DATA_BYTES).max(self.field_limit())
    }

    /// A line that lies in one chunk, as most do.
    fn whole_line(&mut self, end: usize) -> Option<Frame> {
        match Field::of(&self.chunk[..end], self.id_limit) {
            Field::Data(at) if !self.skipping => {
                append(&mut self.data, &self.chunk[at..end], self.limit);
                self.check_data()
            }
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
            return (name == b"id").then(|| id_too_long(value, size, self.id_limit));
        }
        let limit = self.line_limit();
        extend_within(&mut self.line, &[&self.chunk[..end]], limit);
        let line = std::mem::take(&mut self.line);
        match Field::of(&line, self.id_limit) {
            Field::Data(at) if !self.skipping => {
                append(&mut self.data, &line[at..], self.limit);
                self.check_data()
            }
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

    fn check_data(&mut self) -> Option<Frame> {
        let seen = self.data.as_ref().map_or(0, Vec::len);
        (seen > self.limit).then(|| self.too_large(seen))
    }

    fn too_large(&mut self, seen: usize) -> Frame {
        let data = self.data.take();
        let data = data.as_deref().unwrap_or_else(|| split_field(&self.line).1);
        let head = Bytes::copy_from_slice(data.truncated(HEAD_BYTES));
        self.skipping = true;
        self.skipped = 0;
        Frame::TooLarge { id: self.id.clone(), seen, head }
    }

    fn dispatch(&mut self) -> Option<Frame> {
        let id = self.id.take();
        let named = std::mem::take(&mut self.named);
        self.skipping = false;
        let Some(data) = self.data.take() else { return id.map(Frame::Id) };
        if named || data.trim_ascii_start().is_empty() {
            return Some(Frame::Ignored { id });
        }
        // Without spare memory: a budget counts the data alone.
        Some(Frame::Event { id, data: data.into_boxed_slice().into() })
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
            b"id" if value.len() > id_limit => Self::IdTooLong(id_too_long(value, value.len(), id_limit)),
            b"id" if value.contains(&0) => Self::Nothing,
            b"id" => Self::Id(EventId::read(value)),
            b"event" => Self::Event { named: !matches!(value, b"" | b"message") },
            b"retry" => parse_retry(value).map_or(Self::Nothing, Self::Retry),
            _ => Self::Nothing,
        }
    }
}

/// Returns the beginning of an id, up to the limit.
fn id_too_long(value: &[u8], size: usize, limit: usize) -> Frame {
    Frame::IdTooLong { size, start: Bytes::copy_from_slice(value.truncated(limit)) }
}

/// Adds a line to the data of an event.
fn append(data: &mut Option<Vec<u8>>, line: &[u8], limit: usize) {
    match data {
        None => *data = Some(line.to_vec()),
        Some(lines) => extend_within(lines, &[b"\n", line], limit),
    }
}

/// Appends these parts. The memory is doubled if it does not suffice, up to the limit.
fn extend_within(bytes: &mut Vec<u8>, parts: &[&[u8]], limit: usize) {
    let needed = bytes.len() + parts.iter().map(|part| part.len()).sum::<usize>();
    if needed > bytes.capacity() {
        let capacity = needed.max(limit.min(2 * bytes.capacity()));
        bytes.reserve_exact(capacity - bytes.len());
    }
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
}

/// The size of the data with one more line.
fn len_with(data: Option<&[u8]>, line: &[u8]) -> usize {
    data.map_or(0, |data| data.len() + 1) + line.len()
}

/// Name and value of a field; one space after the colon belongs to neither. A comment has an empty name.
fn split_field(line: &[u8]) -> (&[u8], &[u8]) {
    // Names are short, and a search pays only for long ones.
    let near = line.iter().take(FIELD_NAME_BYTES).position(|byte| *byte == b':');
    match near.or_else(|| memchr::memchr(b':', line)) {
        None => (line, &[]),
        Some(colon) => {
            let value = &line[colon + 1..];
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        }
    }
}

fn parse_retry(value: &[u8]) -> Option<Duration> {
    if value.is_empty() || value.len() > RETRY_DIGITS || !value.iter().all(u8::is_ascii_digit) {
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
