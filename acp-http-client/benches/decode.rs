//! From bytes to messages, without a socket: this crate's decoder, sequence and parser beside their peers.
#![allow(
    dead_code,
    missing_docs,
    unused_imports,
    unreachable_pub,
    reason = "the modules are compiled in from the crate"
)]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot continue stops")]

use std::convert::Infallible;

use agent_client_protocol_schema::v1::SessionNotification;
use bytes::Bytes;
use divan::{Bencher, black_box, counter::BytesCount};
use eventsource_stream::Eventsource;
use futures::StreamExt;
use serde::Deserialize;
use sse_stream::SseStream;

#[path = "../src/dialect.rs"]
mod dialect;
#[path = "../src/events/peek.rs"]
mod events;
#[path = "../src/json/mod.rs"]
mod json;
#[path = "../src/options.rs"]
mod options;
#[path = "../src/printable.rs"]
mod printable;
#[path = "../src/rpc/mod.rs"]
mod rpc;
#[path = "../src/sse/mod.rs"]
mod sse;

use dialect::{Dialect, EventIds};
use json::Typed;
use options::Limits;
use rpc::{Body, Message};
use sse::{Decoder, Fingerprint, Frame, Identity, Sequenced};

const TCP_SEGMENT: usize = 1_460;
const SIZES: [usize; 4] = [2 << 20, 4 << 20, 8 << 20, 16 << 20];

fn main() {
    divan::main();
}

fn update(id: usize, text: &str) -> String {
    format!(
        "event: message\nid: {id}\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"sessionId\":\"s-1\",\
         \"update\":{{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{{\"type\":\"text\",\"text\":\"{text}\"}}}}}}}}\n\n"
    )
}

fn small_updates() -> Vec<u8> {
    (1..=20_000).map(|id| update(id, "some words ")).collect::<String>().into_bytes()
}

fn one_update(size: usize) -> Vec<u8> {
    update(1, &"x".repeat(size)).into_bytes()
}

fn chunks(input: &[u8], size: usize) -> Vec<Bytes> {
    let whole = Bytes::copy_from_slice(input);
    (0..whole.len()).step_by(size).map(|at| whole.slice(at..(at + size).min(whole.len()))).collect()
}

/// What the reader does with bytes: frames, sequence, messages, types.
fn ours(chunks: &[Bytes]) -> usize {
    let limits = Limits::default().message(1 << 30);
    let mut decoder = Decoder::new(&limits);
    let mut identity = Identity::new(EventIds::Sequence, None);
    let mut out = Vec::new();
    let mut count = 0;
    for chunk in chunks {
        decoder.push(chunk.clone());
        while let Some(frame) = decoder.next_frame() {
            let Frame::Event { id, data } = frame else { continue };
            identity.accept(id.as_ref(), Fingerprint::of(&data), data, |_| None, &mut out);
            for sequenced in out.drain(..) {
                let Sequenced::Item(data) = sequenced else { continue };
                let Body::Update { params } = Message::parse(data, &limits).unwrap().body else { continue };
                black_box(Typed::<SessionNotification>::read(params));
                count += 1;
            }
        }
    }
    count
}

#[derive(Deserialize)]
struct Envelope {
    params: SessionNotification,
}

fn stream(chunks: &[Bytes]) -> impl futures::Stream<Item = Result<Bytes, Infallible>> + Unpin + use<> {
    futures::stream::iter(chunks.iter().cloned().map(Ok).collect::<Vec<_>>())
}

fn typed(data: &str) {
    black_box(serde_json::from_str::<Envelope>(data).unwrap().params);
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn peer_sse_stream(chunks: &[Bytes]) -> usize {
    block_on(async {
        let mut events = SseStream::from_bytes_stream(stream(chunks));
        let mut count = 0;
        while let Some(event) = events.next().await {
            if let Some(data) = event.unwrap().data {
                typed(&data);
                count += 1;
            }
        }
        count
    })
}

fn peer_eventsource_stream(chunks: &[Bytes]) -> usize {
    block_on(async {
        let mut events = stream(chunks).eventsource();
        let mut count = 0;
        while let Some(event) = events.next().await {
            typed(&event.unwrap().data);
            count += 1;
        }
        count
    })
}

type Decode = fn(&[Bytes]) -> usize;

fn run(bencher: Bencher<'_, '_>, decode: Decode, input: &[u8], chunk: usize, events: usize) {
    let chunks = chunks(input, chunk);
    bencher
        .counter(BytesCount::new(input.len()))
        .bench_local(|| assert_eq!(decode(black_box(&chunks)), events));
}

#[divan::bench_group(name = "20,000 small updates in 64 KiB chunks")]
mod small {
    use super::{Bencher, ours, peer_eventsource_stream, peer_sse_stream, run, small_updates};

    #[divan::bench]
    fn this_crate(bencher: Bencher<'_, '_>) {
        run(bencher, ours, &small_updates(), 64 * 1024, 20_000);
    }

    #[divan::bench]
    fn sse_stream(bencher: Bencher<'_, '_>) {
        run(bencher, peer_sse_stream, &small_updates(), 64 * 1024, 20_000);
    }

    #[divan::bench(sample_count = 5)]
    fn eventsource_stream(bencher: Bencher<'_, '_>) {
        run(bencher, peer_eventsource_stream, &small_updates(), 64 * 1024, 20_000);
    }
}

#[divan::bench_group(name = "one 8 MiB update in 64 KiB chunks")]
mod large {
    use super::{Bencher, one_update, ours, peer_sse_stream, run};

    #[divan::bench]
    fn this_crate(bencher: Bencher<'_, '_>) {
        run(bencher, ours, &one_update(8 << 20), 64 * 1024, 1);
    }

    #[divan::bench]
    fn sse_stream(bencher: Bencher<'_, '_>) {
        run(bencher, peer_sse_stream, &one_update(8 << 20), 64 * 1024, 1);
    }
}

#[divan::bench_group(name = "one update in 1,460-byte chunks")]
mod segments {
    use super::{Bencher, SIZES, TCP_SEGMENT, one_update, ours, peer_sse_stream, run};

    #[divan::bench(args = SIZES)]
    fn this_crate(bencher: Bencher<'_, '_>, size: usize) {
        run(bencher, ours, &one_update(size), TCP_SEGMENT, 1);
    }

    #[divan::bench(args = SIZES)]
    fn sse_stream(bencher: Bencher<'_, '_>, size: usize) {
        run(bencher, peer_sse_stream, &one_update(size), TCP_SEGMENT, 1);
    }
}
