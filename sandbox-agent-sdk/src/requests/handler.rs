//! Permission handlers, and who decided a permission request.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;

use super::permission::PermissionRequest;
use super::policy::PermissionDecision;

type Handle = Arc<dyn Fn(PermissionRequest) -> BoxFuture<'static, PermissionDecision> + Send + Sync>;

/// An asynchronous function that decides permission requests.
#[derive(Clone)]
pub(crate) struct PermissionHandler(Handle);

impl PermissionHandler {
    pub(crate) fn new<F, D>(handler: F) -> Self
    where
        F: Fn(PermissionRequest) -> D + Send + Sync + 'static,
        D: Future<Output = PermissionDecision> + Send + 'static,
    {
        Self(Arc::new(move |request| Box::pin(handler(request))))
    }

    pub(crate) fn call(&self, request: PermissionRequest) -> BoxFuture<'static, PermissionDecision> {
        let handler = Arc::clone(&self.0);
        // Called inside the future, so that a panic in the function itself is caught too.
        Box::pin(async move { handler(request).await })
    }
}

impl fmt::Debug for PermissionHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermissionHandler")
    }
}

/// A permission request that was decided without a deciding subscription.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PermissionDecided {
    /// The request. [`PermissionRequest::outcome`] returns the decision.
    pub request: PermissionRequest,
    /// Who decided.
    pub by: DecidedBy,
}

impl PermissionDecided {
    pub(crate) fn new(request: PermissionRequest, by: DecidedBy) -> Self {
        Self { request, by }
    }
}

/// Who decided a permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum DecidedBy {
    /// The [policy](crate::PermissionPolicy).
    Policy,
    /// The [permission handler](crate::ClientOptions::permission_handler).
    Handler,
    /// The default: the request was rejected because nothing decided it.
    ///
    /// There was no handler, no turn read with [`Turn::next_event`](crate::Turn::next_event), and no
    /// [deciding](crate::Events::deciding) subscription.
    Default,
}
