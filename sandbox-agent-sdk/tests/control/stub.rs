//! A server that misuses its sockets in ways that no real server does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Passes each connection to a function, with the head of its first request. Ends with the test.
pub(crate) struct Stub {
    pub(crate) url: String,
    heads: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Stub {
    pub(crate) async fn serve<F>(serve: F) -> Self
    where
        F: Fn(String, TcpStream) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let heads = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&heads);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let Some(head) = head(&mut stream).await else { continue };
                seen.lock().unwrap().push(head.clone());
                connections.spawn(serve(head, stream));
            }
        });
        Self { url, heads, task }
    }

    /// Responds to every request with the same bytes.
    pub(crate) async fn answer(answer: impl Into<String>) -> Self {
        let answer = answer.into();
        Self::serve(move |_, stream| Box::pin(reply(stream, answer.clone()))).await
    }

    /// Returns the heads of all requests, oldest first.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Builds a response with a body, after which the connection closes.
pub(crate) fn response(status: &str, content_type: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    )
}

/// Sends a response and waits until the client has read it.
pub(crate) async fn reply(mut stream: TcpStream, answer: String) {
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
    let mut rest = [0; 1024];
    let drained = async { while matches!(stream.read(&mut rest).await, Ok(1..)) {} };
    let _ = tokio::time::timeout(Duration::from_secs(5), drained).await;
}

/// Reads up to the empty line and no further.
async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}
