use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use serde_json::{Value, json};

use super::entry::{Entry, sorted};
use super::pi;
use super::table::Table;
use crate::agent::Exit;
use crate::face::accept::{events_out, json_in_and_out, last_event_id};
use crate::problem::Problem;
use crate::server::{Echo, EchoOverride};
use crate::stream::{Framing, Tap};

/// How long an agent may take to exit after its input was closed. Applies only without the released server's
/// quirks.
const EXIT_LIMIT: Duration = Duration::from_secs(2);

/// The routes of `/v1/acp`.
pub(crate) fn routes(table: Arc<Table>) -> Router {
    Router::new()
        .route("/v1/acp", get(list))
        .route("/v1/acp/{server}", get(stream).post(post).delete(close))
        .with_state(table)
}

async fn list(State(table): State<Arc<Table>>) -> Json<Value> {
    Json(json!({ "servers": table.list() }))
}

async fn post(
    State(table): State<Arc<Table>>,
    Path(server): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    echo: Option<Extension<EchoOverride>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    json_in_and_out(&headers)?;
    let mut message: Value = crate::json::from_slice(&body)
        .map_err(|error| Problem::invalid_request(format!("invalid JSON body: {error}")))?;
    let entry = table.entry(&server, query.get("agent").map(String::as_str)).await?;
    if !message.is_object() {
        return Err(Problem::invalid_request("request body must be a JSON-RPC object"));
    }
    if entry.agent == "pi" {
        pi::normalise(&mut message);
    }
    let is_request = message.get("method").is_some() && message.get("id").is_some();
    if !is_request {
        return deliver(&entry, message).await.map(|()| StatusCode::ACCEPTED.into_response());
    }
    let echo = echo.map_or(Echo::default(), |Extension(EchoOverride(echo))| echo);
    ask(&table, &entry, message, echo).await.map(|answer| Json(answer).into_response())
}

async fn deliver(entry: &Entry, message: Value) -> Result<(), Problem> {
    let broken = || Problem::stream_error("failed writing to agent stdin: Broken pipe (os error 32)");
    if entry.line.exit().is_some() {
        return Err(broken());
    }
    entry.running.deliver(message).await.map_err(|_| broken())
}

/// Passes a request to the agent and waits for the response, with the released server's timeout behaviour.
async fn ask(table: &Table, entry: &Entry, message: Value, echo: Echo) -> Result<Value, Problem> {
    let id = message.get("id").cloned().unwrap_or(Value::Null);
    let answer = entry.line.wait(&id, echo);
    if let Err(problem) = deliver(entry, message).await {
        entry.line.forget(&id);
        return Err(problem);
    }
    let config = &table.core.config;
    let quirks = config.released_quirks;
    let answered = tokio::time::timeout(config.request_timeout, async {
        tokio::select! {
            answer = answer => answer.ok(),
            () = entry.line.exited(), if !quirks => None,
        }
    });
    if let Ok(Some(answer)) = answered.await {
        return Ok(annotated(entry, answer));
    }
    entry.line.forget(&id);
    if quirks {
        // Timed out, or evicted by another request with the same id: only the agent's exit ends this wait.
        entry.line.exited().await;
    }
    match entry.line.exit() {
        Some(exit) => Err(died(&entry.agent, &exit)),
        None => Err(Problem::timeout("agent did not respond within the timeout")),
    }
}

fn died(agent: &str, exit: &Exit) -> Problem {
    let last = &exit.stderr.last;
    let stderr = (!last.is_empty()).then(|| last.join("\n"));
    Problem::agent_process_exited(agent, exit.status.code(), stderr)
}

/// Adds the agent's last stderr lines to an error. Only the body has them, not the echoed response on the
/// stream.
fn annotated(entry: &Entry, mut answer: Value) -> Value {
    let words = entry.running.stderr_tail();
    if words.is_empty() {
        return answer;
    }
    if let Some(Value::Object(error)) = answer.get_mut("error")
        && let Value::Object(data) = error.entry("data").or_insert_with(|| json!({}))
    {
        data.insert("agentStderr".to_owned(), words.join("\n").into());
        return sorted(answer);
    }
    answer
}

async fn stream(
    State(table): State<Arc<Table>>,
    Path(server): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    events_out(&headers)?;
    let seen = last_event_id(&headers)?;
    let entry = table.get(&server).ok_or_else(|| Problem::session_not_found(&server))?;
    let log = Arc::clone(&entry.line.log);
    let position = log.position_after(seen);
    let tap = Tap::open(&table.core, log, position, Framing::Numbered);
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, tap.into_body()).into_response())
}

async fn close(State(table): State<Arc<Table>>, Path(server): Path<String>) -> StatusCode {
    let Some(entry) = table.remove(&server) else { return StatusCode::NO_CONTENT };
    if entry.line.exit().is_some() {
        return StatusCode::NO_CONTENT;
    }
    if table.core.config.released_quirks {
        // The entry is held until the client gives up. Dropping it stops the agent.
        entry.line.exited().await;
        return StatusCode::NO_CONTENT;
    }
    // The agent ends although the client may give up this request.
    table.core.background.spawn(end(Arc::clone(&entry)));
    entry.line.exited().await;
    StatusCode::NO_CONTENT
}

/// Closes the input of an agent, and terminates the agent if it does not exit.
async fn end(entry: Arc<Entry>) {
    entry.running.close_input();
    if tokio::time::timeout(EXIT_LIMIT, entry.line.exited()).await.is_err() {
        entry.running.terminate();
        entry.line.exited().await;
    }
}
