//! Converts failed requests to errors.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderName, LOCATION, RETRY_AFTER};
use reqwest::{Response, StatusCode};

use super::incoming::Incoming;
use crate::Error;
use crate::error::{HttpError, Problem};

/// The largest request body that released Sandbox Agent servers accept, in bytes.
///
/// The limit applies to a single file and to an archive. A larger body fails with [`Error::PayloadTooLarge`].
/// Use [`Files::write_in_parts`](crate::control::Files::write_in_parts) for larger files, and several
/// archives for many small files.
pub const RELEASED_BODY_LIMIT: u64 = 2 * 1024 * 1024;

/// The longest wait that a server can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(5 * 60);

/// How much of an unexpected response body is shown.
const START_CHARS: usize = 1024;

/// The beginning of the released server's message about a body that is too large.
const LIMIT_EXCEEDED: &str = "length limit exceeded";

/// Converts an unsuccessful response to an error with its status, headers and at most `limit` bytes of its body.
pub(super) async fn refused(what: &'static str, response: Response, stall: Duration, limit: usize) -> Error {
    let status = response.status();
    if status.is_redirection() {
        let location = header(&response, &LOCATION).map(|location| without_query(&location));
        return Error::Redirected { status: status.as_u16(), location };
    }
    let content_type = header(&response, &CONTENT_TYPE);
    let retry_after = header(&response, &RETRY_AFTER).and_then(|seconds| seconds.parse().ok());
    let retry_after = retry_after.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
    let body = Incoming::new(what, response, stall).start(limit).await;
    Error::from_http(HttpError {
        what: what.to_owned(),
        status: status.as_u16(),
        content_type,
        problem: Problem::from_json(&body),
        body: String::from_utf8_lossy(&body).into_owned(),
        retry_after,
    })
}

/// Adds the size of the request body to the error.
pub(super) fn with_size(error: Error, sent: Option<u64>) -> Error {
    match error {
        Error::PayloadTooLarge { what, source, .. } => {
            let says_so = source.as_ref().is_none_or(|response| response.body.contains(LIMIT_EXCEEDED));
            let limit = says_so.then_some(RELEASED_BODY_LIMIT);
            Error::PayloadTooLarge {
                what,
                size: sent,
                limit: limit.filter(|limit| sent > Some(*limit)),
                source,
            }
        }
        other => other,
    }
}

/// The error of a request without a response.
pub(super) fn no_response(what: &'static str, error: reqwest::Error) -> Error {
    if error.is_builder() || error.is_connect() {
        // The URL is removed from the error, because it may contain private data.
        Error::Unreachable(Arc::new(error.without_url()))
    } else {
        connection_lost(what, error)
    }
}

pub(super) fn connection_lost(what: &'static str, error: reqwest::Error) -> Error {
    Error::ConnectionLost { what: what.to_owned(), source: Arc::new(error.without_url()) }
}

/// The error of a successful response with an unexpected body.
pub(super) fn unexpected(status: StatusCode, content_type: Option<String>, body: &[u8]) -> Error {
    let start = String::from_utf8_lossy(&body[..body.len().min(4 * START_CHARS)]);
    let start = start.chars().take(START_CHARS).collect();
    Error::UnexpectedBody { status: status.as_u16(), content_type, start }
}

/// Whether a proxy or a login page responded instead of the server, which never sends HTML.
pub(super) fn is_page(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|value| media_type(value) == "text/html")
}

pub(super) fn is_json(content_type: Option<&str>) -> bool {
    content_type.is_none_or(|value| {
        let media = media_type(value);
        media == "application/json" || media.ends_with("+json")
    })
}

fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns a header as text.
pub(super) fn header(response: &Response, name: &HeaderName) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

/// Removes the query of a redirect target, because it may contain a token.
fn without_query(location: &str) -> String {
    location.split(['?', '#']).next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn too_large(body: Option<&str>) -> Error {
        let response = body.map(|body| {
            Box::new(HttpError {
                what: "write file".into(),
                status: 413,
                content_type: None,
                problem: None,
                body: body.into(),
                retry_after: None,
            })
        });
        Error::PayloadTooLarge { what: "write file".into(), size: None, limit: None, source: response }
    }

    #[test]
    fn the_limit_is_reported_if_known() {
        let released = "Failed to buffer the request body: length limit exceeded";
        let mebibyte = 1024 * 1024;
        let table = [
            (Some(released), Some(3 * mebibyte), Some(RELEASED_BODY_LIMIT)),
            (None, Some(3 * mebibyte), Some(RELEASED_BODY_LIMIT)),
            (Some("<html>nginx</html>"), Some(3 * mebibyte), None),
            (Some(released), Some(mebibyte), None),
            (Some(released), None, None),
        ];
        for (body, sent, expected) in table {
            let Error::PayloadTooLarge { size, limit, .. } = with_size(too_large(body), sent) else {
                panic!("another error")
            };
            assert_eq!((size, limit), (sent, expected), "{body:?}");
        }
    }

    #[test]
    fn media_types_are_distinguished() {
        assert!(is_page(Some("Text/HTML; charset=utf-8")) && !is_page(Some("text/plain")) && !is_page(None));
        assert!(
            is_json(None) && is_json(Some("application/json")) && is_json(Some("application/problem+json"))
        );
        assert!(!is_json(Some("text/plain; charset=utf-8")));
    }
}
