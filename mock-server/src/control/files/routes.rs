//! The routes, their parameters and responses.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Json, Router,
    body::{Body, BodyDataStream},
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use futures::{Stream, StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio_util::io::{ReaderStream, StreamReader, SyncIoBridge};

use super::{
    entry::{DirectoryEntry, Stat},
    path::VirtualPath,
    root::{Contents, Existing},
    unpack::{Unpacked, unpack},
    write::Draft,
};
use crate::{
    control::{
        extract::{Parameters, blocking},
        plane::Shared,
    },
    problem::Problem,
};

/// How much of a file is read at once.
const CHUNK_BYTES: usize = 256 * 1024;

/// How much of a rejected body is read and discarded. Otherwise the sender would see a connection reset
/// instead of the response.
const MAX_DISCARDED_BYTES: u64 = 64 * 1024 * 1024;

pub(in crate::control) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/fs/entries", get(entries))
        .route("/v1/fs/file", get(read).put(write))
        .route("/v1/fs/entry", delete(remove))
        .route("/v1/fs/mkdir", post(make_directory))
        .route("/v1/fs/move", post(rename))
        .route("/v1/fs/stat", get(stat))
        .route("/v1/fs/upload-batch", post(upload))
}

#[derive(Debug, Deserialize)]
struct PathQuery {
    path: String,
}

#[derive(Debug, Deserialize)]
struct OptionalPathQuery {
    #[serde(default)]
    path: String,
}

#[derive(Debug, Deserialize)]
struct DeleteQuery {
    path: String,
    #[serde(default)]
    recursive: bool,
}

#[derive(Debug, Deserialize)]
struct Move {
    from: String,
    to: String,
    #[serde(default)]
    overwrite: Option<bool>,
}

/// Why a streamed body was rejected.
#[derive(Debug)]
enum Refusal {
    Problem(Problem),
    TooLarge,
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Problem(problem) => problem.into_response(),
            Self::TooLarge => {
                let text = "Failed to buffer the request body: length limit exceeded";
                (StatusCode::PAYLOAD_TOO_LARGE, text).into_response()
            }
        }
    }
}

async fn entries(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<OptionalPathQuery>,
) -> Result<Json<Vec<DirectoryEntry>>, Problem> {
    let path = VirtualPath::parse(&query.path)?;
    blocking(move || shared.files.entries(&path)).await.map(Json)
}

async fn stat(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<PathQuery>,
) -> Result<Json<Stat>, Problem> {
    let path = VirtualPath::parse(&query.path)?;
    blocking(move || shared.files.stat(&path)).await.map(Json)
}

async fn read(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<PathQuery>,
) -> Result<Response, Problem> {
    let path = VirtualPath::parse(&query.path)?;
    let (file, size) = blocking(move || shared.files.open_file(&path)).await?;
    // The length was already announced, so appended data is not part of the response.
    let content = tokio::fs::File::from_std(file).take(size);
    let body = Body::from_stream(ReaderStream::with_capacity(content, CHUNK_BYTES));
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, size.to_string()),
    ];
    Ok((headers, body).into_response())
}

async fn write(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<PathQuery>,
    request: Request,
) -> Result<Json<Value>, Refusal> {
    let announced = announced_length(&request);
    let mut body = request.into_body().into_data_stream();
    let written = write_body(&shared, &query.path, announced, &mut body).await;
    if written.is_err() {
        discard(&mut body).await;
    }
    written.map(Json)
}

async fn write_body(
    shared: &Arc<Shared>,
    path: &str,
    announced: Option<u64>,
    body: &mut BodyDataStream,
) -> Result<Value, Refusal> {
    let limit = shared.body_limit;
    if announced > Some(limit as u64) {
        return Err(Refusal::TooLarge);
    }
    let path = VirtualPath::parse(path)?;
    let shown = path.shown().to_owned();
    let files = shared.files.clone();
    let mut draft = blocking(move || Draft::begin(&files, path)).await?;
    let mut taken = 0;
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| Problem::stream_error(error.to_string()))?;
        taken += chunk.len();
        if taken > limit {
            return Err(Refusal::TooLarge);
        }
        draft.write(&chunk).await?;
    }
    let written = draft.finish().await?;
    Ok(json!({ "path": shown, "bytesWritten": written }))
}

async fn remove(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<DeleteQuery>,
) -> Result<Json<Value>, Problem> {
    let path = VirtualPath::parse(&query.path)?;
    let contents = if query.recursive { Contents::Delete } else { Contents::Keep };
    blocking(move || {
        shared.files.delete(&path, contents)?;
        Ok(Json(json!({ "path": path.shown() })))
    })
    .await
}

async fn make_directory(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<PathQuery>,
) -> Result<Json<Value>, Problem> {
    let path = VirtualPath::parse(&query.path)?;
    blocking(move || {
        shared.files.make_directory(&path)?;
        Ok(Json(json!({ "path": path.shown() })))
    })
    .await
}

async fn rename(State(shared): State<Arc<Shared>>, Json(order): Json<Move>) -> Result<Json<Value>, Problem> {
    let from = VirtualPath::parse(&order.from)?;
    let to = VirtualPath::parse(&order.to)?;
    let existing = if order.overwrite == Some(true) { Existing::Replace } else { Existing::Refuse };
    blocking(move || {
        shared.files.rename(&from, &to, existing)?;
        Ok(Json(json!({ "from": from.shown(), "to": to.shown() })))
    })
    .await
}

async fn upload(
    State(shared): State<Arc<Shared>>,
    Parameters(query): Parameters<OptionalPathQuery>,
    request: Request,
) -> Result<Json<Unpacked>, Refusal> {
    let base = match acceptable_upload(&request, &query.path, shared.body_limit) {
        Ok(base) => base,
        Err(refusal) => {
            discard(&mut request.into_body().into_data_stream()).await;
            return Err(refusal);
        }
    };
    let exceeded = Arc::new(AtomicBool::new(false));
    let body = limited(request.into_body().into_data_stream(), shared.body_limit, Arc::clone(&exceeded));
    let mut archive = SyncIoBridge::new(StreamReader::new(Box::pin(body)));
    let unpacked = blocking(move || {
        let unpacked = unpack(&shared.files, &base, &mut archive);
        // An archive may be followed by padding, which does not matter.
        let _ = io::copy(&mut archive.take(MAX_DISCARDED_BYTES), &mut io::sink());
        unpacked
    })
    .await;
    if exceeded.load(Ordering::Relaxed) {
        return Err(Refusal::TooLarge);
    }
    Ok(Json(unpacked?))
}

/// Checks an upload before its body is read. Returns its target.
fn acceptable_upload(request: &Request, path: &str, limit: usize) -> Result<VirtualPath, Refusal> {
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !content_type.is_some_and(|value| value.starts_with("application/x-tar")) {
        return Err(Problem::invalid_request("content-type must be application/x-tar").into());
    }
    if announced_length(request) > Some(limit as u64) {
        return Err(Refusal::TooLarge);
    }
    Ok(VirtualPath::parse(path)?)
}

fn announced_length(request: &Request) -> Option<u64> {
    request.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads and discards data for a limited time.
async fn discard(body: &mut BodyDataStream) {
    let mut discarded = 0;
    while let Some(Ok(chunk)) = body.next().await {
        discarded += chunk.len() as u64;
        if discarded > MAX_DISCARDED_BYTES {
            return;
        }
    }
}

/// A body that fails when it exceeds the limit, and records that.
fn limited(
    body: BodyDataStream,
    limit: usize,
    exceeded: Arc<AtomicBool>,
) -> impl Stream<Item = io::Result<bytes::Bytes>> {
    stream::unfold((Some(body), 0), move |(body, taken)| {
        let exceeded = Arc::clone(&exceeded);
        async move {
            let mut body = body?;
            let chunk = match body.next().await? {
                Ok(chunk) => chunk,
                Err(error) => return Some((Err(io::Error::other(error)), (None, taken))),
            };
            let taken = taken + chunk.len();
            if taken <= limit {
                return Some((Ok(chunk), (Some(body), taken)));
            }
            exceeded.store(true, Ordering::Relaxed);
            discard(&mut body).await;
            Some((Err(io::Error::other("length limit exceeded")), (None, taken)))
        }
    })
}
