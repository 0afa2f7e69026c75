//! How a client is set up.

use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::{
    core::{Core, Options},
    handle::AcpHttpClient,
};
use crate::{
    AgentHandler, AgentRequests, Auth, Dialect, Envelope, Error, HttpSender, Inbound, Limits,
    ReconnectPolicy, Timeouts, Token, TokenProvider, Verdict,
    handler::{AnyHandler, ChannelHandler, NoHandler},
    rpc::Ids,
    tap::{Hook, Tap},
    transport::{Sender, Transport, TransportConfig, default_client},
};

/// How many agent requests may wait for the reader of a channel. Beyond it their order is not kept.
const CHANNEL_CAPACITY: usize = 1024;
/// A cancel that a server handled before its prompt is lost; the second or third one comes after it.
const CANCEL_REPEATS: u32 = 3;

/// Sets up an [`AcpHttpClient`]. What is wrong with a setting is told by [`build`](Self::build).
#[must_use = "a builder does nothing until it is built"]
pub struct AcpHttpClientBuilder {
    base_url: String,
    path: Option<String>,
    query: Vec<(String, String)>,
    auth: Result<Auth, Error>,
    headers: Result<HeaderMap, Error>,
    http: Option<Sender>,
    http2_prior_knowledge: bool,
    dialect: Dialect,
    timeouts: Timeouts,
    limits: Limits,
    reconnect: ReconnectPolicy,
    cancel_on_drop: bool,
    cancel_repeats: u32,
    probe: Option<(String, serde_json::Value)>,
    resume_from: Option<String>,
    connection_id: Option<String>,
    handler: Arc<dyn AnyHandler>,
    tap: Option<Tap>,
    hook: Option<Hook>,
}

impl AcpHttpClientBuilder {
    pub(crate) fn new(base_url: &str) -> Self {
        Self {
            base_url: base_url.to_owned(),
            path: None,
            query: Vec::new(),
            auth: Ok(Auth::none()),
            headers: Ok(HeaderMap::new()),
            http: None,
            http2_prior_knowledge: false,
            dialect: Dialect::AUTO,
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            reconnect: ReconnectPolicy::default(),
            cancel_on_drop: true,
            cancel_repeats: CANCEL_REPEATS,
            probe: None,
            resume_from: None,
            connection_id: None,
            handler: Arc::new(NoHandler),
            tap: None,
            hook: None,
        }
    }

    /// The path of the endpoint behind the base URL. The default is the dialect's: `/v1/rpc`, or `/acp` for the
    /// official transport. A part of it that is not ours to choose has to be percent-encoded.
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// A query parameter that goes with the first POST only.
    pub fn bootstrap_query(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    /// The bearer token to send with every request.
    pub fn token(mut self, token: impl AsRef<str>) -> Self {
        self.auth = Token::new(token).map(Auth::token);
        self
    }

    /// Asks for a token before every request, and once more when the server refuses it.
    pub fn token_provider(mut self, provider: impl TokenProvider) -> Self {
        self.auth = Ok(Auth::provider(provider));
        self
    }

    /// The same as [`token`](Self::token) or [`token_provider`](Self::token_provider), for a setting that is shared.
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = Ok(auth);
        self
    }

    /// A header to send with every request.
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        let name = HeaderName::try_from(name.as_ref());
        let value = HeaderValue::try_from(value.as_ref());
        self.headers = self.headers.and_then(|mut headers| match (name, value) {
            (Ok(name), Ok(mut value)) => {
                // It may be a key: it is not shown.
                value.set_sensitive(true);
                headers.append(name, value);
                Ok(headers)
            }
            (Err(_), _) => Err(Error::Config("a header has a name that HTTP does not allow".to_owned())),
            (Ok(name), Err(_)) => {
                Err(Error::Config(format!("the header `{name}` has a value that HTTP does not allow")))
            }
        });
        self
    }

    /// An HTTP client of your own. Its settings are yours: it should not follow redirects, and a total timeout
    /// makes the event stream reconnect each time it passes (nothing is lost by that).
    pub fn http_client(mut self, http: reqwest::Client) -> Self {
        self.http = Some(Sender::Client(http));
        self
    }

    /// Sends HTTP requests by means of your own in place of a [`reqwest::Client`].
    pub fn http_sender(mut self, sender: impl HttpSender) -> Self {
        self.http = Some(Sender::Custom(Arc::new(sender)));
        self
    }

    /// Speaks HTTP/2 without asking. Over TLS it is used by itself where the server offers it.
    pub fn http2_prior_knowledge(mut self) -> Self {
        self.http2_prior_knowledge = true;
        self
    }

    /// What the server is known to do on the wire. The default is [`Dialect::AUTO`].
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// How often `session/cancel` is repeated at most while the turn runs. Default 3.
    pub fn cancel_repeats(mut self, repeats: u32) -> Self {
        self.cancel_repeats = repeats;
        self
    }

    /// A cheap request that the server answers itself. It is sent when a reopened stream is silent although it should
    /// not be: the position of its echo shows whether the server restarted. Without one, requests that a restart behind
    /// a silent stream swallowed wait for [`Timeouts::confirmation`](crate::Timeouts::confirmation).
    pub fn probe(mut self, method: impl Into<String>, params: serde_json::Value) -> Self {
        self.probe = Some((method.into(), params));
        self
    }

    /// How long to wait for what.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// How much memory to take.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How a lost stream is opened again.
    pub fn reconnect(mut self, policy: ReconnectPolicy) -> Self {
        self.reconnect = policy;
        self
    }

    /// Whether the agent gets `$/cancel_request` when a request's future is dropped before its answer. On by
    /// default.
    pub fn cancel_on_drop(mut self, cancel: bool) -> Self {
        self.cancel_on_drop = cancel;
        self
    }

    /// Goes on where another client left: nothing up to this event is delivered again, see
    /// [`AcpHttpClient::last_event_id`].
    pub fn resume_from(mut self, last_event_id: impl Into<String>) -> Self {
        self.resume_from = Some(last_event_id.into());
        self
    }

    /// Goes on with a connection that exists, see [`AcpHttpClient::connection_id`].
    pub fn connection_id(mut self, id: impl Into<String>) -> Self {
        self.connection_id = Some(id.into());
        self
    }

    /// Who answers what the agent asks. Without one, permissions are refused and everything else is unknown.
    pub fn handler(mut self, handler: impl AgentHandler) -> Self {
        self.handler = Arc::new(handler);
        self
    }

    /// Gives what the agent asks as a stream instead of to a handler.
    pub fn agent_requests(mut self) -> (Self, AgentRequests) {
        let (handler, requests) = ChannelHandler::new(CHANNEL_CAPACITY);
        self.handler = Arc::new(handler);
        (self, requests)
    }

    /// A function that sees every message once, in both directions. It runs where the message passes: keep it
    /// short. An answer that comes both in a body and on the stream is seen in its place on the stream.
    pub fn tap(mut self, tap: impl Fn(Envelope<'_>) + Send + Sync + 'static) -> Self {
        self.tap = Some(Tap::new(tap));
        self
    }

    /// A function that sees every notification before its subscribers do and decides what it means for the calls
    /// that are pending: for layers above that know when an agent is dead.
    pub fn on_notification(mut self, hook: impl Fn(&Inbound<'_>) -> Verdict + Send + Sync + 'static) -> Self {
        self.hook = Some(Hook::new(hook));
        self
    }

    /// Makes the client. Nothing is sent yet.
    pub fn build(self) -> Result<AcpHttpClient, Error> {
        let path = self.path.as_deref().unwrap_or(self.dialect.default_path());
        let endpoint = endpoint(&self.base_url, path)?;
        let connection_id = self.connection_id.map(HeaderValue::try_from).transpose();
        let connection_id = connection_id
            .map_err(|_| Error::Config("the connection id cannot be sent in a header".to_owned()))?;
        let http = match self.http {
            Some(http) => http,
            None => Sender::Client(default_client(&self.timeouts, &endpoint, self.http2_prior_knowledge)?),
        };
        let bootstrap = !self.query.is_empty() || self.dialect.bootstrap;
        let transport = Transport::new(TransportConfig {
            http,
            endpoint,
            bootstrap_query: self.query,
            headers: self.headers?,
            auth: self.auth?,
            dialect: self.dialect.clone(),
            limits: self.limits.clone(),
            connection_id,
        });
        let ids = Ids::new()
            .map_err(|error| Error::Config(format!("the operating system has no randomness: {error}")))?;
        let options = Options {
            dialect: self.dialect,
            timeouts: self.timeouts,
            limits: self.limits,
            reconnect: self.reconnect,
            cancel_on_drop: self.cancel_on_drop,
            cancel_repeats: self.cancel_repeats,
            probe: self.probe,
            resume_from: self.resume_from,
            handler: self.handler,
            tap: self.tap,
            hook: self.hook,
        };
        Ok(AcpHttpClient::from_core(Arc::new(Core::new(options, transport, ids, bootstrap))))
    }
}

impl fmt::Debug for AcpHttpClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URL, query, headers and ids may hold what must not be in a log.
        f.debug_struct("AcpHttpClientBuilder").field("dialect", &self.dialect.name()).finish_non_exhaustive()
    }
}

/// Joins base and path, and refuses what cannot be an endpoint.
fn endpoint(base: &str, path: &str) -> Result<Url, Error> {
    // The URL is not repeated in the error: it may hold what its owner does not want in a log.
    let invalid = |what: &str| Err(Error::Config(format!("the base URL {what}")));
    let Ok(mut url) = Url::parse(base.trim()) else { return invalid("is no URL") };
    if !matches!(url.scheme(), "http" | "https") {
        return invalid("is neither http nor https");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return invalid("holds credentials; use a token or a header");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return invalid("has a query or a fragment");
    }
    let joined = format!("{}/{}", url.path().trim_end_matches('/'), path.trim_start_matches('/'));
    url.set_path(&joined);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined() {
        let table = [
            ("http://h:1", "/v1/rpc", "http://h:1/v1/rpc"),
            ("http://h:1/", "v1/rpc", "http://h:1/v1/rpc"),
            ("https://h/base/", "/v1/rpc", "https://h/base/v1/rpc"),
            (" http://h ", "/v1/acp/a%2Fb c?d", "http://h/v1/acp/a%2Fb%20c%3Fd"),
        ];
        for (base, path, expected) in table {
            assert_eq!(endpoint(base, path).unwrap().as_str(), expected);
        }
    }

    #[test]
    fn bad_settings_are_told_and_secrets_are_not() {
        for base in
            ["", "nonsense", "ftp://h", "http://", "http://u:secret@h", "http://h?token=secret", "http://h#x"]
        {
            let error = AcpHttpClient::builder(base).build().unwrap_err();
            assert!(matches!(error, Error::Config(_)), "{base}");
            assert!(!error.to_string().contains("secret"));
            let builder =
                AcpHttpClient::builder(base).header("x-key", "secret").bootstrap_query("k", "secret");
            assert!(!format!("{builder:?}").contains("secret"));
        }
        let builders = [
            AcpHttpClient::builder("http://h").token("a\nb"),
            AcpHttpClient::builder("http://h").header("bad name", "x"),
            AcpHttpClient::builder("http://h").header("x", "a\u{0}"),
            AcpHttpClient::builder("http://h").connection_id("a\nb"),
        ];
        for builder in builders {
            assert!(matches!(builder.build(), Err(Error::Config(_))));
        }
    }
}
