//! Terminals over lost, hostile and slow WebSockets.

use std::time::Duration;

use futures::future::BoxFuture;
use mock_server::{MockServer, State};
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::ControlPlane;
use sandbox_agent_sdk::control::processes::{CreateProcess, Processes};
use sandbox_agent_sdk::control::terminal::{ProcessTerminal, TerminalEvent};
use sandbox_agent_sdk::limits::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::stub::Stub;
use crate::support::{plane, soon};

/// Reads until the terminal has printed a text.
async fn see(terminal: &mut ProcessTerminal, text: &str) {
    let mut seen = String::new();
    while !seen.contains(text) {
        match soon(terminal.next()).await {
            Some(TerminalEvent::Data(bytes)) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{other:?} before {text:?}, after {seen:?}"),
        }
    }
}

#[tokio::test]
async fn a_lost_socket_is_a_typed_event_and_can_be_attached_again() {
    let server = MockServer::start().await;
    let processes = plane(&server).processes();
    let shell = processes.create(CreateProcess::new("sh").tty(true)).await.unwrap();
    let mut terminal = processes.connect_terminal(&shell.id).await.unwrap();
    assert_eq!(terminal.process_id(), shell.id);
    terminal.send_input("kept=42\n").await.unwrap();
    see(&mut terminal, "kept=42").await;
    server.restart(State::Preserved).await;
    let end = async {
        loop {
            match terminal.next().await {
                Some(TerminalEvent::Data(_)) => {}
                other => return other,
            }
        }
    };
    let end = soon(end).await;
    assert!(matches!(end, Some(TerminalEvent::Disconnected(Error::ConnectionLost { .. }))), "{end:?}");
    assert!(terminal.next().await.is_none());
    let mut terminal = processes.connect_terminal(&shell.id).await.unwrap();
    terminal.send_input("echo $((kept + 1))\n").await.unwrap();
    see(&mut terminal, "43").await;
    terminal.close().await;
    assert!(processes.get(&shell.id).await.unwrap().is_running());
}

#[tokio::test]
async fn the_token_of_a_terminal_is_only_in_the_header() {
    let server = MockServer::builder().token("s3cret").start().await;
    let processes = ControlPlane::builder(server.url()).token("s3cret").build().unwrap().processes();
    let shell = processes.create(CreateProcess::new("cat").tty(true)).await.unwrap();
    processes.connect_terminal(&shell.id).await.unwrap().close().await;
    let requests = server.requests_to("GET", &format!("/v1/processes/{}/terminal/ws", shell.id));
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].header("authorization"), Some("Bearer s3cret"));
    assert_eq!(requests[0].query, "");
    let wrong = ControlPlane::builder(server.url()).token("wrong").build().unwrap().processes();
    let error = wrong.connect_terminal(&shell.id).await.unwrap_err();
    assert!(error.is_unauthorized(), "{error:?}");
}

#[tokio::test]
async fn a_terminal_uses_no_other_http_client_than_that_of_the_application() {
    // Settings, their acknowledgement, and a response with status 200 in HTTP/2.
    const SETTINGS: [u8; 18] = [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0];
    const HEADERS: [u8; 10] = [0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88];
    let stub = Stub::serve(|head, mut stream| {
        Box::pin(async move {
            assert!(head.starts_with("PRI "), "another client: {head}");
            let _ = stream.write_all(&[&SETTINGS[..], &HEADERS[..]].concat()).await;
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        })
    })
    .await;
    let http = sandbox_agent_sdk::connection::http_client_builder().http2_prior_knowledge().build().unwrap();
    let control = ControlPlane::builder(&stub.url).http_client(http).build().unwrap();
    let error = soon(control.processes().connect_terminal("proc_1")).await.unwrap_err();
    assert!(matches!(&error, Error::Config(_)), "{error:?}");
    assert!(error.to_string().contains("HTTP/1.1"), "{error}");
    assert_eq!(stub.heads().len(), 1);
}

/// A server whose WebSocket a test controls.
async fn socket<F>(accept: fn(&str) -> String, serve: F) -> (Stub, Processes)
where
    F: Fn(TcpStream) -> BoxFuture<'static, ()> + Clone + Send + Sync + 'static,
{
    let stub = Stub::serve(move |head, mut stream| {
        let serve = serve.clone();
        Box::pin(async move {
            let key = head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: ")).unwrap();
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                 sec-websocket-accept: {}\r\n\r\n",
                accept(key)
            );
            let _ = stream.write_all(head.as_bytes()).await;
            serve(stream).await;
        })
    })
    .await;
    let processes = ControlPlane::new(&stub.url).unwrap().processes();
    (stub, processes)
}

fn right(key: &str) -> String {
    derive_accept_key(key.as_bytes())
}

/// Builds an unmasked frame, as servers send it.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match payload.len() {
        length @ 0..126 => frame.push(length as u8),
        length @ 126..65536 => {
            frame.push(126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            frame.push(127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    frame
}

const READY: &[u8] = br#"{"type":"ready","processId":"proc_1"}"#;

async fn until_closed(mut stream: TcpStream) {
    let mut buffer = [0; 1024];
    while matches!(stream.read(&mut buffer).await, Ok(1..)) {}
}

#[tokio::test]
async fn a_socket_that_is_not_a_terminal_is_an_error() {
    let (_stub, processes) = socket(|_| "nonsense".to_owned(), |stream| Box::pin(until_closed(stream))).await;
    let error = soon(processes.connect_terminal("proc_1")).await.unwrap_err();
    assert!(matches!(error, Error::UnexpectedBody { status: 101, .. }), "{error:?}");
    let (_stub, processes) = socket(right, |mut stream| {
        Box::pin(async move {
            let _ = stream.write_all(&frame(1, br#"{"type":"exit","exitCode":0}"#)).await;
            until_closed(stream).await;
        })
    })
    .await;
    let error = soon(processes.connect_terminal("proc_1")).await.unwrap_err();
    assert!(matches!(error, Error::UnexpectedBody { .. }), "{error:?}");
}

#[tokio::test]
async fn hostile_frames_end_the_terminal_and_unknown_ones_do_not() {
    let huge = [&[0x82, 127][..], &(1_u64 << 40).to_be_bytes()].concat();
    for hostile in [frame(1, b"no json"), frame(1, b"\xff\xfe"), huge, vec![0xff; 16]] {
        let (_stub, processes) = socket(right, move |mut stream| {
            let hostile = hostile.clone();
            Box::pin(async move {
                let unknown = frame(1, br#"{"type":"later","x":1}"#);
                let frames =
                    [frame(1, READY), unknown, frame(9, b"ping"), frame(2, b"data"), hostile].concat();
                let _ = stream.write_all(&frames).await;
                until_closed(stream).await;
            })
        })
        .await;
        let mut terminal = soon(processes.connect_terminal("proc_1")).await.unwrap();
        let first = soon(terminal.next()).await;
        assert!(matches!(&first, Some(TerminalEvent::Data(bytes)) if bytes == "data"), "{first:?}");
        let end = soon(terminal.next()).await;
        assert!(matches!(end, Some(TerminalEvent::Disconnected(_))), "{end:?}");
        assert!(soon(terminal.next()).await.is_none());
    }
}

/// A server that sends these frames, and its processes within these limits.
async fn sending(frames: Vec<u8>, limits: Limits) -> (Stub, Processes) {
    let (stub, _) = socket(right, move |mut stream| {
        let frames = frames.clone();
        Box::pin(async move {
            let _ = stream.write_all(&frames).await;
            until_closed(stream).await;
        })
    })
    .await;
    let processes = ControlPlane::builder(&stub.url).limits(limits).build().unwrap().processes();
    (stub, processes)
}

#[tokio::test]
async fn a_message_of_a_terminal_is_read_up_to_the_limit_and_not_above() {
    const LIMIT: usize = 1000;
    // In one frame, and in two.
    let split = |size: usize| {
        let mut frames = [frame(2, &vec![b'x'; size - 10]), frame(0, &[b'x'; 10])];
        frames[0][0] &= 0x7f;
        frames.concat()
    };
    for size in [LIMIT - 1, LIMIT, LIMIT + 1] {
        for message in [frame(2, &vec![b'x'; size]), split(size)] {
            let frames = [frame(1, READY), message].concat();
            let (_stub, processes) = sending(frames, Limits::default().terminal_message(LIMIT)).await;
            let mut terminal = soon(processes.connect_terminal("proc_1")).await.unwrap();
            match soon(terminal.next()).await.unwrap() {
                TerminalEvent::Data(bytes) => assert!(size <= LIMIT && bytes.len() == size, "{size}"),
                TerminalEvent::Disconnected(Error::MessageTooLarge { limit: LIMIT, .. }) => {
                    assert!(size > LIMIT)
                }
                other => panic!("{size}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn the_process_id_of_a_terminal_is_accepted_up_to_the_limit_and_not_above() {
    for length in [1023, 1024, 1025] {
        let ready = format!(r#"{{"type":"ready","processId":"{}"}}"#, "x".repeat(length));
        let (_stub, processes) = sending(frame(1, ready.as_bytes()), Limits::default()).await;
        match soon(processes.connect_terminal("proc_1")).await {
            Ok(terminal) => assert!(length <= 1024 && terminal.process_id().len() == length, "{length}"),
            Err(Error::UnexpectedBody { start, .. }) => {
                assert!(length > 1024 && start.contains("1024"), "{start}")
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_servers_end_marker_of_a_terminal_is_dropped_only_at_its_end() {
    const MARK: &[u8] = b"\n[process stream error: I/O error (os error 5)]\n";
    let (_stub, processes) = socket(right, |mut stream| {
        Box::pin(async move {
            let exit = frame(1, br#"{"type":"exit","exitCode":null}"#);
            let frames =
                [frame(1, READY), frame(2, MARK), frame(2, MARK), frame(2, b"x"), frame(2, MARK), exit]
                    .concat();
            let _ = stream.write_all(&frames).await;
            until_closed(stream).await;
        })
    })
    .await;
    let mut terminal = soon(processes.connect_terminal("proc_1")).await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = soon(terminal.next()).await {
        match event {
            TerminalEvent::Data(bytes) => seen.push(bytes.to_vec()),
            event => seen.push(format!("{event:?}").into_bytes()),
        }
    }
    assert_eq!(seen, [MARK, MARK, b"x", b"Exit(Signal)"]);
}

#[tokio::test]
async fn an_unread_terminal_applies_backpressure() {
    const FRAME: usize = 64 * 1024;
    const FRAMES: usize = 1024;
    let (blocked, mut blocks) = mpsc::channel(1);
    let (_stub, processes) = socket(right, move |mut stream| {
        let blocked = blocked.clone();
        Box::pin(async move {
            let _ = stream.write_all(&frame(1, READY)).await;
            let data = frame(2, &[7; FRAME]);
            for sent in 0..FRAMES {
                let write = stream.write_all(&data);
                tokio::pin!(write);
                if tokio::time::timeout(Duration::from_millis(500), &mut write).await.is_err() {
                    let _ = blocked.try_send(sent);
                    let _ = write.await;
                }
            }
            let _ = stream.write_all(&frame(1, br#"{"type":"exit","exitCode":0}"#)).await;
            until_closed(stream).await;
        })
    })
    .await;
    let mut terminal = soon(processes.connect_terminal("proc_1")).await.unwrap();
    let sent = soon(blocks.recv()).await.unwrap();
    assert!(sent < FRAMES / 2, "{sent} frames were accepted without a reader");
    let mut received = 0;
    loop {
        match soon(terminal.next()).await {
            Some(TerminalEvent::Data(bytes)) => received += bytes.len(),
            Some(TerminalEvent::Exit(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, FRAME * FRAMES, "nothing is lost");
}
