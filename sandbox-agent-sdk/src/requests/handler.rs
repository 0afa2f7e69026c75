//! What decides about permissions besides policies.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::permission::PermissionRequest;
use super::policy::PermissionDecision;

type Handle = Arc<dyn Fn(PermissionRequest) -> BoxFuture<'static, PermissionDecision> + Send + Sync>;

/// An asynchronous function that decides about permissions.
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
        // The function itself runs in the future, so that a panic in it is caught with those of its future.
        Box::pin(async move { handler(request).await })
    }
}

impl fmt::Debug for PermissionHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermissionHandler")
    }
}

/// A permission request that was decided without a subscriber.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PermissionDecided {
    /// The request; [`PermissionRequest::outcome`] says how it was decided.
    pub request: PermissionRequest,
    /// What decided.
    pub by: DecidedBy,
}

impl PermissionDecided {
    pub(crate) fn new(request: PermissionRequest, by: DecidedBy) -> Self {
        Self { request, by }
    }
}

/// What decided about a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecidedBy {
    /// The [policy](crate::PermissionPolicy).
    Policy,
    /// The [permission handler](crate::ClientOptions::permission_handler).
    Handler,
    /// There was no handler, no turn that is read by events and no deciding subscription: it was refused.
    Default,
}
