//! A server that can run commands: the mock server, with the one call in front of it that it does not have.

use std::path::{Path, PathBuf};

use mock_server::MockServer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::stub::{Stub, reply, response};

/// Starts the front of a server.
pub(crate) async fn in_front_of(server: &MockServer) -> Stub {
    let (address, root) = (server.address(), server.control().root().to_owned());
    Stub::serve(move |head, stream| {
        let root = root.clone();
        Box::pin(async move {
            if head.starts_with("GET /v1/processes/config ") {
                reply(stream, response("200 OK", "application/json", "{}")).await;
            } else if head.starts_with("POST /v1/processes/run ") {
                run(&head, stream, root).await;
            } else {
                forward(&head, stream, TcpStream::connect(address).await.unwrap()).await;
            }
        })
    })
    .await
}

/// Hands one request on, and sees to it that the next one comes on a connection of its own.
async fn forward(head: &str, mut client: TcpStream, mut server: TcpStream) {
    let head = head.strip_suffix("\r\n").unwrap();
    server.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await.unwrap();
    let _ = copy_bidirectional(&mut client, &mut server).await;
}

/// Runs a command for real, with absolute paths as clients see them taken for what they are on this machine.
async fn run(head: &str, mut stream: TcpStream, root: PathBuf) {
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    let order: Value = serde_json::from_slice(&body).unwrap();
    let arguments = order["args"].as_array().unwrap().iter().map(|argument| real(&root, argument));
    let output = Command::new(order["command"].as_str().unwrap())
        .args(arguments)
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let answer = json!({
        "exitCode": output.status.code(), "timedOut": false, "durationMs": 1,
        "stdout": String::from_utf8_lossy(&output.stdout), "stdoutTruncated": false,
        "stderr": String::from_utf8_lossy(&output.stderr), "stderrTruncated": false,
    });
    reply(stream, response("200 OK", "application/json", &answer.to_string())).await;
}

fn real(root: &Path, argument: &Value) -> String {
    let argument = argument.as_str().unwrap();
    match argument.strip_prefix('/') {
        Some(inner) => root.join(inner).to_str().unwrap().to_owned(),
        None => argument.to_owned(),
    }
}
