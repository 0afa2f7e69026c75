//! Decodes bytes to frames, in every chunking.

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
        assert_eq!(decode(input, chunk, LIMIT), expected, "in chunks of {chunk}: {:?}", input.escape_ascii());
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
            assert_eq!(matches!(frames[..], [Frame::Event { .. }]), passes, "{size} in {chunk}: {frames:?}");
            assert_eq!(matches!(frames[..], [Frame::TooLarge { .. }]), !passes);
        }
    }
}

#[test]
fn line_ends_between_lines_of_data_count() {
    // Two lines and the end between them; a field whose name only begins with `data` is not data.
    for (input, size) in [("data: ab\ndata: c\n\n", 4), ("data: a\ndata\ndatum\ndatas: x\n\n", 2)] {
        for chunk in 1..=input.len() {
            for (limit, fits) in [(size - 1, false), (size, true), (size + 1, true)] {
                let mut frames = decode(input.as_bytes(), chunk, limit);
                frames.retain(|frame| *frame != Frame::Endless);
                assert_eq!(frames.len(), 1, "{frames:?}");
                let passed = matches!(&frames[0], Frame::Event { data, .. } if data.len() == size);
                let reported = matches!(frames[0], Frame::TooLarge { .. });
                assert_eq!((passed, reported), (fits, !fits), "{limit} in chunks of {chunk}: {frames:?}");
            }
        }
    }
}

#[test]
fn a_retry_field_is_read_up_to_twenty_digits_in_any_chunking() {
    for (digits, expected) in [(19, true), (20, true), (21, false), (100, false)] {
        let input = format!("retry: {:0>digits$}\n", 250);
        for chunk in 1..=input.len() {
            let mut decoder = Decoder::new(&Limits::default().id(0));
            let mut frames = Vec::new();
            for part in input.as_bytes().chunks(chunk) {
                decoder.push(Bytes::copy_from_slice(part));
                frames.extend(std::iter::from_fn(|| decoder.next_frame()));
            }
            let retry = expected.then_some(Frame::Retry(Duration::from_millis(250)));
            assert_eq!(frames, Vec::from_iter(retry), "{digits} digits in chunks of {chunk}");
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
                let Frame::IdTooLong { size: seen, start } = frames.remove(0) else { panic!("{frames:?}") };
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

#[test]
fn an_event_does_not_keep_its_chunk_in_memory() {
    let padding = format!(": {}\n", "x".repeat(100_000));
    let chunk = Bytes::from(format!("{padding}id: a\ndata: small\n\n{padding}"));
    let mut decoder = Decoder::new(&limits(LIMIT));
    decoder.push(chunk.clone());
    let frames: Vec<_> = std::iter::from_fn(|| decoder.next_frame()).collect();
    assert_eq!(frames, [event(Some("a"), "small")]);
    drop(decoder);
    assert!(chunk.is_unique(), "a budget counts the event and not its chunk");
}

#[test]
fn an_event_of_many_lines_has_no_spare_memory() {
    for size in [100, 1_000, 70_000] {
        for chunk in [1, 7, 4_096, usize::MAX] {
            let input = format!("data: {}\ndata: x\ndata: y\n\n", "z".repeat(size));
            let frames = decode(input.as_bytes(), chunk.min(input.len()), LIMIT);
            let [Frame::Event { data, .. }] = <[_; 1]>::try_from(frames).unwrap() else { panic!() };
            let length = data.len();
            let memory = data.try_into_mut().unwrap();
            assert_eq!((memory.capacity(), length), (length, size + 4), "in chunks of {chunk}");
        }
    }
}

#[test]
fn an_event_that_has_not_ended_takes_no_more_memory_than_the_limit() {
    const LIMIT: usize = 10_000;
    let lines = "data: 0123456789\n".repeat(LIMIT / 11);
    for chunk in [1, 16, 1_000, lines.len()] {
        let mut decoder = Decoder::new(&limits(LIMIT));
        for part in lines.as_bytes().chunks(chunk) {
            decoder.push(Bytes::copy_from_slice(part));
            assert_eq!(decoder.next_frame(), None);
            let data = decoder.data.as_ref().map_or(0, Vec::capacity);
            assert!(data <= LIMIT, "{data} bytes in chunks of {chunk}");
        }
        assert!(decoder.data.is_some_and(|data| data.len() > LIMIT * 9 / 10));
    }
    // One line without an end: its field name counts too.
    let mut decoder = Decoder::new(&limits(LIMIT));
    decoder.push(Bytes::from_static(b"data: "));
    for _ in 0..LIMIT {
        assert_eq!(decoder.next_frame(), None);
        decoder.push(Bytes::from_static(b"x"));
        assert!(decoder.line.capacity() <= decoder.line_limit(), "{}", decoder.line.capacity());
    }
}
