//! How a control plane is set up.

use std::fmt;

use acp_http_client::{Auth, Token, TokenProvider};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::http::Http;
use super::plane::ControlPlane;
use super::route::parse_base;
use super::timeouts::ControlTimeouts;
use crate::Error;
use crate::client::limits::Limits;

/// Sets up a [`ControlPlane`]. What is wrong with a setting is told by [`build`](Self::build).
#[must_use = "a builder does nothing until it is built"]
pub struct ControlPlaneBuilder {
    base_url: String,
    auth: Result<Auth, Error>,
    headers: Result<HeaderMap, Error>,
    http: Option<reqwest::Client>,
    timeouts: ControlTimeouts,
    limits: Limits,
}

impl ControlPlaneBuilder {
    pub(super) fn new(base_url: &str) -> Self {
        Self {
            base_url: base_url.to_owned(),
            auth: Ok(Auth::none()),
            headers: Ok(HeaderMap::new()),
            http: None,
            timeouts: ControlTimeouts::default(),
            limits: Limits::default(),
        }
    }

    /// The bearer token to send with every request, with or without the word `Bearer` before it.
    pub fn token(mut self, token: impl AsRef<str>) -> Self {
        self.auth = Token::new(token).map(Auth::token).map_err(Error::from_wire);
        self
    }

    /// Asks for a token before every request, and once more when the server refuses it.
    pub fn token_provider(mut self, provider: impl TokenProvider) -> Self {
        self.auth = Ok(Auth::provider(provider));
        self
    }

    /// A header to send with every request.
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        let name = HeaderName::try_from(name.as_ref());
        let value = HeaderValue::try_from(value.as_ref());
        self.headers = self.headers.and_then(|mut headers| match (name, value) {
            (Ok(name), Ok(mut value)) => {
                // Gateways take keys in headers of all names, so that none of them is shown.
                value.set_sensitive(true);
                headers.append(name, value);
                Ok(headers)
            }
            (Err(_), _) => Err(Error::config("a header has a name that HTTP does not allow")),
            (Ok(name), Err(_)) => {
                Err(Error::config(format!("the header `{name}` has a value that HTTP does not allow")))
            }
        });
        self
    }

    /// An HTTP client of your own. Its settings are yours: it should neither follow redirects nor have a total
    /// timeout.
    pub fn http_client(mut self, http: reqwest::Client) -> Self {
        self.http = Some(http);
        self
    }

    /// How long to wait for what.
    pub fn timeouts(mut self, timeouts: ControlTimeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Bounds on what is accepted over the wire.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Makes the control plane. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Config`] says which of the settings cannot be used.
    pub fn build(self) -> Result<ControlPlane, Error> {
        let base = parse_base(&self.base_url)?;
        let client = match self.http {
            Some(client) => client,
            None => crate::client::network::http_client_builder_for(&self.base_url)
                .connect_timeout(self.timeouts.connect)
                .build()
                .map_err(|error| Error::config(format!("the HTTP client cannot be made: {error}")))?,
        };
        Ok(ControlPlane::over(Http::new(client, base, self.auth?, self.headers?, self.timeouts, self.limits)))
    }
}

/// Secrets may be in the URL and in the headers.
impl fmt::Debug for ControlPlaneBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers = self.headers.as_ref().map(|headers| headers.keys().collect::<Vec<_>>());
        f.debug_struct("ControlPlaneBuilder")
            .field("base_url", &parse_base(&self.base_url).map(String::from))
            .field("auth", &self.auth)
            .field("headers", &headers)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}
