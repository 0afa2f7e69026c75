//! Common parts of POST, GET and DELETE: endpoint, token, headers, cookies, connection id.

use std::{
    future::Future,
    sync::OnceLock,
    time::{Duration, SystemTime},
};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE},
};
use reqwest::{RequestBuilder, Response};
use url::Url;

use super::{
    HttpSendError, cookies::Cookies, handover::empty_body, plain_http::warn_of_plain_http,
    retry_after::retry_after, sender::Sender,
};
use crate::{Auth, Dialect, Error, HttpError, Limits, TokenUse, error::Cause};

/// How much of a body that is not JSON-RPC is stored.
const START_CHARS: usize = 1024;
/// How long reading the beginning of such a body may take.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// The settings of a transport.
#[derive(Debug)]
pub(crate) struct TransportConfig {
    pub(crate) http: Sender,
    pub(crate) endpoint: Url,
    pub(crate) bootstrap_query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    pub(crate) auth: Auth,
    pub(crate) dialect: Dialect,
    pub(crate) limits: Limits,
    pub(crate) connection_id: Option<HeaderValue>,
}

/// Sends requests to the endpoint of a connection.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(super) config: TransportConfig,
    /// The endpoint with the query of the first POST.
    pub(super) bootstrap: Url,
    connection_id: OnceLock<(HeaderName, HeaderValue)>,
    cookies: Cookies,
}

impl Transport {
    pub(crate) fn new(config: TransportConfig) -> Self {
        let mut bootstrap = config.endpoint.clone();
        if !config.bootstrap_query.is_empty() {
            bootstrap.query_pairs_mut().extend_pairs(&config.bootstrap_query);
        }
        let connection_id = OnceLock::new();
        if let (Some(id), Some(name)) = (&config.connection_id, config.dialect.id_headers().first()) {
            let _ = connection_id.set((name.clone(), id.clone()));
        }
        Self { cookies: Cookies::new(config.limits.cookies), config, bootstrap, connection_id }
    }

    /// The connection id that the server assigned.
    pub(crate) fn connection_id(&self) -> Option<&HeaderValue> {
        self.connection_id.get().map(|(_, id)| id)
    }

    /// Makes an error from a response that is not a success, with the beginning of its body.
    pub(super) async fn refused(&self, what: &str, response: Response) -> Error {
        refused(what, response, self.config.limits.error_body).await
    }

    /// Asks the server to close the connection. Returns `None` if there is no response within this time after the
    /// request was handed to the HTTP connection.
    pub(crate) async fn delete(&self, within: Option<Duration>) -> Option<Result<(), Error>> {
        let attempt = |auth| async move {
            let (body, taken) = empty_body();
            let request = self.request(Method::DELETE, &self.config.endpoint, auth).body(body);
            let silent = async {
                taken.await;
                match within {
                    Some(within) => tokio::time::sleep(within).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                response = self.config.http.send(request) => response.map_err(|error| NoResponse::Failed(error.into())),
                () = silent => Err(NoResponse::Silent),
            }
        };
        Some(match self.authorized(attempt).await {
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) if matches!(response.status(), StatusCode::NOT_FOUND | StatusCode::GONE) => Ok(()),
            Ok(response) => Err(self.refused("close", response).await),
            Err(NoResponse::Failed(error)) => Err(lost("close", error)),
            Err(NoResponse::Silent) => return None,
        })
    }

    /// A request with the headers that every request has.
    pub(super) fn request(&self, method: Method, url: &Url, auth: Option<HeaderValue>) -> RequestBuilder {
        let mut headers = self.config.headers.clone();
        if let Some(auth) = auth {
            headers.insert(AUTHORIZATION, auth);
        }
        if let Some((name, id)) = self.connection_id.get() {
            headers.insert(name.clone(), id.clone());
        }
        if let Some(cookies) = self.cookies.header(url) {
            headers.insert(COOKIE, cookies);
        }
        self.config.http.request(method, url.clone()).headers(headers)
    }

    /// Sends the request that `build` makes; on 401, once more with a refreshed token.
    pub(super) async fn send(
        &self,
        build: impl Fn(Option<HeaderValue>) -> RequestBuilder,
    ) -> Result<Response, SendError> {
        let attempt = |auth| {
            let request = build(auth);
            async { Ok(self.config.http.send(request).await?) }
        };
        self.authorized(attempt).await
    }

    /// Makes an attempt with a token; on 401, one more with a refreshed token.
    async fn authorized<F, E>(&self, attempt: impl Fn(Option<HeaderValue>) -> F) -> Result<Response, E>
    where
        F: Future<Output = Result<Response, E>>,
        E: From<Error>,
    {
        let auth = self.config.auth.header(TokenUse::Request).await?;
        if auth.is_some() {
            warn_of_plain_http(&self.config.endpoint);
        }
        let response = attempt(auth).await?;
        self.learn(&response);
        if response.status() != StatusCode::UNAUTHORIZED || !self.config.auth.can_refresh() {
            return Ok(response);
        }
        let auth = self.config.auth.header(TokenUse::Refresh).await?;
        let response = attempt(auth).await?;
        self.learn(&response);
        Ok(response)
    }

    /// Stores cookies and the connection id.
    fn learn(&self, response: &Response) {
        let headers = response.headers();
        if headers.contains_key(SET_COOKIE) {
            self.cookies.store(headers.get_all(SET_COOKIE).iter(), &self.config.endpoint);
        }
        if self.connection_id.get().is_none() && response.status().is_success() {
            let names = self.config.dialect.id_headers();
            let found = names.iter().find_map(|name| headers.get(name).map(|id| (name.clone(), id.clone())));
            if let Some((name, id)) = found.filter(|(_, id)| (1..=self.config.limits.id).contains(&id.len()))
            {
                let _ = self.connection_id.set((name, id));
            }
        }
    }
}

/// A request without a response.
#[derive(Debug)]
pub(super) enum SendError {
    /// It was not sent: no token, no connection.
    NotSent(Error),
    /// It may have been received.
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

/// Why a request got no response.
enum NoResponse {
    Failed(SendError),
    /// The server has it and did not respond in time.
    Silent,
}

impl From<Error> for NoResponse {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

/// The header value that names a session.
///
/// Only visible ASCII characters and spaces between them arrive everywhere as they were sent. No dialect defines an
/// encoding for others, and a server that cannot read the header takes the request for one about the connection.
pub(super) fn session_header(session: &str) -> Result<HeaderValue, Error> {
    let plain = session.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let header = HeaderValue::from_str(session).ok().filter(|_| plain && session.trim() == session);
    header
        .filter(|_| !session.is_empty())
        .ok_or_else(|| Error::InvalidSessionId { session_id: session.into() })
}

/// The error for a request without a response, and without a stream that may deliver it.
pub(super) fn lost(what: &str, error: SendError) -> Error {
    match error {
        SendError::NotSent(error) => error,
        SendError::Lost(source) => Error::ConnectionLost { method: what.to_owned(), source },
    }
}

/// Makes an error from a response that is not a success, with at most `limit` bytes of its body.
async fn refused(what: &str, response: Response, limit: usize) -> Error {
    let status = response.status();
    let headers = response.headers();
    let text =
        |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::to_owned);
    if status.is_redirection() {
        return Error::Redirected { status: status.as_u16(), location: text(LOCATION).map(without_query) };
    }
    let content_type = text(CONTENT_TYPE);
    let retry_after = retry_after(headers, SystemTime::now());
    let body = read_start(response, limit).await;
    Error::Http(Box::new(
        HttpError::new(what, status.as_u16(), content_type, &body).with_retry_after(retry_after),
    ))
}

/// Removes the query, which may contain a token.
fn without_query(location: String) -> String {
    location.split(['?', '#']).next().unwrap_or_default().to_owned()
}

/// The error for a success whose body is not JSON-RPC or not an event stream.
pub(super) async fn unexpected(response: Response) -> Error {
    let status = response.status().as_u16();
    let content_type = content_type(&response);
    let start = read_start(response, 4 * START_CHARS).await;
    let start = String::from_utf8_lossy(&start).chars().take(START_CHARS).collect();
    Error::UnexpectedBody { status, content_type, start }
}

pub(super) fn content_type(response: &Response) -> Option<String> {
    let value = response.headers().get(CONTENT_TYPE)?;
    value.to_str().ok().map(str::to_owned)
}

/// Reads the beginning of a body for a bounded time. Failures are ignored.
async fn read_start(mut response: Response, limit: usize) -> Bytes {
    let mut body = BytesMut::new();
    let until = tokio::time::Instant::now() + START_TIMEOUT;
    while body.len() < limit {
        match tokio::time::timeout_at(until, response.chunk()).await {
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            Ok(Ok(None) | Err(_)) | Err(_) => break,
        }
    }
    body.truncate(limit);
    body.freeze()
}
