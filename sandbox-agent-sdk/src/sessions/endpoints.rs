//! The endpoints of a released server: each has its own agent process and stream.

use std::sync::Arc;

use reqwest::Method;
use serde_json::Value;

use super::shared::{Shared, UsedBy};
use crate::client::ENDPOINTS;
use crate::client::connection::Connection;
use crate::client::wiring::RELEASED_CLOSE;
use crate::control::{Call, Route};
use crate::convert::text::OneLine;
use crate::stream::{StreamPosition, StreamReader};
use crate::{Error, SandboxAgentClient, ServerKind};

impl Connection {
    /// The path of the endpoint if no other process uses it; `None` for a shared endpoint.
    pub(super) fn own_path(&self) -> Option<&str> {
        (self.kind() == ServerKind::PerAgent).then_some(&self.wiring.path)
    }
}

impl SandboxAgentClient {
    /// Whether a released server still has this endpoint, even if its agent has ended.
    pub(super) async fn has_endpoint(&self, path: &str) -> Result<bool, Error> {
        let call = Call::new("list endpoints", Method::GET, Route::new(ENDPOINTS));
        let list: Value = self.control().http().value(Ok(call)).await?;
        let servers = list.get("servers").and_then(Value::as_array);
        let is_it = |server: &Value| server["serverId"].as_str().is_some_and(|id| id == name_of(path));
        Ok(servers.into_iter().flatten().any(is_it))
    }

    /// Ends an endpoint with its agent. A released server responds when the agent has ended, or the request is dropped.
    pub(super) async fn end_endpoint(&self, path: &str) {
        let route = Route::new(ENDPOINTS).segment(name_of(path));
        let call = route.map(|route| Call::new("end endpoint", Method::DELETE, route));
        if let Ok(Err(error)) = tokio::time::timeout(RELEASED_CLOSE, self.control().http().done(call)).await {
            tracing::warn!(error = %OneLine(&error), "the endpoint of another process could not be ended");
        }
    }

    /// Reads the stream of another endpoint of the same server.
    pub(super) fn read_endpoint(&self, path: &str, from: StreamPosition) -> StreamReader {
        StreamReader::new(Arc::clone(self.inner()), Some(path.to_owned()), from, None)
    }
}

impl Shared {
    /// Ends the endpoint of another process that a session was on, if no other stored session that may continue is there.
    ///
    /// This is only for a session whose owner has not released it: a process that released it ends its endpoint itself.
    pub(super) async fn end_left_endpoint(&self, client: &SandboxAgentClient, id: &str, left: &str) {
        let Some(path) = self.path_of(left) else { return };
        let present = client.inner().present();
        let is_present = present.is_some_and(|connection| connection.own_path() == Some(path));
        // If the store does not say whether it is in use, the next owner of a session there ends it.
        if !is_present
            && matches!(self.is_in_use(left, UsedBy::SessionsBut(id)).await, Ok(false))
            && matches!(client.has_endpoint(path).await, Ok(true))
        {
            client.end_endpoint(path).await;
        }
    }
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}
