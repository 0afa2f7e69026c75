//! What POST, GET and DELETE share: endpoint, token, headers, cookies, connection id.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use reqwest::{
    Method, RequestBuilder, Response, StatusCode,
    cookie::{CookieStore, Jar},
    header::{COOKIE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER, SET_COOKIE},
};
use url::Url;

use super::{HttpSendError, sender::Sender};
use crate::{Auth, Dialect, Error, HttpError, TokenUse, error::Cause};

/// How much of an error body is kept.
const ERROR_BODY_BYTES: usize = 64 * 1024;
/// How much of a body that is not JSON-RPC is shown.
const START_CHARS: usize = 1024;
/// How long the beginning of such a body may take.
const START_PATIENCE: Duration = Duration::from_secs(2);

/// What a transport is made of.
#[derive(Debug)]
pub(crate) struct TransportConfig {
    pub(crate) http: Sender,
    pub(crate) endpoint: Url,
    pub(crate) bootstrap_query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    pub(crate) auth: Auth,
    pub(crate) dialect: Dialect,
    pub(crate) message_limit: usize,
    pub(crate) connection_id: Option<HeaderValue>,
}

/// Sends requests to the one endpoint of a connection.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(super) config: TransportConfig,
    /// The endpoint with the query of the first POST.
    pub(super) bootstrap: Url,
    connection_id: OnceLock<(HeaderName, HeaderValue)>,
    cookies: Jar,
    has_cookies: AtomicBool,
}

impl Transport {
    pub(crate) fn new(config: TransportConfig) -> Self {
        let mut bootstrap = config.endpoint.clone();
        if !config.bootstrap_query.is_empty() {
            bootstrap.query_pairs_mut().extend_pairs(&config.bootstrap_query);
        }
        let connection_id = OnceLock::new();
        if let (Some(id), Some(name)) =
            (&config.connection_id, config.dialect.id_headers().into_iter().next())
        {
            let _ = connection_id.set((name, id.clone()));
        }
        Self {
            config,
            bootstrap,
            connection_id,
            cookies: Jar::default(),
            has_cookies: AtomicBool::new(false),
        }
    }

    /// The connection id that the server handed out.
    pub(crate) fn connection_id(&self) -> Option<&HeaderValue> {
        self.connection_id.get().map(|(_, id)| id)
    }

    /// Asks the server to close the connection.
    pub(crate) async fn delete(&self) -> Result<(), Error> {
        let request = |auth| self.request(Method::DELETE, &self.config.endpoint, auth);
        let response = self.send(request).await.map_err(|error| lost("close", error))?;
        match response.status() {
            status if status.is_success() || matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) => {
                Ok(())
            }
            _ => Err(refused("close", response).await),
        }
    }

    /// A request with everything that goes with each of them.
    pub(super) fn request(&self, method: Method, url: &Url, auth: Option<HeaderValue>) -> RequestBuilder {
        let mut headers = self.config.headers.clone();
        if let Some(auth) = auth {
            headers.insert(reqwest::header::AUTHORIZATION, auth);
        }
        if let Some((name, id)) = self.connection_id.get() {
            headers.insert(name.clone(), id.clone());
        }
        if self.has_cookies.load(Ordering::Acquire)
            && let Some(cookies) = self.cookies.cookies(url)
        {
            headers.insert(COOKIE, cookies);
        }
        self.config.http.request(method, url.clone()).headers(headers)
    }

    /// Sends what `build` makes; on 401, once more with a refreshed token.
    pub(super) async fn send(
        &self,
        build: impl Fn(Option<HeaderValue>) -> RequestBuilder,
    ) -> Result<Response, SendError> {
        let auth = self.config.auth.header(TokenUse::Request).await?;
        let response = self.config.http.send(build(auth)).await?;
        self.learn(&response);
        if response.status() != StatusCode::UNAUTHORIZED || !self.config.auth.can_refresh() {
            return Ok(response);
        }
        let auth = self.config.auth.header(TokenUse::Refresh).await?;
        let response = self.config.http.send(build(auth)).await?;
        self.learn(&response);
        Ok(response)
    }

    /// Keeps cookies and the connection id.
    fn learn(&self, response: &Response) {
        let headers = response.headers();
        if headers.contains_key(SET_COOKIE) {
            self.cookies.set_cookies(&mut headers.get_all(SET_COOKIE).iter(), &self.config.endpoint);
            self.has_cookies.store(true, Ordering::Release);
        }
        if self.connection_id.get().is_none() && response.status().is_success() {
            let names = self.config.dialect.id_headers();
            let found =
                names.into_iter().find_map(|name| headers.get(&name).map(|id| (name.clone(), id.clone())));
            if let Some((name, id)) = found.filter(|(_, id)| !id.is_empty()) {
                let _ = self.connection_id.set((name, id));
            }
        }
    }
}

/// A request that brought no response.
#[derive(Debug)]
pub(super) enum SendError {
    /// It never left: no token, no connection.
    NotSent(Error),
    /// It may have arrived.
    Lost(Cause),
}

impl From<Error> for SendError {
    fn from(error: Error) -> Self {
        Self::NotSent(error)
    }
}

impl From<HttpSendError> for SendError {
    fn from(error: HttpSendError) -> Self {
        match error {
            HttpSendError::NotSent(cause) => Self::NotSent(Error::Unreachable(cause)),
            HttpSendError::Lost(cause) => Self::Lost(cause),
        }
    }
}

/// The error for a request that brought no response and has no stream to wait for.
pub(super) fn lost(what: &str, error: SendError) -> Error {
    match error {
        SendError::NotSent(error) => error,
        SendError::Lost(source) => Error::ConnectionLost { method: what.to_owned(), source },
    }
}

/// Turns a response that is no success into an error, keeping its body.
pub(super) async fn refused(what: &str, response: Response) -> Error {
    let status = response.status();
    let headers = response.headers();
    let text =
        |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::to_owned);
    if status.is_redirection() {
        return Error::Redirected { status: status.as_u16(), location: text(LOCATION).map(without_query) };
    }
    let content_type = text(reqwest::header::CONTENT_TYPE);
    let retry_after = text(RETRY_AFTER).and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    let body = read_start(response, ERROR_BODY_BYTES).await;
    Error::Http(Box::new(
        HttpError::new(what, status.as_u16(), content_type, &body).with_retry_after(retry_after),
    ))
}

/// A redirect may carry a token in its query, and an error must not.
fn without_query(location: String) -> String {
    location.split(['?', '#']).next().unwrap_or_default().to_owned()
}

/// The error for a success whose body is something else than was asked for.
pub(super) async fn unexpected(response: Response) -> Error {
    let status = response.status().as_u16();
    let content_type = content_type(&response);
    let start = read_start(response, 4 * START_CHARS).await;
    let start = String::from_utf8_lossy(&start).chars().take(START_CHARS).collect();
    Error::UnexpectedBody { status, content_type, start }
}

pub(super) fn content_type(response: &Response) -> Option<String> {
    let value = response.headers().get(reqwest::header::CONTENT_TYPE)?;
    value.to_str().ok().map(str::to_owned)
}

/// Reads the beginning of a body, for a bounded time; what goes wrong after that does not matter.
async fn read_start(mut response: Response, limit: usize) -> Bytes {
    let mut body = BytesMut::new();
    let until = tokio::time::Instant::now() + START_PATIENCE;
    while body.len() < limit {
        match tokio::time::timeout_at(until, response.chunk()).await {
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            Ok(Ok(None) | Err(_)) | Err(_) => break,
        }
    }
    body.truncate(limit);
    body.freeze()
}
