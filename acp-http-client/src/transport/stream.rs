//! Opening an event stream.

use std::sync::Arc;

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Method, StatusCode,
    header::{ACCEPT, CACHE_CONTROL},
};
use reqwest::Response;

use super::http::{Transport, content_type, lost, session_header, unexpected};
use crate::{Dialect, Error, error::Cause};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Why a stream did not open.
#[derive(Debug)]
pub(crate) struct StreamFailure {
    pub(crate) trouble: Trouble,
    pub(crate) error: Error,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It may be temporary: try again later.
    Passing,
    /// The server does not know the stream.
    NotFound,
    /// It already has a reader, perhaps a lost connection of this client.
    Held,
    /// The token was rejected.
    Unauthorized,
    /// A retry cannot succeed.
    Final,
}

/// The body of an open event stream.
#[derive(Debug)]
pub(crate) struct EventStream(Response);

impl EventStream {
    /// The next bytes; `None` at the end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Cause> {
        self.0.chunk().await.map_err(|error| Arc::new(error.without_url()) as Cause)
    }
}

impl Transport {
    /// Opens the stream of the connection or of a session after `last_event_id`.
    pub(crate) async fn open_stream(
        &self,
        session: Option<&str>,
        last_event_id: Option<&str>,
    ) -> Result<EventStream, StreamFailure> {
        let invalid = |error| StreamFailure { trouble: Trouble::Final, error };
        let session = session.map(session_header).transpose().map_err(invalid)?;
        // An event id may be any text without line ends, and the header takes it as UTF-8 (HTML standard, 9.2.3).
        let last_event_id = last_event_id.map(|id| HeaderValue::from_bytes(id.as_bytes())).transpose();
        let last_event_id = last_event_id.map_err(|_| {
            invalid(Error::Config("the last event id has control characters and cannot be sent".to_owned()))
        })?;
        let build = |auth| {
            let mut request = self
                .request(Method::GET, &self.config.endpoint, auth)
                .header(ACCEPT, HeaderValue::from_static("text/event-stream"))
                .header(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            if let Some(session) = &session {
                request = request.header(Dialect::ACP_SESSION_ID, session);
            }
            if let Some(id) = &last_event_id {
                request = request.header(LAST_EVENT_ID, id);
            }
            request
        };
        let response = self.send(build).await.map_err(|error| StreamFailure {
            trouble: Trouble::Passing,
            error: lost("event stream", error),
        })?;
        match response.status() {
            StatusCode::OK if is_event_stream(&response) => Ok(EventStream(response)),
            // The login page of a proxy, for example: it may be temporary.
            StatusCode::OK => {
                Err(StreamFailure { trouble: Trouble::Passing, error: unexpected(response).await })
            }
            status => Err(StreamFailure {
                trouble: classify(status),
                error: self.refused("event stream", response).await,
            }),
        }
    }
}

fn is_event_stream(response: &Response) -> bool {
    content_type(response)
        .is_some_and(|media| media.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

fn classify(status: StatusCode) -> Trouble {
    match status.as_u16() {
        404 => Trouble::NotFound,
        409 => Trouble::Held,
        401 | 403 => Trouble::Unauthorized,
        408 | 425 | 429 | 500.. => Trouble::Passing,
        _ => Trouble::Final,
    }
}
