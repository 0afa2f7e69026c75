use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};

use super::connection::{Connection, Connections, Unreadable};
use super::message::{fault_in, method_of, reconcile};

const CONNECTION: &str = "acp-connection-id";
const SESSION: &str = "acp-session-id";

/// The cookie that binds a client to this server.
const COOKIE: &str = "acp_affinity";

/// The routes of `/acp`, and the official server's own `/health`.
pub(crate) fn routes(connections: Arc<Connections>) -> Router {
    Router::new()
        .route("/acp", get(stream).post(post).delete(close))
        .route("/health", get(|| async { "ok" }))
        .with_state(connections)
}

async fn post(State(connections): State<Arc<Connections>>, headers: HeaderMap, body: Bytes) -> Response {
    let content_type = text(&headers, header::CONTENT_TYPE.as_str()).unwrap_or_default();
    if !content_type.to_ascii_lowercase().starts_with("application/json") {
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json").into_response();
    }
    let Ok(body) = str::from_utf8(&body) else {
        return (StatusCode::BAD_REQUEST, "body must be UTF-8").into_response();
    };
    let message: Option<Value> = crate::json::from_slice(body.as_bytes()).ok();
    if message.as_ref().is_some_and(Value::is_array) {
        let error = json!({ "code": -32600, "message": "batch requests are not supported" });
        let body = json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string();
        let json = [(header::CONTENT_TYPE, "application/json")];
        return (StatusCode::BAD_REQUEST, json, body).into_response();
    }
    if let Some(message) = &message
        && method_of(message) == Some("initialize")
        && message.get("id").is_some()
    {
        return initialize(&connections, message.clone()).await;
    }
    let connection = match connection(&connections, &headers) {
        Ok(connection) => connection,
        Err(refusal) => return refusal,
    };
    match message {
        Some(message) if fault_in(body).is_none() => take(&connections, &connection, &headers, message).await,
        _ => {
            connection.publish(&fault_in(body).unwrap_or(Value::Null));
            StatusCode::ACCEPTED.into_response()
        }
    }
}

async fn take(
    connections: &Connections,
    connection: &Connection,
    headers: &HeaderMap,
    mut message: Value,
) -> Response {
    let session = text(headers, SESSION);
    if let Err(refusal) = reconcile(&mut message, session) {
        return (StatusCode::BAD_REQUEST, refusal).into_response();
    }
    let strict = connections.core.config.strict_session_header;
    if strict && session.is_none() && connection.answers_session_request(&message) {
        return (StatusCode::BAD_REQUEST, "Acp-Session-Id header required").into_response();
    }
    connection.deliver(message).await;
    StatusCode::ACCEPTED.into_response()
}

/// Opens a connection. A rejected `initialize` leaves none behind; an agent that dies causes a 500.
async fn initialize(connections: &Arc<Connections>, message: Value) -> Response {
    let config = &connections.core.config;
    let named = message.pointer("/params/_meta/sandboxagent.dev/agent").and_then(Value::as_str);
    let first = || config.agents.keys().next().map(String::as_str);
    let agent = named.or(config.default_agent.as_deref()).or_else(first).unwrap_or("mock").to_owned();
    let opened = connections.open(&agent, message).await;
    let Some((connection, answer)) = opened else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let Ok(answer) = answer.await else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let json = [(header::CONTENT_TYPE, "application/json")];
    let mut response = (json, answer.to_string()).into_response();
    if answer.get("error").is_some() {
        connections.close(&connection.id);
        return response;
    }
    name(&mut response, CONNECTION, &connection.id);
    if config.sticky_cookie {
        name(&mut response, "set-cookie", &format!("{COOKIE}={}; Path=/", connection.id));
    }
    response
}

async fn stream(State(connections): State<Arc<Connections>>, headers: HeaderMap) -> Response {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if !accepts.into_iter().any(|value| value.contains("text/event-stream")) {
        return (StatusCode::NOT_ACCEPTABLE, "Accept must contain text/event-stream").into_response();
    }
    let connection = match connection(&connections, &headers) {
        Ok(connection) => connection,
        Err(refusal) => return refusal,
    };
    let session = text(&headers, SESSION);
    let tap = match connection.read(session) {
        Ok(tap) => tap,
        Err(Unreadable::Held) => {
            return (StatusCode::CONFLICT, "outbound stream already has a subscriber").into_response();
        }
        Err(Unreadable::Unknown) => {
            return (StatusCode::NOT_FOUND, "unknown Acp-Session-Id").into_response();
        }
    };
    let kind = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    let mut response = (kind, tap.into_body()).into_response();
    name(&mut response, CONNECTION, &connection.id);
    if let Some(session) = session {
        name(&mut response, SESSION, session);
    }
    response
}

async fn close(State(connections): State<Arc<Connections>>, headers: HeaderMap) -> Response {
    match connection(&connections, &headers) {
        Ok(connection) if connections.close(&connection.id) => StatusCode::ACCEPTED.into_response(),
        Ok(_) => StatusCode::NOT_FOUND.into_response(),
        Err(refusal) => refusal,
    }
}

/// Returns the connection that a request names. Without its cookie, a client has reached the wrong server,
/// which does not know the connection.
#[allow(clippy::result_large_err, reason = "the refusal is the response, made once per request")]
fn connection(connections: &Connections, headers: &HeaderMap) -> Result<Arc<Connection>, Response> {
    let Some(id) = text(headers, CONNECTION) else {
        return Err((StatusCode::BAD_REQUEST, "Acp-Connection-Id header required").into_response());
    };
    let cookie = format!("{COOKIE}={id}");
    let mut cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let bound = cookies.any(|value| value.split(';').any(|pair| pair.trim() == cookie));
    if connections.core.config.sticky_cookie && !bound {
        return Err(StatusCode::NOT_FOUND.into_response());
    }
    connections.get(id).ok_or_else(|| StatusCode::NOT_FOUND.into_response())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn name(response: &mut Response, header: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(header, value);
    }
}
