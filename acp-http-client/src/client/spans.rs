//! The tracing spans of a connection and of its calls.

use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Span;

/// Numbers the connections of this process.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// The span of a connection. Spans contain neither content nor secrets; the connection id that a server assigns is a
/// secret.
#[derive(Debug)]
pub(crate) struct Spans {
    /// The number of the connection in this process, which every span of it has as its field `connection`.
    pub(crate) connection: u64,
    pub(crate) span: Span,
}

impl Spans {
    /// A span that outlives the caller's: it has no parent.
    pub(super) fn new(dialect: &'static str) -> Self {
        let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        let span = tracing::info_span!(parent: None, "acp_connection", connection, dialect);
        Self { connection, span }
    }

    /// The span of a request, within the span of the caller.
    pub(crate) fn request(&self, method: &str, id: u64) -> Span {
        tracing::debug_span!("acp_request", connection = self.connection, method, id)
    }

    /// The span of a notification, within the span of the caller.
    pub(crate) fn notification(&self, method: &str) -> Span {
        tracing::debug_span!("acp_notification", connection = self.connection, method)
    }
}
