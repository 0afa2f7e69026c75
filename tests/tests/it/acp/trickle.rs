//! A stream that brings its events a few bytes at a time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use acp_http_client::AcpHttpClient;
use mock_server::{Echo, Step};
use sdk_tests::{acp_server, prompt, session, texts, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// So few bytes at a time, and so long between them: an update of [`TEXT`] characters takes longer than any quiet that a
/// client waits for, and no pause within it does.
const PIECE: usize = 10;
const PAUSE: Duration = Duration::from_millis(40);
const TEXT: usize = 600;

/// A line to a server that can be slow.
struct Line {
    url: String,
    slow: Arc<AtomicBool>,
    proxy: JoinHandle<()>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.proxy.abort();
    }
}

impl Line {
    async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = server.trim_start_matches("http://").to_owned();
        let slow = Arc::new(AtomicBool::new(false));
        let slowly = slow.clone();
        let proxy = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(pass(client, server.clone(), slowly.clone()));
            }
        });
        Self { url, slow, proxy }
    }
}

/// Forwards both directions. While the line is slow, an event stream is forwarded in small pieces.
async fn pass(client: TcpStream, server: String, slow: Arc<AtomicBool>) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut buffer = [0; 4096];
    let length = from_client.read(&mut buffer).await?;
    to_server.write_all(&buffer[..length]).await?;
    let is_stream = buffer.starts_with(b"GET");
    let there = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let back = async {
        let mut ticks = tokio::time::interval(PAUSE);
        let mut buffer = [0; 4096];
        loop {
            let length = from_server.read(&mut buffer).await?;
            if length == 0 {
                return Ok(());
            }
            if !is_stream || !slow.load(Ordering::SeqCst) {
                to_client.write_all(&buffer[..length]).await?;
                continue;
            }
            for piece in buffer[..length].chunks(PIECE) {
                ticks.tick().await;
                to_client.write_all(piece).await?;
            }
        }
    };
    tokio::select! {
        ended = there => ended,
        ended = back => ended,
    }
}

#[tokio::test]
async fn a_response_waits_for_an_event_that_is_arriving() {
    for echo in [Echo::BodyAndStream, Echo::BodyOnly] {
        let text = "x".repeat(TEXT);
        let said = text.clone();
        let server = acp_server(move |_| vec![Step::Say(said.clone())]).echo(echo).start().await;
        let line = Line::to(server.url()).await;
        let client = AcpHttpClient::builder(&line.url).build().unwrap();
        let mut events = client.events();
        let session = session(&client).await;
        line.slow.store(true, Ordering::SeqCst);
        within("the prompt", prompt(&client, &session, "go")).await.unwrap();
        assert_eq!(texts(&mut events), [text], "{echo:?}");
        assert_eq!(client.diagnostics().reconnects, 0);
    }
}
