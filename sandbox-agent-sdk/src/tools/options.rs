//! The tools in the options of a client.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::agent_tools::{AccessFunction, AgentTools};
use super::files::TextFiles;
#[cfg(all(feature = "terminals", unix))]
use super::terminals::{TerminalOptions, Terminals};
use crate::client::Part;
use crate::requests::{AgentRequest, RequestHandler, Requests, Response};

/// The tools of a client. Each connection has its own tools, which end with it.
#[derive(Clone, Default)]
pub(crate) struct ToolOptions {
    pub(crate) files: Option<Arc<dyn TextFiles>>,
    #[cfg(all(feature = "terminals", unix))]
    pub(crate) terminals: Option<TerminalOptions>,
    pub(crate) advertised: Option<AccessFunction>,
    pub(crate) max_calls: Option<usize>,
}

impl Part for ToolOptions {
    /// Registers the tools of a client, if any are on.
    fn register(&self, requests: &Requests) {
        #[cfg(all(feature = "terminals", unix))]
        let has_terminals = self.terminals.is_some();
        #[cfg(not(all(feature = "terminals", unix)))]
        let has_terminals = false;
        if self.files.is_none() && !has_terminals {
            return;
        }
        let is_for_tools = |request: &AgentRequest| {
            ["fs/", "terminal/"].iter().any(|kind| request.method().starts_with(kind))
        };
        requests.register(is_for_tools, self.clone()).detach();
    }
}

impl ToolOptions {
    fn tools(&self) -> AgentTools {
        let mut tools = AgentTools::new();
        if let Some(count) = self.max_calls {
            tools = tools.max_calls(count);
        }
        if let Some(files) = &self.files {
            tools = tools.shared_files(Arc::clone(files));
        }
        #[cfg(all(feature = "terminals", unix))]
        if let Some(terminals) = &self.terminals {
            tools = tools.terminals(Terminals::new(terminals.clone()));
        }
        tools.advertised = self.advertised.clone();
        tools
    }
}

impl RequestHandler for ToolOptions {
    /// Unused: each connection has its own handler.
    fn handle(&self, request: AgentRequest) -> BoxFuture<'static, Response> {
        request.forward()
    }

    fn for_connection(&self, _agent: &str) -> Option<Arc<dyn RequestHandler>> {
        Some(Arc::new(self.tools()))
    }
}

impl fmt::Debug for ToolOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolOptions").field("files", &self.files.is_some()).finish_non_exhaustive()
    }
}
