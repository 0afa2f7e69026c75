//! The decoder of event streams.

use std::time::Duration;

use arbitrary::Unstructured;
use bytes::Bytes;

use crate::{
    EventId, Limits,
    sse::{Decoder, Frame, RETRY_DIGITS},
};

/// Checks that any chunking gives the same frames as a plain implementation of the standard. With small limits, the
/// same events are too large in any chunking.
pub fn sse_decoder(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let cuts: [u8; 4] = input.arbitrary().unwrap_or_default();
    let (message, id) = (input.int_in_range(0..=40).unwrap_or(8), input.int_in_range(0..=12).unwrap_or(4));
    let text = input.take_rest();

    let large = Limits::default();
    let whole = decode(text, &[], &large);
    assert_eq!(whole, decode(text, &cuts, &large), "another chunking gives other frames");
    assert_eq!(whole, plain_decode(text), "the standard gives other frames");

    let small = Limits::default().message(message).id(id);
    let whole = outlines(decode(text, &[], &small));
    let cut = outlines(decode(text, &cuts, &small));
    assert_eq!(whole, cut, "another chunking gives other frames within limits");
}

/// Decodes in chunks of these sizes, repeated; without sizes, in one chunk.
fn decode(text: &[u8], sizes: &[u8], limits: &Limits) -> Vec<Frame> {
    let mut decoder = Decoder::new(limits);
    let mut frames = Vec::new();
    let mut sizes = sizes.iter().cycle();
    let mut rest = text;
    while !rest.is_empty() {
        let size = sizes.next().map_or(rest.len(), |size| usize::from(*size).clamp(1, rest.len()));
        let (chunk, behind) = rest.split_at(size);
        decoder.push(Bytes::copy_from_slice(chunk));
        while let Some(frame) = decoder.next_frame() {
            frames.push(frame);
        }
        rest = behind;
    }
    frames
}

/// The frames without what depends on the chunking: how much was seen of an event when it was found too large.
fn outlines(frames: Vec<Frame>) -> Vec<Frame> {
    let outline = |frame| match frame {
        Frame::TooLarge { id, .. } => Some(Frame::TooLarge { id, seen: 0, head: Bytes::new() }),
        Frame::Endless => None,
        other => Some(other),
    };
    frames.into_iter().filter_map(outline).collect()
}

/// A plain reference implementation, line by line, for a stream within the limits.
fn plain_decode(text: &[u8]) -> Vec<Frame> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let (mut frames, mut id, mut data, mut named) = (Vec::new(), None, None::<Vec<u8>>, false);
    for line in lines(text) {
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"" if line.is_empty() => {
                let (id, named) = (id.take(), std::mem::take(&mut named));
                frames.extend(match data.take() {
                    None => id.map(Frame::Id),
                    Some(data) if named || data.trim_ascii().is_empty() => Some(Frame::Ignored { id }),
                    Some(data) => Some(Frame::Event { id, data: data.into() }),
                });
            }
            b"data" => match &mut data {
                None => data = Some(value.to_vec()),
                Some(data) => data.extend([b"\n", value].concat()),
            },
            b"id" if value.len() > Limits::default().id => {
                let start = Bytes::copy_from_slice(&value[..Limits::default().id]);
                frames.push(Frame::IdTooLong { size: value.len(), start });
            }
            b"id" if !value.contains(&0) => id = Some(EventId::read(value)),
            b"event" => named = !matches!(value, b"" | b"message"),
            b"retry" if value.len() <= RETRY_DIGITS && value.iter().all(u8::is_ascii_digit) => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                frames.extend(number.map(Duration::from_millis).map(Frame::Retry));
            }
            _ => {}
        }
    }
    frames
}

/// The complete lines. A line ends with LF, CRLF or CR.
fn lines(text: &[u8]) -> Vec<&[u8]> {
    let (mut lines, mut start, mut at) = (Vec::new(), 0, 0);
    while at < text.len() {
        if matches!(text[at], b'\n' | b'\r') {
            lines.push(&text[start..at]);
            at += usize::from(text[at..].starts_with(b"\r\n"));
            start = at + 1;
        }
        at += 1;
    }
    lines
}
