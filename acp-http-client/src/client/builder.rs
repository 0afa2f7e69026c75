//! The builder of a client.

use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::{
    core::{Core, Options},
    handle::AcpHttpClient,
};
use crate::{
    AgentHandler, AgentRequests, Auth, Dialect, Envelope, Error, EventId, HttpSender, Inbound, Json, Limits,
    ReconnectPolicy, Timeouts, Token, TokenProvider, Verdict,
    handler::{AnyHandler, ChannelHandler, NoHandler},
    rpc::Ids,
    tap::{Hook, Refusals, Tap},
    transport::{Sender, Transport, TransportConfig, default_client},
};

/// A server may handle a cancel before its prompt, which loses the cancel. A repeated cancel arrives after the
/// prompt.
const CANCEL_REPEATS: u32 = 3;

/// Configures an [`AcpHttpClient`]. [`build`](Self::build) reports invalid settings.
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
    resume_from: Option<EventId>,
    connection_id: Option<String>,
    handler: Arc<dyn AnyHandler>,
    tap: Option<Tap>,
    hook: Option<Hook>,
    refusals: Refusals,
    all_agent_requests: bool,
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
            refusals: Refusals::default(),
            all_agent_requests: false,
        }
    }

    /// Sets the path of the endpoint below the base URL. The default depends on the dialect: `/v1/rpc`, or `/acp` for
    /// the official transport. Percent-encode parts that come from untrusted input.
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Adds a query parameter to the first POST.
    pub fn bootstrap_query(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    /// Sends this bearer token with every request.
    pub fn token(mut self, token: impl AsRef<str>) -> Self {
        self.auth = Token::new(token).map(Auth::token);
        self
    }

    /// Sets the provider that returns the token for each request.
    ///
    /// The client calls it before every request, and once more if the server responds with 401.
    pub fn token_provider(mut self, provider: impl TokenProvider) -> Self {
        self.auth = Ok(Auth::provider(provider));
        self
    }

    /// Sets the authorisation, which several clients can share.
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = Ok(auth);
        self
    }

    /// Sends this header with every request.
    pub fn header(mut self, name: impl TryInto<HeaderName>, value: impl TryInto<HeaderValue>) -> Self {
        self.headers = self.headers.and_then(|mut headers| match (name.try_into(), value.try_into()) {
            (Ok(name), Ok(mut value)) => {
                // It may be a key, so it is left out of `Debug` output.
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

    /// Sets the HTTP client. It should not follow redirects. If it has a total timeout, the event stream reconnects
    /// each time the timeout expires; no event is lost.
    pub fn http_client(mut self, http: reqwest::Client) -> Self {
        self.http = Some(Sender::Client(http));
        self
    }

    /// Sets a sender that replaces the [`reqwest::Client`].
    pub fn http_sender(mut self, sender: impl HttpSender) -> Self {
        self.http = Some(Sender::Custom(Arc::new(sender)));
        self
    }

    /// Uses HTTP/2 on plain `http` connections, without negotiation. Over TLS, HTTP/2 is negotiated anyway.
    pub fn http2_prior_knowledge(mut self) -> Self {
        self.http2_prior_knowledge = true;
        self
    }

    /// Sets how the server behaves on the wire. The default is [`Dialect::AUTO`].
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Sets the maximum number of times `session/cancel` is repeated while the turn runs. Default 3.
    ///
    /// A cancel that the server has not confirmed by then is also sent again whenever the stream is reopened, unless
    /// this is 0.
    pub fn cancel_repeats(mut self, repeats: u32) -> Self {
        self.cancel_repeats = repeats;
        self
    }

    /// Sets a cheap request to which the server responds without the agent.
    ///
    /// The client sends it if a reopened stream is unexpectedly silent: the position of its echo shows whether the
    /// server restarted. Without a probe, requests that were lost in a restart wait for
    /// [`Timeouts::confirmation`](crate::Timeouts#structfield.confirmation).
    pub fn probe(mut self, method: impl Into<String>, params: serde_json::Value) -> Self {
        self.probe = Some((method.into(), params));
        self
    }

    /// Sets the timeouts.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Sets the limits on data from the server.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets when and how often a lost stream is reopened.
    pub fn reconnect(mut self, policy: ReconnectPolicy) -> Self {
        self.reconnect = policy;
        self
    }

    /// Sets whether dropping a request before its response cancels it on the server. Default true.
    ///
    /// [`Request::cancel_on_drop`](crate::Request::cancel_on_drop) overrides it.
    pub fn cancel_on_drop(mut self, cancel: bool) -> Self {
        self.cancel_on_drop = cancel;
        self
    }

    /// Sets the event after which to start reading, such as the last event of an earlier client. See
    /// [`AcpHttpClient::last_event_id`].
    ///
    /// Events up to this one are not delivered; all later events are live.
    pub fn resume_from(mut self, last_event_id: impl Into<EventId>) -> Self {
        self.resume_from = Some(last_event_id.into());
        self
    }

    /// Continues an existing connection. See [`AcpHttpClient::connection_id`].
    pub fn connection_id(mut self, id: impl Into<String>) -> Self {
        self.connection_id = Some(id.into());
        self
    }

    /// Sets the handler of agent requests.
    ///
    /// Without a handler, permissions are rejected or cancelled, and other requests get the error "method not found".
    /// On a shared endpoint, the handler receives only the requests that are addressed to this client; see
    /// [`all_agent_requests`](Self::all_agent_requests).
    pub fn handler(mut self, handler: impl AgentHandler) -> Self {
        self.handler = Arc::new(handler);
        self
    }

    /// Delivers agent requests as a stream instead of to a handler.
    pub fn agent_requests(mut self) -> (Self, AgentRequests) {
        let (handler, requests) = ChannelHandler::new();
        self.handler = Arc::new(handler);
        (self, requests)
    }

    /// Sets a function that receives every message once, in both directions.
    ///
    /// It runs in the task that reads or sends the message, so it must return quickly. A response that arrives in a
    /// body and is echoed on the stream is passed once, in the order of the stream.
    pub fn tap(mut self, tap: impl Fn(Envelope<'_>) + Send + Sync + 'static) -> Self {
        self.tap = Some(Tap::new(tap));
        self
    }

    /// Sets a function that receives every notification before subscribers do.
    ///
    /// It decides what the notification means for pending requests. Use it in layers above this crate that know when
    /// an agent has exited.
    pub fn on_notification(mut self, hook: impl Fn(&Inbound<'_>) -> Verdict + Send + Sync + 'static) -> Self {
        self.hook = Some(Hook::new(hook));
        self
    }

    /// Sets whether the handler also receives agent requests that are not addressed to this client. Default false.
    ///
    /// On a shared endpoint each client receives the agent requests of all clients, and the first response counts. A
    /// request is addressed to this client only while a request of this client about the same session is pending.
    /// Every other request, and a request that names no session, is only published as
    /// [`Event::AgentRequest`](crate::Event::AgentRequest) and gets no response. If this is set, the handler must
    /// decide which requests to leave to other clients; see [`Responder::ignore`](crate::Responder::ignore).
    ///
    /// It has no effect if the endpoint is not [shared](Dialect#structfield.shared): all requests are addressed to
    /// this client.
    pub fn all_agent_requests(mut self, all: bool) -> Self {
        self.all_agent_requests = all;
        self
    }

    /// Sets a filter for the agent requests to refuse if a limit is exceeded.
    ///
    /// The filter receives the parameters of an agent request over a limit. If it returns `true`, the request is
    /// refused with an error response; otherwise it gets no response from this client. By default all are refused. Use
    /// the filter on a shared endpoint: each client receives all agent requests, and the first response counts.
    pub fn refuse_if(mut self, filter: impl Fn(&Json) -> bool + Send + Sync + 'static) -> Self {
        self.refusals = Refusals::new(filter);
        self
    }

    /// Builds the client. Sends nothing; the first request opens the connection.
    ///
    /// # Errors
    /// [`Error::Config`] if a setting is invalid.
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
        let ids = Ids::new().map_err(|error| {
            Error::Config(format!("the operating system provides no randomness: {error}"))
        })?;
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
            refusals: self.refusals,
            all_agent_requests: self.all_agent_requests,
        };
        Ok(AcpHttpClient::from_core(Arc::new(Core::new(options, transport, ids, bootstrap))))
    }
}

impl fmt::Debug for AcpHttpClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URL, query, headers and ids may be secrets.
        f.debug_struct("AcpHttpClientBuilder").field("dialect", &self.dialect.name()).finish_non_exhaustive()
    }
}

/// Joins base and path into the URL of the endpoint.
fn endpoint(base: &str, path: &str) -> Result<Url, Error> {
    // The URL is left out of the error: it may contain a secret.
    let invalid = |what: &str| Err(Error::Config(format!("the base URL {what}")));
    let Ok(mut url) = Url::parse(base.trim()) else { return invalid("is invalid") };
    if !matches!(url.scheme(), "http" | "https") {
        return invalid("is neither http nor https");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return invalid("contains credentials; use a token or a header");
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
    fn invalid_settings_are_reported_without_secrets() {
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
