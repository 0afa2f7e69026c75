//! How the connections to one endpoint are set up.

use std::sync::Arc;

use acp_http_client as wire;
use reqwest::header::HeaderName;
use serde_json::json;
use tokio::time::Duration;

use super::ENDPOINTS;
use super::probe::Endpoint;
use crate::client::limits::Limits;
use crate::client::random::random_id;
use crate::{ClientOptions, Error, ServerKind};

/// How long a released server may take to respond to the request that closes a connection, once it was sent.
pub(crate) const RELEASED_CLOSE: Duration = Duration::from_millis(300);

/// How many agent requests of a shared endpoint may wait for the router.
const UNROUTED: usize = 1024;

/// An endpoint, and how to connect to it.
#[derive(Clone)]
pub(crate) struct Wiring {
    options: Arc<ClientOptions>,
    http: reqwest::Client,
    kind: ServerKind,
    pub(crate) path: String,
    /// The header of the connection id, if the server assigns one.
    header: HeaderName,
}

impl Wiring {
    pub(super) fn new(
        options: &Arc<ClientOptions>,
        http: &reqwest::Client,
        endpoint: &Endpoint,
        agent: &str,
    ) -> Result<Self, Error> {
        let path = match endpoint.kind {
            ServerKind::PerAgent => format!("{ENDPOINTS}/{}", server_id(agent)?),
            _ => endpoint.path.to_owned(),
        };
        let (kind, header) = (endpoint.kind, endpoint.header.clone());
        Ok(Self { options: Arc::clone(options), http: http.clone(), kind, path, header })
    }

    /// The connection of a client.
    pub(super) fn connection(&self, agent: &str) -> wire::AcpHttpClientBuilder {
        let builder = self.builder();
        match self.kind {
            // No other client knows the random id, so no event of the endpoint is older than this connection.
            ServerKind::PerAgent => builder.bootstrap_query("agent", agent).resume_from("0"),
            // Every server of this kind responds to it, even right after a restart, at least with an error.
            ServerKind::Shared => builder.probe("session/list", json!({})),
            ServerKind::ConnectionId => builder,
        }
    }

    /// Builds another client of the endpoint, which reads the events after this number. It starts no agent, and it
    /// leaves agent requests beyond its limit to the connection instead of refusing them.
    pub(super) fn reader(&self, after: u64) -> wire::AcpHttpClientBuilder {
        let builder = self.builder().limits(self.limits().refusals(0)).resume_from(after.to_string());
        match self.kind {
            ServerKind::PerAgent => builder.dialect(wire::Dialect::ADAPTER),
            _ => builder,
        }
    }

    /// The same server with the endpoint of another process.
    pub(super) fn at(&self, path: &str) -> Self {
        Self { path: path.to_owned(), ..self.clone() }
    }

    fn limits(&self) -> wire::Limits {
        wire_limits(&self.options.limits, self.kind)
    }

    fn builder(&self) -> wire::AcpHttpClientBuilder {
        let options = &self.options;
        let times = &options.timeouts;
        let mut timeouts = wire::Timeouts::default()
            .request(times.request)
            .method("initialize", times.initialize)
            .method("session/new", times.session)
            .method("session/load", times.session)
            .method("session/resume", times.session)
            .method("session/fork", times.session);
        timeouts.close = times.disconnect;
        // While their agent runs, released servers respond only when the request is aborted. The request only has to be
        // sent.
        timeouts.close_response = (self.kind == ServerKind::PerAgent).then_some(RELEASED_CLOSE);
        let mut builder = wire::AcpHttpClient::builder(&options.base_url)
            .http_client(self.http.clone())
            .limits(self.limits())
            .timeouts(timeouts)
            .reconnect(options.reconnect.clone())
            // The request router decides which ones are addressed to this client.
            .all_agent_requests(true)
            .path(&self.path)
            .dialect(match self.kind {
                ServerKind::PerAgent => wire::Dialect::RELEASED,
                ServerKind::ConnectionId => wire::Dialect::EARLY.with_connection_id(self.header.clone()),
                ServerKind::Shared => wire::Dialect::RPC,
            });
        #[cfg(feature = "fuzzing")]
        if let Some(sender) = &options.sender {
            builder = builder.http_sender(Arc::clone(sender));
        }
        for (name, value) in &options.headers {
            builder = builder.header(name, value);
        }
        if let Some(provider) = options.provider.clone() {
            builder = builder.token_provider(move |reason| provider(reason));
        } else if let Some(token) = &options.token {
            builder = builder.token(token);
        }
        builder
    }
}

/// Returns the limits of a connection. Each of them is a limit of the client.
fn wire_limits(limits: &Limits, kind: ServerKind) -> wire::Limits {
    let mut wired = wire::Limits::default();
    wired.message = limits.message;
    wired.subscriber = limits.subscriber;
    wired.id = limits.id;
    wired.decoded = limits.message.saturating_mul(limits.expansion);
    wired.open_requests = match kind {
        // Every client of the endpoint receives all requests. The router limits those of this client.
        ServerKind::Shared => {
            limits.open_requests.saturating_add(limits.unclaimed_requests).saturating_add(UNROUTED)
        }
        _ => limits.open_requests,
    };
    // Here the requests of other clients count too, as text. The router applies the limit of this client.
    wired.open_request_bytes = limits.open_request_bytes.max(wired.open_request_bytes);
    wired.response_bytes = limits.response_bytes;
    wired.response_posts = limits.response_posts;
    wired.refusals = limits.refusals;
    wired.error_body = limits.error_body;
    wired.cookies = limits.cookies;
    wired.backlog = limits.backlog;
    wired
}

/// Creates a name that cannot be guessed. It is a credential: any client that knows it can use the agent.
fn server_id(agent: &str) -> Result<String, Error> {
    let readable: String = agent.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    let random = random_id().map_err(Error::randomness)?;
    Ok(format!("sdk-{readable}-{random}"))
}

#[cfg(test)]
mod tests {
    use super::{Limits, ServerKind, server_id, wire, wire_limits};
    use crate::Error;
    use crate::client::random::outage;

    #[test]
    fn ids_are_safe_in_a_path_and_never_the_same() {
        let ids: std::collections::HashSet<_> = (0..100).map(|_| server_id("a/../b?x").unwrap()).collect();
        assert_eq!(ids.len(), 100);
        assert!(ids.iter().all(|id| id.starts_with("sdk-abx-") && id.len() == "sdk-abx-".len() + 32));
    }

    #[test]
    fn every_limit_of_a_connection_is_set_by_a_limit_of_the_client() {
        // Each field with its value.
        let fields = |limits: &wire::Limits| -> Vec<String> {
            let text = format!("{limits:?}");
            text[text.find('{').unwrap()..].split(',').map(str::to_owned).collect()
        };
        let default = fields(&wire::Limits::default());
        assert!(default.len() > 10, "{default:?}");
        assert_eq!(wire_limits(&Limits::default(), ServerKind::PerAgent).id, wire::Limits::default().id);
        let large = 1 << 30;
        let limits = Limits::default()
            .message(large)
            .subscriber(large)
            .id(large)
            .open_requests(large)
            .open_request_bytes(large)
            .response_bytes(large)
            .response_posts(large)
            .refusals(large)
            .error_body(large)
            .cookies(large)
            .backlog(large);
        for kind in [ServerKind::PerAgent, ServerKind::Shared, ServerKind::ConnectionId] {
            let set = fields(&wire_limits(&limits, kind));
            let unset: Vec<_> = set.iter().filter(|field| default.contains(field)).collect();
            assert!(unset.is_empty() && set.len() == default.len(), "{unset:?}");
        }
    }

    #[test]
    fn without_randomness_of_the_system_there_is_no_endpoint() {
        assert!(matches!(outage::during(|| server_id("claude")), Err(Error::Local { .. })));
    }
}
