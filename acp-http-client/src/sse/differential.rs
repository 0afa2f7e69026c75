//! Compares the decoder with another one, and with itself in other chunks.

use bytes::Bytes;
use eventsource_stream::Eventsource;
use futures::StreamExt;
use proptest::prelude::*;

use super::{Decoder, Frame};
use crate::Limits;

/// Generates a stream from valid and broken parts.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    let text = prop_oneof![
        Just(String::new()),
        "[ -~]{0,12}",
        "\\PC{0,8}",
        Just("{\"jsonrpc\":\"2.0\"}".to_owned()),
        Just(" leading".to_owned()),
        Just(":colon".to_owned()),
    ];
    let field = prop_oneof![
        4 => Just("data:"),
        4 => Just("data: "),
        1 => Just("data"),
        1 => Just("event: "),
        2 => Just("id: "),
        1 => Just(": "),
        1 => Just("other: "),
        1 => Just("data :"),
    ];
    let line = (field, text, end.clone()).prop_map(|(field, text, end)| match field {
        "data" => format!("data{end}"),
        _ => format!("{field}{text}{end}"),
    });
    let block = (prop::collection::vec(line, 0..5), end).prop_map(|(lines, end)| lines.concat() + end);
    prop::collection::vec(block, 0..8).prop_map(|blocks| blocks.concat().into_bytes())
}

fn decode(input: &[u8], cuts: &[usize]) -> Vec<Frame> {
    let mut decoder = Decoder::new(&Limits::default());
    let mut frames = Vec::new();
    let mut rest = input;
    let mut cuts = cuts.iter().cycle();
    while !rest.is_empty() {
        let size = cuts.next().map_or(rest.len(), |cut| (*cut).clamp(1, rest.len()));
        let (part, tail) = rest.split_at(size);
        decoder.push(Bytes::copy_from_slice(part));
        while let Some(frame) = decoder.next_frame() {
            frames.push(frame);
        }
        rest = tail;
    }
    frames
}

/// The output of the other decoder: the data of each message that is not blank.
async fn other_decode(input: &[u8]) -> Vec<String> {
    let chunk = Ok::<_, std::convert::Infallible>(Bytes::copy_from_slice(input));
    let events = futures::stream::iter([chunk]).eventsource().map(Result::unwrap);
    let messages = events.filter_map(async |event| {
        let message = matches!(&*event.event, "" | "message") && !event.data.trim_ascii().is_empty();
        message.then_some(event.data)
    });
    messages.collect().await
}

/// The other decoder deviates from the standard: it does not drop a byte order mark.
fn comparable(input: &[u8]) -> bool {
    !String::from_utf8_lossy(input).contains('\u{feff}')
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn any_chunking_gives_the_same_frames(input in streams(), cuts in prop::collection::vec(1..40usize, 1..8)) {
        prop_assert_eq!(decode(&input, &cuts), decode(&input, &[input.len().max(1)]));
    }

    #[test]
    fn any_bytes_at_all_give_the_same_frames_in_any_chunking(
        input in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), Just(b'd'), any::<u8>()], 0..200),
        cuts in prop::collection::vec(1..10usize, 1..4),
    ) {
        prop_assert_eq!(decode(&input, &cuts), decode(&input, &[input.len().max(1)]));
    }

    #[test]
    fn another_decoder_finds_the_same_events(mut input in streams(), cuts in prop::collection::vec(1..40usize, 1..8)) {
        // This decoder treats a CR at the end as a line ending; the other one waits for an LF.
        input.extend_from_slice(b": the end\n");
        let frames = decode(&input, &cuts);
        prop_assume!(comparable(&input));
        let ours: Vec<String> = frames
            .iter()
            .filter_map(|frame| match frame {
                Frame::Event { data, .. } => Some(String::from_utf8_lossy(data).into_owned()),
                _ => None,
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        prop_assert_eq!(ours, runtime.block_on(other_decode(&input)));
    }
}
