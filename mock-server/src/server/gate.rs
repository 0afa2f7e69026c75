use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::time::Instant;
use tower_service::Service;

use super::core::{Admission, Core, Echo};
use super::journal::RecordedRequest;
use super::socket::Socket;
use crate::fault::{Fault, Moment, Reply, Shape};
use crate::problem::Problem;

/// The body limit of the released server, on every route that buffers one.
const BODY_LIMIT: usize = 2 * 1024 * 1024;

/// The body limit of the official transport.
const OFFICIAL_BODY_LIMIT: usize = 16 * 1024 * 1024;

/// An HTML page like that of a proxy or a login page.
const PAGE: &str = "<!DOCTYPE html>\n<html><body><h1>Sign in</h1></body></html>\n";

/// Overrides where the response to one request goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EchoOverride(pub(crate) Echo);

/// The layer between the sockets and the routes: records each request and applies faults.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    pub(crate) core: Arc<Core>,
    pub(crate) routes: Router,
}

impl Gate {
    /// Serves one request of the connection behind `socket`.
    pub(crate) async fn serve(self, request: Request<Incoming>, socket: Arc<Socket>) -> Response {
        let (verb, path) = (request.method().clone(), request.uri().path().to_owned());
        let official = matches!(path.as_str(), "/acp" | "/health");
        let mut response = self.answer(request, socket).await;
        tracing::debug!(%verb, path, status = response.status().as_u16(), "answered");
        if !official {
            // The released server sends this header on every response, whether origins are configured or not.
            let vary = "origin, access-control-request-method, access-control-request-headers";
            response.headers_mut().insert(header::VARY, HeaderValue::from_static(vary));
        }
        response
    }

    async fn answer(self, request: Request<Incoming>, socket: Arc<Socket>) -> Response {
        if self.core.config.local_hosts_only && !is_local(&request) {
            let text = "this server serves requests to localhost only";
            return (StatusCode::FORBIDDEN, text).into_response();
        }
        let verb = request.method().as_str().to_owned();
        let path = request.uri().path().to_owned();
        let unread = Moment { verb: &verb, path: &path, method: None };
        if let Some(response) = self.before_body(&request, &unread, &socket).await {
            return response;
        }
        let (request, body) = match self.read(request).await {
            Ok(read) => read,
            Err(response) => return response,
        };
        let method = rpc_method(&body);
        let moment = Moment { verb: &verb, path: &path, method: method.as_deref() };
        match *request.method() {
            Method::OPTIONS => self.preflight(request).await,
            Method::POST => self.post(request, &moment, socket).await,
            Method::GET if is_stream(&path) => self.stream(request, &moment, socket).await,
            Method::DELETE => self.delete(request, &moment).await,
            _ => self.forward(request).await,
        }
    }

    /// Applies faults that fire before the body is read.
    async fn before_body(
        &self,
        request: &Request<Incoming>,
        moment: &Moment<'_>,
        socket: &Socket,
    ) -> Option<Response> {
        let ready = self.core.faults.strike_since(moment, |fault, since| match fault {
            Fault::SlowStart { delay } => Some(since + *delay).filter(|ready| *ready > Instant::now()),
            _ => None,
        });
        if let Some(ready) = ready {
            tokio::time::sleep_until(ready).await;
        }
        let is = |wanted: Fault| move |fault: &Fault| (*fault == wanted).then_some(());
        if moment.verb == "POST"
            && self.core.faults.strike_unread(moment, is(Fault::PostResetBeforeRead)).is_some()
        {
            self.record(request.method(), request.uri(), request.headers(), Bytes::new());
            return Some(reset(socket).await);
        }
        let to = self.core.faults.strike_unread(moment, |fault| match fault {
            Fault::Redirect { to } => Some(to.clone()),
            _ => None,
        })?;
        self.record(request.method(), request.uri(), request.headers(), Bytes::new());
        Some((StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response())
    }

    /// Reads the body, records the request and prepares it for the routes.
    async fn read(&self, request: Request<Incoming>) -> Result<(Request, Bytes), Response> {
        let (parts, body) = request.into_parts();
        let own = if parts.uri.path() == "/acp" { OFFICIAL_BODY_LIMIT } else { BODY_LIMIT };
        let limit = self.core.config.body_limit.unwrap_or(own);
        let read = Limited::new(body, limit).collect().await.map(|body| body.to_bytes());
        self.record(&parts.method, &parts.uri, &parts.headers, read.as_ref().cloned().unwrap_or_default());
        match read {
            Ok(bytes) => Ok((Request::from_parts(parts, Body::from(bytes.clone())), bytes)),
            Err(error) if error.is::<LengthLimitError>() => {
                let text = "Failed to buffer the request body: length limit exceeded";
                Err((StatusCode::PAYLOAD_TOO_LARGE, text).into_response())
            }
            Err(_) => Err(StatusCode::BAD_REQUEST.into_response()),
        }
    }

    async fn post(&self, mut request: Request, moment: &Moment<'_>, socket: Arc<Socket>) -> Response {
        let struck = self.core.faults.strike(moment, |fault| {
            matches!(
                fault,
                Fault::PostStatus { .. }
                    | Fault::PostHangs
                    | Fault::PostResetBeforeRead
                    | Fault::PostResetAfterRead { .. }
                    | Fault::ResponseOnStreamOnly
                    | Fault::ResponseInBodyOnly
                    | Fault::BodyBeforeUpdates { .. }
                    | Fault::HtmlBody
            )
            .then(|| fault.clone())
        });
        match struck {
            None => self.forward(request).await,
            Some(Fault::PostStatus { status, execute, reply }) => {
                if execute {
                    self.execute(request);
                }
                forced(status, reply.unwrap_or_default())
            }
            Some(Fault::PostHangs) => {
                self.execute(request);
                std::future::pending().await
            }
            Some(Fault::PostResetAfterRead { execute }) => {
                if execute {
                    self.execute(request);
                }
                reset(&socket).await
            }
            Some(Fault::ResponseOnStreamOnly) => {
                self.execute(request);
                StatusCode::ACCEPTED.into_response()
            }
            Some(Fault::ResponseInBodyOnly) => {
                request.extensions_mut().insert(EchoOverride(Echo::BodyOnly));
                self.forward(request).await
            }
            Some(Fault::BodyBeforeUpdates { delay }) => self.body_first(request, delay).await,
            Some(Fault::HtmlBody) => {
                self.execute(request);
                page()
            }
            Some(_) => reset(&socket).await,
        }
    }

    /// Responds while every stream is held back, and releases them some time after the body was sent.
    async fn body_first(&self, request: Request, delay: Duration) -> Response {
        let logs = self.core.logs();
        logs.iter().for_each(|log| log.hold());
        let response = self.forward(request).await;
        self.core.background.spawn(async move {
            tokio::time::sleep(delay).await;
            logs.iter().for_each(|log| log.release());
        });
        response
    }

    async fn stream(&self, request: Request, moment: &Moment<'_>, socket: Arc<Socket>) -> Response {
        let struck = self.core.faults.strike(moment, |fault| {
            matches!(fault, Fault::StreamRefused { .. } | Fault::StreamAcceptThenClose | Fault::HtmlStream)
                .then(|| fault.clone())
        });
        match struck {
            Some(Fault::StreamRefused { status }) => return forced(status, Reply::default()),
            Some(Fault::StreamAcceptThenClose) => {
                return ([(header::CONTENT_TYPE, "text/event-stream")], Body::empty()).into_response();
            }
            Some(_) => return page(),
            None => {}
        }
        let response = self.forward(request).await;
        let is_events = response.headers().get(header::CONTENT_TYPE)
            == Some(&HeaderValue::from_static("text/event-stream"));
        if !is_events {
            return response;
        }
        let shape = Shape::decide(&self.core.faults, moment);
        let (parts, body) = response.into_parts();
        Response::from_parts(parts, shape.apply(body, Some(socket)))
    }

    async fn delete(&self, request: Request, moment: &Moment<'_>) -> Response {
        let hangs =
            self.core.faults.strike(moment, |fault| (*fault == Fault::DeleteHangs).then_some(())).is_some();
        if hangs {
            self.execute(request);
            return std::future::pending().await;
        }
        self.forward(request).await
    }

    /// Handles a CORS preflight, like the released server without configured origins.
    async fn preflight(&self, request: Request) -> Response {
        let asks = [header::ORIGIN, header::ACCESS_CONTROL_REQUEST_METHOD];
        let is_preflight = asks.iter().all(|name| request.headers().contains_key(name));
        let mut response = self.forward(request).await;
        if is_preflight && response.status() == StatusCode::METHOD_NOT_ALLOWED {
            *response.status_mut() = StatusCode::OK;
            for name in [header::ACCESS_CONTROL_ALLOW_METHODS, header::ACCESS_CONTROL_ALLOW_HEADERS] {
                response.headers_mut().insert(name, HeaderValue::from_static("*"));
            }
        }
        response
    }

    async fn forward(&self, request: Request) -> Response {
        let mut routes = self.routes.clone();
        match routes.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// Executes a request whose response is discarded.
    fn execute(&self, request: Request) {
        let mut routes = self.routes.clone();
        self.core.background.spawn(async move {
            let Ok(_response): Result<Response, Infallible> = routes.call(request).await;
        });
    }

    fn record(&self, verb: &Method, uri: &axum::http::Uri, headers: &axum::http::HeaderMap, body: Bytes) {
        let method = rpc_method(&body);
        tracing::debug!(%verb, path = uri.path(), bytes = body.len(), method, "request");
        self.core.journal.record(RecordedRequest {
            method: verb.as_str().to_owned(),
            path: uri.path().to_owned(),
            query: uri.query().unwrap_or_default().to_owned(),
            headers: headers.clone(),
            body,
            at: SystemTime::now(),
        });
    }
}

/// Rejects requests without a valid token. Applied to the routes themselves, so that an unknown path is 404.
pub(crate) async fn authorize(State(core): State<Arc<Core>>, request: Request, next: Next) -> Response {
    let verb = request.method().as_str().to_owned();
    let path = request.uri().path().to_owned();
    if !(path.starts_with("/v1/") || path == "/acp") {
        return next.run(request).await;
    }
    let moment = Moment { verb: &verb, path: &path, method: None };
    let token = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    let in_query = query_token(&request);
    let token = token.or(in_query.as_deref());
    let limit = core.faults.peek(&moment, |fault| match fault {
        Fault::TokenExpiresAfter { requests } => Some(*requests),
        _ => None,
    });
    match core.tokens.admit(token, limit) {
        Admission::Passed => next.run(request).await,
        Admission::Refused => Problem::token_invalid().into_response(),
        Admission::Expired => {
            core.faults.count(&Fault::TokenExpiresAfter { requests: 0 });
            Problem::token_invalid().into_response()
        }
    }
}

/// Returns the token in the query. The released server accepts it, because browsers cannot send headers with
/// a WebSocket.
fn query_token(request: &Request) -> Option<String> {
    if !request.uri().path().ends_with("/terminal/ws") {
        return None;
    }
    let pairs: Vec<(String, String)> = serde_urlencoded::from_str(request.uri().query()?).ok()?;
    pairs.into_iter().find_map(|(name, value)| (name == "access_token").then_some(value))
}

/// Whether a request names this machine as its host.
fn is_local<B>(request: &Request<B>) -> bool {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    // HTTP/2 has the host in the URI.
    let Some(authority) = request.uri().authority().map(Authority::as_str).or(header) else { return false };
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn rpc_method(body: &Bytes) -> Option<String> {
    let value: serde_json::Value = crate::json::from_slice(body).ok()?;
    Some(value.get("method")?.as_str()?.to_owned())
}

/// Whether a GET of this path opens an event stream.
fn is_stream(path: &str) -> bool {
    path == "/v1/rpc" || path == "/acp" || path.starts_with("/v1/acp/")
}

async fn reset(socket: &Socket) -> Response {
    socket.reset();
    std::future::pending().await
}

fn page() -> Response {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE).into_response()
}

/// Builds a response that a test defined. An invalid status or header becomes a plain 500, which exposes the
/// mistake in the test.
fn forced(status: u16, reply: Reply) -> Response {
    let mut response = Response::builder().status(status);
    for (name, value) in
        reply.content_type.map(|kind| ("content-type".to_owned(), kind)).into_iter().chain(reply.headers)
    {
        response = response.header(name, value);
    }
    response
        .body(Body::from(reply.body))
        .unwrap_or_else(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response())
}
