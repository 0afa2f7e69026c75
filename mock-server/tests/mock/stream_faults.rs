use std::time::Duration;

use mock_server::{Cut, Fault, LineEnding, MockServer};

use crate::client::{Client, Events, QUIET, SOON, prompt};

/// Returns a server with a few events, and the bytes of its stream without faults.
async fn with_history() -> (MockServer, Client, Vec<u8>) {
    let server = MockServer::builder().heartbeat(Duration::from_millis(40)).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    client.result(prompt("p", &session, "hello there")).await;
    let mut plain = client.stream(None).await;
    plain.until_response("p").await;
    let mut again = client.stream(None).await;
    let mut bytes = again.at_least(1).await;
    while !bytes.ends_with(b": heartbeat\n\n") {
        bytes.extend(again.at_least(1).await);
    }
    bytes.truncate(bytes.len() - b": heartbeat\n\n".len());
    (server, client, bytes)
}

#[tokio::test]
async fn a_stream_is_cut_at_exactly_this_byte_in_all_three_ways() {
    let (server, client, plain) = with_history().await;
    for cut in [Cut::Dropped, Cut::Clean, Cut::Reset] {
        for byte in [0, 1, 14, plain.len() / 2, plain.len() - 1, plain.len()] {
            server.inject(Fault::StreamCutAt { byte: byte as u64, cut }.times(1));
            let (seen, end) = client.stream(None).await.bytes().await;
            assert_eq!(seen, plain[..byte], "{cut:?} at {byte}");
            assert_eq!(end.is_ok(), cut == Cut::Clean, "{cut:?} at {byte}: {end:?}");
        }
    }
    assert_eq!(server.fired("StreamCutAt"), 18);
}

#[tokio::test]
async fn a_cut_far_beyond_the_socket_buffer_is_exact_too() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    server.inject(Fault::OversizeEvent { bytes: 8 << 20 });
    server.inject(Fault::StreamCutAt { byte: 6 << 20, cut: Cut::Dropped });
    let (seen, end) = client.stream(None).await.bytes().await;
    assert_eq!(seen.len(), 6 << 20);
    assert!(end.is_err());
}

#[tokio::test]
async fn a_stream_can_be_rejected() {
    let (server, client, _) = with_history().await;
    for status in [401, 404, 409, 503] {
        server.inject(Fault::StreamRefused { status }.times(1));
        assert_eq!(client.get(None).await.status().as_u16(), status);
    }
    assert_eq!(client.get(None).await.status(), 200);
}

#[tokio::test]
async fn a_stream_can_be_accepted_and_closed_at_once() {
    let (server, client, _) = with_history().await;
    server.inject(Fault::StreamAcceptThenClose.times(1));
    let (seen, end) = client.stream(None).await.bytes().await;
    assert!(seen.is_empty() && end.is_ok());
}

#[tokio::test]
async fn a_stalled_stream_is_open_and_sends_not_even_a_heartbeat() {
    let (server, client, _) = with_history().await;
    server.inject(Fault::StreamStall.times(1));
    let mut stalled = client.stream(None).await;
    assert!(stalled.is_quiet().await);
    assert_eq!(server.fired("StreamStall"), 1);
}

#[tokio::test]
async fn a_stream_can_stall_in_the_middle_of_an_event() {
    let (server, client, plain) = with_history().await;
    server.inject(Fault::StreamStallAt { byte: 40 }.times(1));
    let mut stalled = client.stream(None).await;
    assert_eq!(stalled.at_least(40).await, plain[..40]);
    assert!(stalled.is_quiet().await);
}

#[tokio::test]
async fn a_stream_can_start_with_an_event_that_never_ends() {
    let (server, client, _) = with_history().await;
    server.inject(Fault::UnterminatedEvent { bytes: 100_000 }.times(1));
    let mut events = client.stream(None).await;
    let seen = events.at_least(100_006).await;
    assert!(seen.starts_with(b"data: xxx") && seen.len() == 100_006 && !seen.contains(&b'\n'));
    assert!(events.is_quiet().await);
}

#[tokio::test]
async fn line_endings_can_be_of_any_kind() {
    let (server, client, plain) = with_history().await;
    let text = String::from_utf8(plain).unwrap();
    for (ending, expected) in [
        (LineEnding::Lf, text.clone()),
        (LineEnding::CrLf, text.replace('\n', "\r\n")),
        (LineEnding::Cr, text.replace('\n', "\r")),
    ] {
        server.inject(Fault::LineEnding(ending).times(1));
        let seen = client.stream(None).await.at_least(expected.len()).await;
        assert_eq!(String::from_utf8(seen[..expected.len()].to_vec()).unwrap(), expected, "{ending:?}");
    }
    server.inject(Fault::LineEnding(LineEnding::Mixed).times(1));
    let mixed = String::from_utf8(client.stream(None).await.at_least(text.len()).await).unwrap();
    for end in ["\n\nevent", "\r\n\r\nevent", "\r\revent"] {
        assert!(mixed.contains(end), "{end:?} in {mixed:?}");
    }
    let unified = mixed.replace("\r\n", "\n").replace('\r', "\n");
    assert!(unified.starts_with(&text), "the same lines in the same order");
}

#[tokio::test]
async fn a_stream_can_start_with_a_byte_order_mark() {
    let (server, client, plain) = with_history().await;
    server.inject(Fault::Bom.times(1));
    let seen = client.stream(None).await.at_least(plain.len() + 3).await;
    assert_eq!(seen[..3], *b"\xef\xbb\xbf");
    assert_eq!(seen[3..plain.len() + 3], plain);
}

#[tokio::test]
async fn a_stream_arrives_in_chunks_of_any_size() {
    let (server, client, plain) = with_history().await;
    for size in [1, 7, 4096] {
        server.inject(Fault::ChunkSize(size).times(1));
        let raw = raw_stream(&server, plain.len()).await;
        let chunks = decode_chunks(&raw);
        assert!(chunks.iter().all(|chunk| chunk.len() <= size), "chunks of at most {size}");
        assert_eq!(chunks.concat()[..plain.len()], plain);
        assert!(size > 7 || chunks.len() >= plain.len() / size);
    }
    drop(client);
}

#[tokio::test]
async fn a_stream_can_name_a_retry_time() {
    let (server, client, plain) = with_history().await;
    server.inject(Fault::Retry(2500).times(1));
    let expected = [b"retry: 2500\n\n", plain.as_slice()].concat();
    assert_eq!(client.stream(None).await.at_least(expected.len()).await[..expected.len()], expected);
}

#[tokio::test]
async fn a_stream_can_be_an_html_page() {
    let (server, client, _) = with_history().await;
    server.inject(Fault::HtmlStream.times(1));
    let response = client.get(None).await;
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    let (page, end) = Events::new(response).bytes().await;
    assert!(page.starts_with(b"<!DOCTYPE html>") && end.is_ok());
}

#[tokio::test]
async fn open_streams_are_counted_until_their_reader_disconnects() {
    let (server, client, _) = with_history().await;
    let first = client.stream(None).await;
    let second = client.stream(None).await;
    assert!(server.open_streams() >= 2);
    drop((first, second));
    assert!(server.wait_for_streams(|count| count == 0, SOON).await, "the server notices");
}

/// Reads the raw bytes of a stream response, including the head.
async fn raw_stream(server: &MockServer, at_least: usize) -> Vec<u8> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    socket.write_all(b"GET /v1/rpc HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut raw = Vec::new();
    let mut buffer = [0; 65_536];
    while decode_chunks(&raw).concat().len() < at_least {
        let count = tokio::time::timeout(QUIET * 20, socket.read(&mut buffer)).await.unwrap().unwrap();
        assert!(count > 0, "the stream stays open");
        raw.extend_from_slice(&buffer[..count]);
    }
    raw
}

/// Returns the complete chunks of a chunked response.
fn decode_chunks(raw: &[u8]) -> Vec<Vec<u8>> {
    let Some(head) = raw.windows(4).position(|window| window == b"\r\n\r\n") else { return Vec::new() };
    let mut rest = &raw[head + 4..];
    let mut chunks = Vec::new();
    while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        let Some(chunk) = rest.get(line + 2..line + 2 + size) else { break };
        chunks.push(chunk.to_vec());
        rest = rest.get(line + 4 + size..).unwrap_or_default();
    }
    chunks
}
