//! Detects the kind of server.

use std::sync::Arc;
use std::time::Duration;

use acp_http_client::Dialect;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response};
use serde_json::Value;
use tokio::time::Instant;

use crate::control::{Call, Http, Route};
use crate::convert::text::OneLine;
use crate::error::{Phase, Timeout};
use crate::{ClientOptions, Error, ServerKind};

/// The name of the call in errors.
const WHAT: &str = "find the kind of server";

/// An event number that no server reaches: a probe needs no earlier events.
const NO_EVENT: &str = "9007199254740991";
/// The first pause between two probes of a server that is not up.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest one.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The endpoint of a server, and its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) kind: ServerKind,
    pub(crate) path: &'static str,
    /// The header of the connection id, if the server assigns one.
    pub(crate) header: HeaderName,
}

impl Endpoint {
    fn new(kind: ServerKind) -> Self {
        let path = if kind == ServerKind::ConnectionId { "/v2/rpc" } else { "/v1/rpc" };
        Self { kind, path, header: Dialect::X_ACP_CONNECTION_ID }
    }
}

/// Detects the kind of server. Waits for a server that is not up.
pub(super) async fn find(options: &ClientOptions, http: &Http) -> Result<Endpoint, Error> {
    if let Some(kind) = options.server.filter(|kind| *kind != ServerKind::ConnectionId) {
        return Ok(Endpoint::new(kind));
    }
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match look(http, options.server).await {
            Ok(endpoint) => {
                tracing::debug!(kind = %endpoint.kind, path = endpoint.path, "found the kind of server");
                return Ok(endpoint);
            }
            Err(error) if may_pass(&error) => error,
            Err(error) => return Err(error),
        };
        let left = options.timeouts.start.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(not_up(error, started.elapsed()));
        }
        tracing::debug!(error = %OneLine(&error), "the server is not up");
        tokio::time::sleep(pause.min(left)).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

async fn look(http: &Http, fixed: Option<ServerKind>) -> Result<Endpoint, Error> {
    let response = open(http, "/v1/rpc").await?;
    let status = response.status().as_u16();
    match status {
        200 if is_event_stream(&response) => Ok(Endpoint::new(fixed.unwrap_or(ServerKind::Shared))),
        400 => {
            let error = http.refused(WHAT, response).await;
            let detail = error.problem().and_then(|problem| problem.detail.as_deref()).unwrap_or_default();
            let header = [Dialect::X_ACP_CONNECTION_ID, Dialect::ACP_CONNECTION_ID]
                .into_iter()
                .find(|header| detail.contains(header.as_str()));
            match header {
                Some(header) => Ok(Endpoint { kind: ServerKind::ConnectionId, path: "/v1/rpc", header }),
                None => Ok(Endpoint::new(ServerKind::Shared)),
            }
        }
        // The endpoint exists: another reader holds the stream, or the server rejects the form of this request.
        405 | 406 | 409 => Ok(Endpoint::new(ServerKind::Shared)),
        // Early servers respond with 410 to every path under `/v1`.
        410 => Ok(Endpoint::new(ServerKind::ConnectionId)),
        404 => look_elsewhere(http, http.refused(WHAT, response).await).await,
        200 => {
            let content_type = response.headers().get(CONTENT_TYPE);
            let content_type = content_type.and_then(|value| value.to_str().ok()).map(str::to_owned);
            Err(Error::UnexpectedBody { status, content_type, start: String::new() })
        }
        _ => Err(http.refused(WHAT, response).await),
    }
}

/// Checks the other kinds of servers: released servers list their agents' endpoints, and early servers have another
/// path.
async fn look_elsewhere(http: &Http, missing: Error) -> Result<Endpoint, Error> {
    match http.value::<Value>(Ok(Call::new(WHAT, Method::GET, Route::new("/v1/acp")))).await {
        Ok(list) if list.get("servers").is_some() => return Ok(Endpoint::new(ServerKind::PerAgent)),
        Ok(_) => {}
        Err(error) if error.is_not_found() || matches!(error, Error::UnexpectedBody { .. }) => {}
        Err(error) => return Err(error),
    }
    let early = open(http, "/v2/rpc").await?;
    match early.status().as_u16() {
        400 | 200 => Ok(Endpoint::new(ServerKind::ConnectionId)),
        401 => Err(http.refused(WHAT, early).await),
        _ => Err(missing),
    }
}

/// Requests the events of an endpoint after a number that it has not reached.
async fn open(http: &Http, path: &'static str) -> Result<Response, Error> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    headers.insert("last-event-id", HeaderValue::from_static(NO_EVENT));
    http.raw(WHAT, Method::GET, Route::new(path), headers).await
}

fn is_event_stream(response: &Response) -> bool {
    let media = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media.is_some_and(|media| media.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

/// Whether a server with this error may still be starting.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Unreachable(_) | Error::ConnectionLost { .. } => true,
        Error::Http(http) => matches!(http.status, 429 | 502 | 503 | 504),
        _ => false,
    }
}

/// A server that was never reached is unreachable; one that responded is unhealthy.
fn not_up(error: Error, waited: Duration) -> Error {
    if matches!(error, Error::Unreachable(_)) {
        return error;
    }
    let mut timeout = Timeout::new(Phase::Health, "connect", waited);
    timeout.cause = Some(Arc::new(error));
    Error::Timeout(Box::new(timeout))
}
