//! Terminals over a WebSocket.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{
        Path, State,
        ws::{Message, WebSocket, WebSocketUpgrade},
    },
    response::Response,
};
use futures::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{log::Stream, process::Process, routes::decode};
use crate::{
    control::{extract::Lifeline, plane::Shared},
    problem::Problem,
};

/// The largest frame from a client.
const MAX_FRAME_BYTES: usize = 1024 * 1024;

/// How many rejections may be queued.
const REFUSALS: usize = 16;

/// How many entries are read from the log at once.
const BATCH: usize = 16;

/// A frame from a client.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
enum Frame {
    Input {
        data: String,
        #[serde(default)]
        encoding: Option<String>,
    },
    Resize {
        cols: u16,
        rows: u16,
    },
    Close,
}

pub(super) async fn attach(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    lifeline: Option<Extension<Lifeline>>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Problem> {
    let process = shared.processes.get(&id)?;
    process.require_terminal()?;
    let limit = shared.processes.limits().max_input_bytes_per_request;
    let upgrade = upgrade.max_message_size(MAX_FRAME_BYTES).max_frame_size(MAX_FRAME_BYTES);
    Ok(upgrade.on_upgrade(move |socket| serve(socket, process, limit, lifeline)))
}

/// Serves one socket until the process exits, the client closes it, or the server stops.
async fn serve(
    socket: WebSocket,
    process: Arc<Process>,
    input_limit: usize,
    lifeline: Option<Extension<Lifeline>>,
) {
    let mut deleted = process.deleted.subscribe();
    let (sink, stream) = socket.split();
    // Writing input may block; output continues meanwhile.
    let (refuse, refused) = mpsc::channel(REFUSALS);
    tokio::select! {
        () = output(sink, &process, refused) => {}
        () = input(stream, &process, input_limit, refuse) => {}
        _ = deleted.wait_for(|deleted| *deleted) => {}
        () = cut(lifeline) => {}
    }
}

/// Completes when the connection must end; never without a lifeline.
async fn cut(lifeline: Option<Extension<Lifeline>>) {
    match lifeline {
        Some(Extension(lifeline)) => lifeline.cut().await,
        None => std::future::pending().await,
    }
}

/// Sends new output of the process, and its exit.
async fn output(
    mut sink: SplitSink<WebSocket, Message>,
    process: &Process,
    mut refused: mpsc::Receiver<String>,
) {
    let (mut last, mut exit) = (process.log.last(), process.exit.subscribe());
    let mut since = *last.borrow_and_update();
    let ready = json!({ "processId": process.id, "type": "ready" });
    if sink.send(text(&ready)).await.is_err() {
        return;
    }
    loop {
        last.borrow_and_update();
        let exited = *exit.borrow_and_update();
        let entries = process.log.next(Stream::Pty, since, BATCH);
        if let Some(newest) = entries.last() {
            since = newest.sequence;
            for entry in entries {
                if sink.send(Message::Binary(entry.data)).await.is_err() {
                    return;
                }
            }
            continue;
        }
        if let Some(exited) = exited {
            // The client may already be gone.
            let _ = sink.send(text(&json!({ "exitCode": exited.code, "type": "exit" }))).await;
            let _ = sink.close().await;
            return;
        }
        tokio::select! {
            changed = last.changed() => if changed.is_err() { return },
            changed = exit.changed() => if changed.is_err() { return },
            message = refused.recv() => {
                let Some(message) = message else { return };
                if sink.send(text(&json!({ "message": message, "type": "error" }))).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Handles frames of the client until it closes the socket.
async fn input(
    mut stream: SplitStream<WebSocket>,
    process: &Process,
    limit: usize,
    refuse: mpsc::Sender<String>,
) {
    while let Some(Ok(message)) = stream.next().await {
        let done = match message {
            Message::Text(frame) => match serde_json::from_str(&frame) {
                Ok(Frame::Close) => return,
                Ok(Frame::Resize { cols, rows }) => {
                    process.resize(cols, rows).map_err(|problem| detail(&problem))
                }
                Ok(Frame::Input { data, encoding }) => {
                    write(process, &data, encoding.as_deref(), limit).await
                }
                Err(error) => Err(format!("invalid terminal frame: {error}")),
            },
            Message::Binary(_) => Err("binary input is not supported; use text JSON frames".to_owned()),
            Message::Close(_) => return,
            Message::Ping(_) | Message::Pong(_) => Ok(()),
        };
        if let Err(message) = done
            && refuse.send(message).await.is_err()
        {
            return;
        }
    }
}

async fn write(process: &Process, data: &str, encoding: Option<&str>, limit: usize) -> Result<(), String> {
    let bytes = decode(data, encoding.unwrap_or("utf8")).map_err(|problem| detail(&problem))?;
    if bytes.len() > limit {
        return Err(format!("invalid request: input payload exceeds maxInputBytesPerRequest ({limit})"));
    }
    process.write(&bytes).await.map_err(|problem| detail(&problem))
}

fn detail(problem: &Problem) -> String {
    problem.detail_text().unwrap_or_default().to_owned()
}

fn text(value: &Value) -> Message {
    Message::text(value.to_string())
}
