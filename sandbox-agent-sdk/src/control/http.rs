//! Sends HTTP requests: token, headers, timeouts, and the mapping of failures to errors.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use acp_http_client::{Auth, TokenUse, json, warn_of_plain_http};
use bytes::Bytes;
use futures::future::BoxFuture;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Body, Method, Response, StatusCode, Version};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use url::Url;

use super::incoming::Incoming;
use super::progress::Progress;
use super::refusal::{
    RELEASED_BODY_LIMIT, header, is_json, is_page, no_response, refused, unexpected, with_size,
};
use super::route::Route;
use super::timeouts::ControlTimeouts;
use super::upload::Upload;
use crate::Error;
use crate::client::limits::{BodyKind, Limits};
use crate::client::network::{check_runtime, http_client_builder_for};
use crate::convert::text::safe_error;
use crate::error::{Phase, Timeout};

/// Up to this body size the server's rejection is always received, because the whole body was sent before.
const ALWAYS_SENT_BYTES: u64 = 64 * 1024;

/// How long a server that aborted an upload may take to respond to a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// The state that all requests share.
#[derive(Clone)]
pub(crate) struct Http(Arc<Shared>);

struct Shared {
    client: reqwest::Client,
    /// Whether the application provided the client.
    is_custom: bool,
    base: Url,
    auth: Auth,
    headers: HeaderMap,
    timeouts: ControlTimeouts,
    limits: Limits,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Call {
    head: Head,
    payload: Option<Payload>,
}

/// A request without its body.
#[derive(Debug)]
struct Head {
    /// The operation, for errors.
    what: &'static str,
    method: Method,
    route: Route,
    /// Headers of this request only.
    headers: HeaderMap,
    /// The response timeout, if it differs from the default.
    response_timeout: Option<Option<Duration>>,
    privacy: Privacy,
    /// The kind of the response body, which selects its size limit.
    kind: BodyKind,
}

/// A body and its media type.
#[derive(Debug)]
struct Payload {
    content_type: &'static str,
    upload: Upload,
}

impl Payload {
    /// Copies the payload, if it can be sent twice.
    fn again(&self) -> Option<Self> {
        Some(Self { content_type: self.content_type, upload: self.upload.again()? })
    }
}

/// Whether an error may quote the response if it cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privacy {
    Public,
    /// The response may contain secrets.
    Private,
}

impl Call {
    pub(crate) fn new(what: &'static str, method: Method, route: Route) -> Self {
        let headers = HeaderMap::new();
        let (privacy, kind) = (Privacy::Public, BodyKind::Control);
        let head = Head { what, method, route, headers, response_timeout: None, privacy, kind };
        Self { head, payload: None }
    }

    /// Sets the body.
    pub(super) fn upload(mut self, content_type: &'static str, upload: Upload) -> Self {
        self.payload = Some(Payload { content_type, upload });
        self
    }

    /// Sets the body to a value as JSON.
    pub(crate) fn json(self, value: &impl Serialize) -> Result<Self, Error> {
        match serde_json::to_vec(value) {
            Ok(body) => Ok(self.upload("application/json", body.into())),
            Err(source) => Err(Error::Encode { what: self.head.what.to_owned(), source: Arc::new(source) }),
        }
    }

    /// Sets the response timeout; `None` waits without limit.
    pub(crate) fn response_timeout(mut self, limit: Option<Duration>) -> Self {
        self.head.response_timeout = Some(limit);
        self
    }

    /// Sets the kind of the response body, which selects its size limit.
    pub(crate) fn kind(mut self, kind: BodyKind) -> Self {
        self.head.kind = kind;
        self
    }

    /// Sets the accepted media type.
    pub(crate) fn accept(mut self, media_type: &'static str) -> Self {
        self.head.headers.insert(ACCEPT, HeaderValue::from_static(media_type));
        self
    }

    /// Hides the response from errors, because it may contain secrets.
    pub(crate) fn private(mut self) -> Self {
        self.head.privacy = Privacy::Private;
        self
    }
}

impl Http {
    pub(super) fn new(
        (client, is_custom): (reqwest::Client, bool),
        base: Url,
        auth: Auth,
        headers: HeaderMap,
        timeouts: ControlTimeouts,
        limits: Limits,
    ) -> Self {
        Self(Arc::new(Shared { client, is_custom, base, auth, headers, timeouts, limits }))
    }

    /// Returns the URL of a route, without secrets.
    pub(crate) fn address(&self, route: &Route) -> Url {
        route.under(&self.0.base)
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(super) fn timeouts(&self) -> &ControlTimeouts {
        &self.0.timeouts
    }

    /// Makes a call and parses its response.
    pub(crate) fn value<T: DeserializeOwned + 'static>(
        &self,
        call: Result<Call, Error>,
    ) -> BoxFuture<'static, Result<T, Error>> {
        let http = self.clone();
        Box::pin(async move {
            let call = call?;
            let (what, privacy, kind) = (call.head.what, call.head.privacy, call.head.kind);
            let response = http.respond(call).await?;
            let (status, content_type) = (response.status(), header(&response, &CONTENT_TYPE));
            let body = http.incoming(what, response).collect(http.0.limits.text(kind));
            let limit = http.0.timeouts.body;
            let body = timeout(limit, body).await;
            let late = |_| Error::Timeout(Box::new(Timeout::new(Phase::Body, what, limit)));
            let body = body.map_err(late)??;
            http.0.limits.check(kind, what, &body)?;
            decode(what, privacy, &body).map_err(|error| {
                let foreign = !is_json(content_type.as_deref());
                if foreign { unexpected(status, content_type, &body) } else { error }
            })
        })
    }

    /// Makes a call and discards its response.
    pub(crate) fn done(&self, call: Result<Call, Error>) -> BoxFuture<'static, Result<(), Error>> {
        let http = self.clone();
        Box::pin(async move {
            let call = call?;
            let what = call.head.what;
            http.refuse_page(what, http.respond(call).await?).await.map(drop)
        })
    }

    /// Makes a call and streams its response.
    pub(super) fn body(&self, call: Result<Call, Error>) -> BoxFuture<'static, Result<Incoming, Error>> {
        let http = self.clone();
        Box::pin(async move {
            let call = call?;
            let what = call.head.what;
            let response = http.refuse_page(what, http.respond(call).await?).await?;
            Ok(http.incoming(what, response))
        })
    }

    /// Sends a request without a body and returns any response. The given headers override the common ones.
    pub(crate) async fn raw(
        &self,
        what: &'static str,
        method: Method,
        route: Route,
        headers: HeaderMap,
    ) -> Result<Response, Error> {
        let (privacy, kind) = (Privacy::Public, BodyKind::Control);
        let head = Head { what, method, route, headers, response_timeout: None, privacy, kind };
        let response = self.ask(&head, TokenUse::Request).await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.0.auth.can_refresh() {
            return self.ask(&head, TokenUse::Refresh).await;
        }
        Ok(response)
    }

    /// Opens a WebSocket: requests an upgrade and returns the response that accepts it.
    ///
    /// An upgrade needs HTTP/1.1. If the client negotiated HTTP/2 with the server, a separate client is used, or it is an
    /// error if the application provided the client.
    pub(super) async fn upgrade(
        &self,
        what: &'static str,
        route: Route,
        headers: HeaderMap,
    ) -> Result<Response, Error> {
        let response = self.raw(what, Method::GET, route.clone(), headers.clone()).await?;
        let response = if response.version() == Version::HTTP_2 {
            if self.0.is_custom {
                // Another client would ignore its proxy, its certificates and its addresses.
                return Err(Error::config("the HTTP client negotiated HTTP/2; a terminal needs HTTP/1.1"));
            }
            let client = http_client_builder_for(self.0.base.as_str())
                .connect_timeout(self.0.timeouts.connect)
                .http1_only()
                .build()
                .map_err(|error| Error::config(format!("the HTTP client cannot be built: {error}")))?;
            let shared = Shared {
                client,
                is_custom: false,
                base: self.0.base.clone(),
                auth: self.0.auth.clone(),
                headers: self.0.headers.clone(),
                timeouts: self.0.timeouts.clone(),
                limits: self.0.limits.clone(),
            };
            Self(Arc::new(shared)).raw(what, Method::GET, route, headers).await?
        } else {
            response
        };
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => Ok(response),
            status if status.is_success() => {
                let content_type = header(&response, &CONTENT_TYPE);
                let start = self.incoming(what, response).start(4096).await;
                Err(unexpected(status, content_type, &start))
            }
            _ => Err(self.refused(what, response).await),
        }
    }

    fn incoming(&self, what: &'static str, response: Response) -> Incoming {
        Incoming::new(what, response, self.0.timeouts.stall)
    }

    /// Converts an unsuccessful response to an error.
    pub(crate) async fn refused(&self, what: &'static str, response: Response) -> Error {
        refused(what, response, self.0.timeouts.stall, self.0.limits.error_body).await
    }

    /// An HTML page comes from a proxy, not from the server, so the result of the request is unknown.
    async fn refuse_page(&self, what: &'static str, response: Response) -> Result<Response, Error> {
        let content_type = header(&response, &CONTENT_TYPE);
        if !is_page(content_type.as_deref()) {
            return Ok(response);
        }
        let status = response.status();
        let start = self.incoming(what, response).start(4096).await;
        Err(unexpected(status, content_type, &start))
    }

    /// Sends a call and returns a successful response. Retries once with a new token if the server rejects
    /// the first.
    async fn respond(&self, call: Call) -> Result<Response, Error> {
        let Call { head, payload } = call;
        let size = payload.as_ref().and_then(|payload| payload.upload.size());
        let repeated = payload.as_ref().map_or(Some(None), |payload| payload.again().map(Some));
        let (mut response, mut sent) = self.attempt(&head, payload, TokenUse::Request).await?;
        if response.status() == StatusCode::UNAUTHORIZED
            && self.0.auth.can_refresh()
            && let Some(payload) = repeated
        {
            (response, sent) = self.attempt(&head, payload, TokenUse::Refresh).await?;
        }
        tracing::debug!(what = head.what, status = response.status().as_u16(), "plain request");
        if response.status().is_success() {
            return Ok(response);
        }
        let error = self.refused(head.what, response).await;
        Err(with_size(error, size.or(sent)))
    }

    /// Sends a request. Returns the response and the number of body bytes sent.
    async fn attempt(
        &self,
        head: &Head,
        payload: Option<Payload>,
        reason: TokenUse,
    ) -> Result<(Response, Option<u64>), Error> {
        match payload {
            None => self.ask(head, reason).await.map(|response| (response, None)),
            Some(payload) => self.send(head, payload, reason).await,
        }
    }

    /// Sends a request without a body.
    async fn ask(&self, head: &Head, reason: TokenUse) -> Result<Response, Error> {
        // Without a runtime there is no timeout either.
        check_runtime()?;
        let sent = async {
            let request = self.request(head, self.headers(head, reason).await?);
            request.send().await.map_err(|error| no_response(head.what, error))
        };
        match self.response_limit(head) {
            Some(limit) => timeout(limit, sent).await.map_err(|_| timed_out(head.what, limit))?,
            None => sent.await,
        }
    }

    /// Sends a request with a body.
    async fn send(
        &self,
        head: &Head,
        payload: Payload,
        reason: TokenUse,
    ) -> Result<(Response, Option<u64>), Error> {
        let mut headers = self.headers(head, reason).await?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(payload.content_type));
        let size = payload.upload.size();
        if let Some(size) = size {
            headers.insert(CONTENT_LENGTH, size.into());
        }
        let (body, progress) = payload.upload.start();
        let request = self.request(head, headers).body(Body::wrap_stream(body));
        let sent = tokio::select! {
            sent = request.send() => sent,
            waited = progress.stalled(self.0.timeouts.stall, self.response_limit(head)) => {
                return Err(timed_out(head.what, waited));
            }
        };
        match sent {
            Ok(response) => Ok((response, Some(progress.sent()))),
            Err(error) => Err(self.interrupted(head.what, error, size, &progress).await),
        }
    }

    /// Builds the headers of a request. A token provider has the time of the response, and no more than an ordinary
    /// response if this one may take long.
    async fn headers(&self, head: &Head, reason: TokenUse) -> Result<HeaderMap, Error> {
        check_runtime()?;
        let mut headers = self.0.headers.clone();
        let ordinary = self.0.timeouts.response;
        let limit = self.response_limit(head).map_or(ordinary, |limit| limit.min(ordinary));
        let token = timeout(limit, self.0.auth.header(reason)).await;
        let late = |_| Error::Timeout(Box::new(Timeout::new(Phase::Token, head.what, limit)));
        let token = token.map_err(late)?;
        if let Some(token) = token.map_err(Error::from_wire)? {
            warn_of_plain_http(&self.0.base);
            headers.insert(AUTHORIZATION, token);
        }
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json, */*;q=0.5"));
        Ok(headers)
    }

    fn request(&self, head: &Head, headers: HeaderMap) -> reqwest::RequestBuilder {
        let url = head.route.under(&self.0.base);
        let request = self.0.client.request(head.method.clone(), url).headers(headers);
        request.headers(head.headers.clone())
    }

    fn response_limit(&self, head: &Head) -> Option<Duration> {
        head.response_timeout.unwrap_or(Some(self.0.timeouts.response))
    }

    /// Finds out why sending a body ended without a response.
    ///
    /// A server that rejects a body without reading all of it may close the connection before the client
    /// receives the rejection. A server crash looks the same. A health check tells them apart.
    async fn interrupted(
        &self,
        what: &'static str,
        error: reqwest::Error,
        size: Option<u64>,
        progress: &Progress,
    ) -> Error {
        if let Some(source) = progress.failure() {
            return Error::Local { what: what.to_owned(), source };
        }
        let size = size.unwrap_or(progress.sent());
        let error = no_response(what, error);
        if size < ALWAYS_SENT_BYTES || !matches!(error, Error::ConnectionLost { .. }) {
            return error;
        }
        let probe = Call::new(what, Method::GET, Route::new("/v1/health"));
        let Ok(Ok(response)) = timeout(HEALTH_TIMEOUT, self.ask(&probe.head, TokenUse::Request)).await else {
            return error;
        };
        match response.status() {
            StatusCode::UNAUTHORIZED => self.refused(what, response).await,
            status if status.is_success() && size > RELEASED_BODY_LIMIT => {
                let what = what.to_owned();
                with_size(Error::PayloadTooLarge { what, size: None, limit: None, source: None }, Some(size))
            }
            _ => error,
        }
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("base", &self.0.base.as_str())
            .field("auth", &self.0.auth)
            .field("headers", &self.0.headers.keys().collect::<Vec<_>>())
            .field("timeouts", &self.0.timeouts)
            .finish_non_exhaustive()
    }
}

fn timed_out(what: &'static str, waited: Duration) -> Error {
    Error::Timeout(Box::new(Timeout::new(Phase::Headers, what, waited)))
}

/// Parses the body of a response.
pub(crate) fn decode<T: DeserializeOwned>(
    what: &'static str,
    privacy: Privacy,
    body: &Bytes,
) -> Result<T, Error> {
    json::from_slice(body).map_err(|source| {
        let what = what.to_owned();
        match privacy {
            Privacy::Public => {
                let raw = String::from_utf8_lossy(body).into_owned();
                Error::Decode { what, raw, source: Arc::new(safe_error(source)) }
            }
            // The parser's error would quote the invalid value.
            Privacy::Private => {
                let place = format!("line {}, column {}", source.line(), source.column());
                Error::Decode { what, raw: String::new(), source: Arc::new(std::io::Error::other(place)) }
            }
        }
    })
}
