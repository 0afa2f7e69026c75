//! Common parts of the handlers: queries, blocking work, and the end of a connection.

use axum::{
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::problem::Problem;

/// The query of a request. An invalid one is rejected in plain text, with the released server's message.
pub(super) struct Parameters<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = (StatusCode, String);

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        let query = parts.uri.query().unwrap_or_default();
        serde_urlencoded::from_str(query).map(Self).map_err(|error| {
            (StatusCode::BAD_REQUEST, format!("Failed to deserialize query string: {error}"))
        })
    }
}

/// Signals the end of a request's connection. Works for upgraded connections, too.
#[derive(Debug, Clone)]
pub(crate) struct Lifeline(pub(crate) watch::Receiver<()>);

impl Lifeline {
    /// Completes when the connection must end.
    pub(super) async fn cut(mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// Runs file system work on a blocking thread. A panic in it resumes in the caller.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Problem::stream_error("the server is shutting down")),
        },
    }
}
