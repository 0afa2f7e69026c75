//! How the connections to one endpoint are set up.

use std::sync::Arc;

use acp_http_client as wire;
use reqwest::header::HeaderName;
use serde_json::json;
use tokio::time::Duration;

use super::ENDPOINTS;
use super::probe::Endpoint;
use crate::client::random::random_id;
use crate::{ClientOptions, Error, ServerKind};

/// The time limit for sending the request that closes a connection to a released server.
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
        let limits = &self.options.limits;
        let mut wired = wire::Limits::default();
        wired.message = limits.message;
        wired.error_body = limits.error_body;
        wired.decoded = limits.message.saturating_mul(limits.expansion);
        wired.open_requests = match self.kind {
            // Every client of the endpoint receives all requests. The router limits those of this client.
            ServerKind::Shared => {
                limits.open_requests.saturating_add(limits.unclaimed_requests).saturating_add(UNROUTED)
            }
            _ => limits.open_requests,
        };
        wired
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
        timeouts.close = match self.kind {
            // While their agent runs, released servers respond only when the request is aborted. The request only has
            // to be sent.
            ServerKind::PerAgent => times.disconnect.min(RELEASED_CLOSE),
            _ => times.disconnect,
        };
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

/// A name that cannot be guessed. It is a credential: any client that knows it can use the agent.
fn server_id(agent: &str) -> Result<String, Error> {
    let readable: String = agent.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    let random = random_id().map_err(Error::randomness)?;
    Ok(format!("sdk-{readable}-{random}"))
}

#[cfg(test)]
mod tests {
    use super::server_id;
    use crate::Error;
    use crate::client::random::outage;

    #[test]
    fn ids_are_safe_in_a_path_and_never_the_same() {
        let ids: std::collections::HashSet<_> = (0..100).map(|_| server_id("a/../b?x").unwrap()).collect();
        assert_eq!(ids.len(), 100);
        assert!(ids.iter().all(|id| id.starts_with("sdk-abx-") && id.len() == "sdk-abx-".len() + 32));
    }

    #[test]
    fn without_randomness_of_the_system_there_is_no_endpoint() {
        assert!(matches!(outage::during(|| server_id("claude")), Err(Error::Local { .. })));
    }
}
