//! Plain requests that belong to no connection: probes, and what a server knows about sessions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use acp_http_client::{Auth, Token, TokenUse};
use bytes::BytesMut;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
};
use reqwest::{Response, StatusCode};
use serde_json::Value;
use url::Url;

use crate::{ClientOptions, Error, HttpError, Phase, Problem, Timeout};

/// How much of a body is read.
const BODY_BYTES: usize = 16 << 20;
/// How much of a body is shown in an error.
const START_CHARS: usize = 1024;
/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Sends GETs with the token and the headers of the client.
pub(crate) struct Plain {
    http: reqwest::Client,
    base: Url,
    auth: Auth,
    headers: HeaderMap,
}

impl Plain {
    pub(super) fn new(options: &ClientOptions, http: reqwest::Client) -> Result<Self, Error> {
        let base =
            Url::parse(options.base_url.trim()).map_err(|_| Error::config("the base URL is no URL"))?;
        let auth = match (&options.provider, &options.token) {
            (Some(provider), _) => {
                let provider = Arc::clone(provider);
                Auth::provider(move |reason| provider(reason))
            }
            (None, Some(token)) => Auth::token(Token::new(token).map_err(Error::from_wire)?),
            (None, None) => Auth::none(),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in &options.headers {
            let name = HeaderName::try_from(name)
                .map_err(|_| Error::config("a header has a name that HTTP does not allow"))?;
            let value = HeaderValue::try_from(value).map_err(|_| {
                Error::config(format!("the header `{name}` has a value that HTTP does not allow"))
            })?;
            headers.append(name, value);
        }
        Ok(Self { http, base, auth, headers })
    }

    /// A GET whose answer is JSON.
    pub(super) async fn json(&self, what: &str, path: &str) -> Result<Value, Error> {
        let response = self.get(what, path, "application/json", None).await?;
        if !response.status().is_success() {
            return Err(refused(what, response).await);
        }
        let (status, content_type) = (response.status().as_u16(), text(&response, &CONTENT_TYPE));
        let body = within(what, read(response)).await?;
        serde_json::from_slice(&body).map_err(|_| {
            let start = String::from_utf8_lossy(&body).chars().take(START_CHARS).collect();
            Error::UnexpectedBody { status, content_type, start }
        })
    }

    /// A GET, whatever its answer is.
    pub(super) async fn get(
        &self,
        what: &str,
        path: &str,
        accept: &'static str,
        last_event_id: Option<&'static str>,
    ) -> Result<Response, Error> {
        let response = self.send(what, path, accept, last_event_id, TokenUse::Request).await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.auth.can_refresh() {
            return self.send(what, path, accept, last_event_id, TokenUse::Refresh).await;
        }
        Ok(response)
    }

    async fn send(
        &self,
        what: &str,
        path: &str,
        accept: &'static str,
        last_event_id: Option<&'static str>,
        reason: TokenUse,
    ) -> Result<Response, Error> {
        let mut headers = self.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        if let Some(token) = self.auth.header(reason).await.map_err(Error::from_wire)? {
            headers.insert(AUTHORIZATION, token);
        }
        if let Some(id) = last_event_id {
            headers.insert("last-event-id", HeaderValue::from_static(id));
        }
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        let sent = within(what, self.http.get(url).headers(headers).send()).await?;
        sent.map_err(|error| {
            // The URL is left out of the error: it may name what its owner does not want in a log.
            let (connect, source) = (error.is_connect(), Arc::new(error.without_url()));
            if connect {
                Error::Unreachable(source)
            } else {
                Error::ConnectionLost { what: what.to_owned(), source }
            }
        })
    }
}

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plain")
    }
}

/// One segment of a path, so that it stays one.
pub(super) fn segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Turns a response that is no success into an error, keeping its body.
pub(super) async fn refused(what: &str, response: Response) -> Error {
    let status = response.status();
    if status.is_redirection() {
        // A redirect may carry a token in its query, and an error must not.
        let location = text(&response, &LOCATION)
            .map(|location| location.split(['?', '#']).next().unwrap_or_default().to_owned());
        return Error::Redirected { status: status.as_u16(), location };
    }
    let content_type = text(&response, &CONTENT_TYPE);
    let retry_after = text(&response, &RETRY_AFTER).and_then(|seconds| seconds.parse().ok());
    let body = tokio::time::timeout(PATIENCE, read(response)).await.unwrap_or_default();
    Error::from_http(HttpError {
        what: what.to_owned(),
        status: status.as_u16(),
        content_type,
        problem: Problem::from_json(&body),
        body: String::from_utf8_lossy(&body).into_owned(),
        retry_after: retry_after.map(Duration::from_secs),
    })
}

fn text(response: &Response, name: &HeaderName) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

/// Reads a body up to its limit; what goes wrong after that shows when it is parsed.
async fn read(mut response: Response) -> BytesMut {
    let mut body = BytesMut::new();
    while body.len() < BODY_BYTES {
        match response.chunk().await {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) | Err(_) => break,
        }
    }
    body
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T, Error> {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.map_err(|_| Error::Timeout(Box::new(Timeout::new(Phase::Headers, what, PATIENCE))))
}
