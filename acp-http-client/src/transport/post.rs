//! Posting one message.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{
    HeaderValue, Method,
    header::{ACCEPT, CONTENT_TYPE},
};
use reqwest::Response;

use super::{
    handover::Handover,
    http::{SendError, Transport, session_header, unexpected},
};
use crate::{Dialect, Error, HttpError, RpcError, error::Cause, json};

/// A message to be posted.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    /// The method, for errors.
    pub(crate) what: Arc<str>,
    pub(crate) body: Bytes,
    /// The session of the message, for dialects that name it in a header.
    pub(crate) session: Option<Arc<str>>,
    pub(crate) bootstrap: bool,
    pub(crate) kind: Sent,
    /// Completed when the last byte was handed to the HTTP connection.
    pub(crate) handover: Handover,
}

/// What is posted, and so what the response may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// A JSON-RPC request: the body may contain its response.
    Request,
    /// A notification or a response: the body is ignored.
    OneWay,
}

/// The outcome of a POST.
#[derive(Debug)]
pub(crate) enum Posted {
    /// A body: the response to a request.
    Response { status: u16, content_type: Option<HeaderValue>, body: Bytes },
    /// The message was accepted; its response, if there is one, arrives on the stream.
    Accepted,
}

/// Why a POST failed.
#[derive(Debug, Clone)]
pub(crate) enum PostFailure {
    /// The message was not sent, or was rejected unread: it may be sent again.
    NotTaken(Error),
    /// The message was received and failed.
    Failed(Error),
    /// The message was received, and the status does not show its result: the stream may still deliver its response.
    Unsaid(Error),
    /// The message may have been received, and the stream may still deliver its response.
    Unknown(Error),
}

impl PostFailure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::NotTaken(error) | Self::Failed(error) | Self::Unsaid(error) | Self::Unknown(error) => error,
        }
    }
}

impl Transport {
    /// Posts one message. It is never sent twice, except when the server rejected the token.
    pub(crate) async fn post(&self, post: &Post) -> Result<Posted, PostFailure> {
        let url = if post.bootstrap { &self.bootstrap } else { &self.config.endpoint };
        let session = self.session_header(post).map_err(PostFailure::NotTaken)?;
        let build = |auth| {
            let request = self
                .request(Method::POST, url, auth)
                .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
                .header(ACCEPT, HeaderValue::from_static("application/json"));
            let request = match &session {
                Some(session) => request.header(Dialect::ACP_SESSION_ID, session),
                None => request,
            };
            request.body(post.handover.body(&post.body))
        };
        let response = match self.send(build).await {
            Ok(response) => response,
            Err(SendError::NotSent(error)) => return Err(PostFailure::NotTaken(error)),
            Err(SendError::Lost(source)) => {
                return Err(match post.handover.incomplete() {
                    // A server cannot have run a message that it has not read completely.
                    Some(sent) => PostFailure::NotTaken(Error::UploadInterrupted {
                        method: post.what.to_string(),
                        sent,
                        size: post.body.len(),
                        source: Arc::new(source),
                    }),
                    None => PostFailure::Unknown(connection_lost(post, source)),
                });
            }
        };
        if response.status().is_success() {
            self.success(post, response).await
        } else {
            Err(self.failure(post, response).await)
        }
    }

    /// The header that names the session, on dialects that have one.
    ///
    /// A request about a session whose id does not fit a header is not sent: its updates travel on a stream that only
    /// the header can name. A notification or a response is sent without it, because its body contains the session
    /// id.
    fn session_header(&self, post: &Post) -> Result<Option<HeaderValue>, Error> {
        let session = post.session.as_ref().filter(|_| self.config.dialect.has_session_streams());
        match session.map(|session| session_header(session)).transpose() {
            Err(_) if post.kind == Sent::OneWay => Ok(None),
            header => header,
        }
    }

    async fn success(&self, post: &Post, response: Response) -> Result<Posted, PostFailure> {
        let status = response.status().as_u16();
        let content_type = response.headers().get(CONTENT_TYPE).cloned();
        let page = content_type.as_ref().is_some_and(|media| !is_json(media));
        if page && post.kind == Sent::Request && status != 202 {
            return Err(PostFailure::Failed(unexpected(response).await));
        }
        match self.read_body(post, response).await {
            Ok(body) if body.is_empty() => Ok(Posted::Accepted),
            // 202 means that the response follows on the stream, whatever the body is.
            Ok(_) if page => Ok(Posted::Accepted),
            Ok(body) => Ok(Posted::Response { status, content_type, body }),
            Err(failure) => Err(failure),
        }
    }

    /// Reads the body of a response. That of a one-way message is dropped chunk by chunk; it is read only so that the
    /// connection can be used again.
    async fn read_body(&self, post: &Post, mut response: Response) -> Result<Bytes, PostFailure> {
        let limit = self.config.limits.message;
        let mut body = Body::Empty;
        let mut seen = 0;
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => {
                    seen += chunk.len();
                    if seen > limit {
                        return Err(PostFailure::Failed(Error::MessageTooLarge {
                            limit,
                            seen,
                            event_id: None,
                        }));
                    }
                    if post.kind == Sent::Request {
                        body.push(chunk);
                    }
                }
                Ok(None) => return Ok(body.into_bytes()),
                Err(source) => {
                    return Err(PostFailure::Unknown(connection_lost(post, Arc::new(source.without_url()))));
                }
            }
        }
    }

    async fn failure(&self, post: &Post, response: Response) -> PostFailure {
        let error = match self.refused(&post.what, response).await {
            Error::Http(error) => *error,
            redirected => return PostFailure::Failed(redirected),
        };
        // A gateway or the server stopped waiting; the agent may still run.
        if matches!(error.status, 408 | 504 | 524) {
            return PostFailure::Unknown(Error::Http(Box::new(error)));
        }
        if let Some(rpc) = rpc_error(&error) {
            return PostFailure::Failed(Error::Rpc { error: rpc, status: Some(error.status) });
        }
        // A problem report shows how the server handled the message.
        let said = error.status == 503 || error.problem.is_some();
        if error.status >= 500 && !said && post.handover.incomplete().is_none() {
            return PostFailure::Unsaid(Error::Http(Box::new(error)));
        }
        match error.status {
            413 => PostFailure::Failed(Error::PayloadTooLarge {
                method: post.what.to_string(),
                size: post.body.len(),
                source: Some(Box::new(error)),
            }),
            401 | 403 | 429 | 503 => PostFailure::NotTaken(Error::Http(Box::new(error))),
            _ => PostFailure::Failed(Error::Http(Box::new(error))),
        }
    }
}

/// A body that usually arrives in one piece.
enum Body {
    Empty,
    One(Bytes),
    Many(BytesMut),
}

impl Body {
    fn push(&mut self, chunk: Bytes) {
        *self = match std::mem::replace(self, Self::Empty) {
            Self::Empty => Self::One(chunk),
            Self::One(first) => {
                let mut bytes = BytesMut::with_capacity(2 * (first.len() + chunk.len()));
                bytes.extend_from_slice(&first);
                bytes.extend_from_slice(&chunk);
                Self::Many(bytes)
            }
            Self::Many(mut bytes) => {
                bytes.extend_from_slice(&chunk);
                Self::Many(bytes)
            }
        };
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Empty => Bytes::new(),
            Self::One(bytes) => bytes,
            Self::Many(bytes) => bytes.freeze(),
        }
    }
}

fn connection_lost(post: &Post, source: Cause) -> Error {
    Error::ConnectionLost { method: post.what.to_string(), source }
}

/// Whether a media type is JSON. An unreadable one counts as JSON: the body decides.
fn is_json(content_type: &HeaderValue) -> bool {
    if content_type == "application/json" {
        return true;
    }
    let Ok(content_type) = content_type.to_str() else { return true };
    let media = content_type.split(';').next().unwrap_or_default().trim();
    let suffix = media.len().checked_sub("+json".len()).and_then(|at| media.get(at..));
    media.eq_ignore_ascii_case("application/json")
        || media.eq_ignore_ascii_case("text/json")
        || suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case("+json"))
}

/// The JSON-RPC error in the body of a failure. It has more details than the status.
fn rpc_error(error: &HttpError) -> Option<RpcError> {
    #[derive(serde::Deserialize)]
    struct Failure {
        #[serde(rename = "jsonrpc")]
        _version: String,
        error: RpcError,
    }
    json::from_str::<Failure>(&error.body).ok().map(|failure| failure.error)
}
