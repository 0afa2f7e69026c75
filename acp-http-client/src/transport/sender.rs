//! How an HTTP request leaves the process.

use std::{error::Error as StdError, fmt, sync::Arc};

use futures::future::BoxFuture;

use crate::error::Cause;

/// Sends HTTP requests instead of a [`reqwest::Client`].
///
/// For example, it can send them over a Unix socket or to a simulated server.
pub trait HttpSender: Send + Sync + 'static {
    /// Sends one request. The body of the response may be streamed.
    ///
    /// Dropping the future abandons the request.
    fn send(&self, request: reqwest::Request)
    -> BoxFuture<'static, Result<reqwest::Response, HttpSendError>>;
}

impl<S: HttpSender + ?Sized> HttpSender for Arc<S> {
    fn send(
        &self,
        request: reqwest::Request,
    ) -> BoxFuture<'static, Result<reqwest::Response, HttpSendError>> {
        (**self).send(request)
    }
}

/// The error of a request without a response.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum HttpSendError {
    /// Nothing reached the server.
    NotSent(Arc<dyn StdError + Send + Sync>),
    /// The request may have reached the server.
    Lost(Arc<dyn StdError + Send + Sync>),
}

impl fmt::Display for HttpSendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent(_) => "the request was not sent",
            Self::Lost(_) => "the request may have been sent, and got no response",
        })
    }
}

impl StdError for HttpSendError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::NotSent(source) | Self::Lost(source) => Some(source.as_ref()),
        }
    }
}

/// What a connection sends with.
#[derive(Clone)]
pub(crate) enum Sender {
    Client(reqwest::Client),
    Custom(Arc<dyn HttpSender>),
}

impl Sender {
    pub(super) fn request(&self, method: reqwest::Method, url: url::Url) -> reqwest::RequestBuilder {
        match self {
            Self::Client(http) => http.request(method, url),
            // A builder needs a client; this one is never used to send.
            Self::Custom(_) => {
                reqwest::RequestBuilder::from_parts(placeholder(), reqwest::Request::new(method, url))
            }
        }
    }

    pub(super) async fn send(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, HttpSendError> {
        match self {
            Self::Client(_) => request.send().await.map_err(from_reqwest),
            Self::Custom(sender) => {
                let request = request.build().map_err(from_reqwest)?;
                sender.send(request).await
            }
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client(_) => "Client",
            Self::Custom(_) => "Custom",
        })
    }
}

fn from_reqwest(error: reqwest::Error) -> HttpSendError {
    // The URL is omitted from the error, because it may contain data that must not be logged.
    let error = error.without_url();
    let not_sent = error.is_connect() || error.is_builder();
    let cause: Cause = Arc::new(error);
    if not_sent { HttpSendError::NotSent(cause) } else { HttpSendError::Lost(cause) }
}

fn placeholder() -> reqwest::Client {
    static CLIENT: std::sync::OnceLock<reqwest::Client> = std::sync::OnceLock::new();
    CLIENT.get_or_init(|| super::http_client_builder().build().unwrap_or_default()).clone()
}
