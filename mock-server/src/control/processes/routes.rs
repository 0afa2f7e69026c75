//! The routes, their parameters and responses.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::{get, post},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures::{StreamExt, stream};
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    limits::Limits,
    log::Stream,
    process::Process,
    registry::Order,
    run::{Run, run},
    terminal::attach,
};
use crate::{
    control::{extract::Parameters, plane::Shared},
    problem::Problem,
};

/// How long a stream may be silent before a comment is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How many entries are read from the log at once.
const BATCH: usize = 64;

pub(in crate::control) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/processes", get(list).post(create))
        .route("/v1/processes/config", get(limits).post(set_limits))
        .route("/v1/processes/run", post(run_command))
        .route("/v1/processes/{id}", get(info).delete(delete))
        .route("/v1/processes/{id}/stop", post(stop))
        .route("/v1/processes/{id}/kill", post(kill))
        .route("/v1/processes/{id}/logs", get(logs))
        .route("/v1/processes/{id}/input", post(input))
        .route("/v1/processes/{id}/terminal/resize", post(resize))
        .route("/v1/processes/{id}/terminal/ws", get(attach))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Owner {
    User,
    Desktop,
    System,
}

#[derive(Debug, Deserialize)]
struct ListQuery {
    #[serde(default)]
    owner: Option<Owner>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SignalQuery {
    #[serde(default)]
    wait_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct LogsQuery {
    #[serde(default)]
    stream: Option<Stream>,
    #[serde(default)]
    tail: Option<usize>,
    #[serde(default)]
    since: Option<u64>,
    #[serde(default)]
    follow: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Input {
    data: String,
    #[serde(default)]
    encoding: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Size {
    cols: u16,
    rows: u16,
}

async fn limits(State(shared): State<Arc<Shared>>) -> Json<Limits> {
    Json(shared.processes.limits())
}

async fn set_limits(
    State(shared): State<Arc<Shared>>,
    Json(limits): Json<Limits>,
) -> Result<Json<Limits>, Problem> {
    shared.processes.set_limits(limits).map(Json)
}

async fn run_command(
    State(shared): State<Arc<Shared>>,
    Json(order): Json<Run>,
) -> Result<Json<Value>, Problem> {
    run(&shared.processes, order).await.map(Json)
}

async fn create(State(shared): State<Arc<Shared>>, Json(order): Json<Order>) -> Result<Json<Value>, Problem> {
    shared.processes.create(order).map(|process| Json(process.info()))
}

async fn list(State(shared): State<Arc<Shared>>, Parameters(query): Parameters<ListQuery>) -> Json<Value> {
    // All processes belong to the user.
    let wanted = query.owner.is_none_or(|owner| owner == Owner::User);
    let processes = shared.processes.all();
    let infos: Vec<Value> = processes.iter().filter(|_| wanted).map(|process| process.info()).collect();
    Json(json!({ "processes": infos }))
}

async fn info(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    shared.processes.get(&id).map(|process| Json(process.info()))
}

async fn delete(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    shared.processes.delete(&id).map(|()| StatusCode::NO_CONTENT)
}

async fn stop(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Parameters(query): Parameters<SignalQuery>,
) -> Result<Json<Value>, Problem> {
    signal(&shared, &id, Signal::SIGTERM, query.wait_ms.unwrap_or(2000)).await
}

async fn kill(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Parameters(query): Parameters<SignalQuery>,
) -> Result<Json<Value>, Problem> {
    signal(&shared, &id, Signal::SIGKILL, query.wait_ms.unwrap_or(1000)).await
}

async fn signal(shared: &Shared, id: &str, signal: Signal, wait_ms: u64) -> Result<Json<Value>, Problem> {
    let process = shared.processes.get(id)?;
    process.signal(signal, Duration::from_millis(wait_ms)).await;
    Ok(Json(process.info()))
}

async fn logs(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Parameters(query): Parameters<LogsQuery>,
) -> Result<Response, Problem> {
    let process = shared.processes.get(&id)?;
    let stream = query.stream.unwrap_or(process.stream());
    let last_seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let since = query.since.max(last_seen).unwrap_or_default();
    let entries = process.log.read(stream, since, query.tail);
    if query.follow != Some(true) {
        let page = json!({ "processId": id, "stream": stream, "entries": entries });
        return Ok(Json(page).into_response());
    }
    // Entries before the tail are not sent later either.
    let begin = match (entries.first(), query.tail) {
        (Some(first), Some(_)) => first.sequence - 1,
        (None, Some(_)) => *process.log.last().borrow(),
        (_, None) => since,
    };
    Ok(follow(&process, stream, begin))
}

/// Streams the log as it grows, until the record is deleted.
fn follow(process: &Arc<Process>, stream: Stream, since: u64) -> Response {
    let (log, last) = (process.log.clone(), process.log.last());
    let deleted = process.deleted.subscribe();
    let batches = stream::unfold((since, last, deleted), move |(since, mut last, mut deleted)| {
        let log = log.clone();
        async move {
            loop {
                last.borrow_and_update();
                let entries = log.next(stream, since, BATCH);
                if let Some(newest) = entries.last().map(|entry| entry.sequence) {
                    return Some((entries, (newest, last, deleted)));
                }
                tokio::select! {
                    changed = last.changed() => changed.ok()?,
                    _ = deleted.wait_for(|deleted| *deleted) => return None,
                }
            }
        }
    });
    let events = batches.flat_map(stream::iter).map(|entry| {
        let event = Event::default().event("log").id(entry.sequence.to_string());
        Ok::<_, Infallible>(event.json_data(&entry).unwrap_or_default())
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

async fn input(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Json(input): Json<Input>,
) -> Result<Json<Value>, Problem> {
    let process = shared.processes.get(&id)?;
    let bytes = decode(&input.data, input.encoding.as_deref().unwrap_or("base64"))?;
    let limit = shared.processes.limits().max_input_bytes_per_request;
    if bytes.len() > limit {
        return Err(Problem::too_large(format!("input payload exceeds maxInputBytesPerRequest ({limit})")));
    }
    process.write(&bytes).await?;
    Ok(Json(json!({ "bytesWritten": bytes.len() })))
}

/// Decodes the bytes of an input.
pub(super) fn decode(data: &str, encoding: &str) -> Result<Vec<u8>, Problem> {
    match encoding {
        "base64" => STANDARD
            .decode(data)
            .map_err(|error| Problem::invalid_request(format!("invalid base64 input: {error}"))),
        "utf8" | "text" => Ok(data.as_bytes().to_vec()),
        _ => Err(Problem::invalid_request("encoding must be one of: base64, utf8, text")),
    }
}

async fn resize(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Json(size): Json<Size>,
) -> Result<Json<Value>, Problem> {
    shared.processes.get(&id)?.resize(size.cols, size.rows)?;
    Ok(Json(json!({ "cols": size.cols, "rows": size.rows })))
}
