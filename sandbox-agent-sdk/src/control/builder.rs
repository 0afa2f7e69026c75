//! The builder of a control plane.

use std::fmt;

use acp_http_client::{Auth, Token, TokenProvider};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::http::Http;
use super::plane::ControlPlane;
use super::route::parse_base;
use super::timeouts::ControlTimeouts;
use crate::Error;
use crate::client::limits::Limits;

/// Builds a [`ControlPlane`]. [`build`](Self::build) reports invalid settings.
#[must_use = "a builder does nothing until it is built"]
pub struct ControlPlaneBuilder {
    base_url: String,
    auth: Result<Auth, Error>,
    headers: Result<HeaderMap, Error>,
    http: Option<(reqwest::Client, bool)>,
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

    /// Sets the bearer token of every request, with or without the prefix `Bearer`.
    pub fn token(mut self, token: impl AsRef<str>) -> Self {
        self.auth = Token::new(token).map(Auth::token).map_err(Error::from_wire);
        self
    }

    /// Sets a provider that returns the token for every request.
    ///
    /// If the server rejects a token, the provider is called once more.
    pub fn token_provider(mut self, provider: impl TokenProvider) -> Self {
        self.auth = Ok(Auth::provider(provider));
        self
    }

    /// Adds a header to every request.
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        let name = HeaderName::try_from(name.as_ref());
        let value = HeaderValue::try_from(value.as_ref());
        self.headers = self.headers.and_then(|mut headers| match (name, value) {
            (Ok(name), Ok(mut value)) => {
                // Gateways accept keys under many header names, so every value is hidden from `Debug`.
                value.set_sensitive(true);
                headers.append(name, value);
                Ok(headers)
            }
            (Err(_), _) => Err(Error::config("a header name is invalid in HTTP")),
            (Ok(name), Err(_)) => {
                Err(Error::config(format!("the value of header `{name}` is invalid in HTTP")))
            }
        });
        self
    }

    /// Sets the HTTP client. It should neither follow redirects nor have a total timeout.
    pub fn http_client(self, http: reqwest::Client) -> Self {
        self.shared_client(http, true)
    }

    /// Sets the HTTP client, and whether the application provided it.
    pub(crate) fn shared_client(mut self, http: reqwest::Client, is_custom: bool) -> Self {
        self.http = Some((http, is_custom));
        self
    }

    /// Sets the timeouts of requests.
    pub fn timeouts(mut self, timeouts: ControlTimeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Sets the limits on data from the server.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Builds the control plane. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting is invalid.
    pub fn build(self) -> Result<ControlPlane, Error> {
        let base = parse_base(&self.base_url)?;
        let client = match self.http {
            Some(client) => client,
            None => (
                crate::client::network::http_client_builder_for(&self.base_url)
                    .connect_timeout(self.timeouts.connect)
                    .build()
                    .map_err(|error| Error::config(format!("the HTTP client cannot be built: {error}")))?,
                false,
            ),
        };
        Ok(ControlPlane::over(Http::new(client, base, self.auth?, self.headers?, self.timeouts, self.limits)))
    }
}

/// The URL and the headers may contain secrets, so they are not shown.
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
