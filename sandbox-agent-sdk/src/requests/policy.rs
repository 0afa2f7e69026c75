//! Permission policies, which decide before any handler or subscriber.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::option::{PermissionKind, PermissionOption};
use super::permission::{PermissionReply, PermissionRequest};
use crate::update::ToolKind;

/// The decision of a permission policy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermissionDecision {
    /// Decides by meaning. The request is rejected if the agent does not offer a matching option.
    Reply(PermissionReply),
    /// Chooses the option with this id. The request is rejected if the agent does not offer this option.
    Option(String),
    /// Rejects the request. Chooses a rejecting option if there is one; otherwise cancels the request.
    Refuse,
    /// Leaves the decision to the application.
    ///
    /// The handler, the reader of the turn or a deciding subscription decides. Without any of these the request is
    /// rejected.
    Ask,
}

type Decide = Arc<dyn Fn(&PermissionRequest) -> PermissionDecision + Send + Sync>;

/// Decides permission requests before any handler or subscriber.
///
/// A timeout never grants a permission.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum PermissionPolicy {
    /// Leaves every decision to the application. The default.
    ///
    /// The [handler](crate::ClientOptions::permission_handler) decides. Without a handler, turns that are read
    /// with [`next_event`](crate::Turn::next_event) and [deciding](crate::Events::deciding) subscriptions
    /// decide, and the first decision counts. Without any of these, requests are rejected.
    #[default]
    Ask,
    /// Allows everything for which the agent offers an allowing option.
    ///
    /// Prefers options for "this time" to options for "from now on". A request without an allowing option is treated
    /// like [`Ask`](Self::Ask).
    BypassPermissions,
    /// Allows changes of files, if the agent offers an allowing option.
    ///
    /// Everything else, including deleting and moving files, is treated like [`Ask`](Self::Ask).
    AcceptEdits,
    /// Rejects everything.
    Deny,
    /// A function decides. See [`PermissionPolicy::function`].
    Function(PermissionFunction),
}

/// A function that decides permission requests.
#[derive(Clone)]
pub struct PermissionFunction(Decide);

impl PermissionPolicy {
    /// Creates a policy from a function.
    ///
    /// The function runs on the event loop and blocks it, so it must return quickly. Return
    /// [`PermissionDecision::Ask`] for decisions that take longer. If the function panics, the request is rejected.
    pub fn function(
        decide: impl Fn(&PermissionRequest) -> PermissionDecision + Send + Sync + 'static,
    ) -> Self {
        Self::Function(PermissionFunction(Arc::new(decide)))
    }

    /// Returns the policy's decision about a request.
    #[must_use]
    pub fn decide(&self, request: &PermissionRequest) -> PermissionDecision {
        match self {
            Self::Ask => PermissionDecision::Ask,
            Self::Deny => PermissionDecision::Refuse,
            Self::BypassPermissions => allow(request.options()),
            Self::AcceptEdits => match request.tool_call().and_then(|call| call.kind.as_ref()) {
                Some(ToolKind::Edit) => allow(request.options()),
                _ => PermissionDecision::Ask,
            },
            Self::Function(PermissionFunction(decide)) => catch_unwind(AssertUnwindSafe(|| decide(request)))
                .unwrap_or_else(|_| {
                    tracing::error!("a permission policy panicked; the request is rejected");
                    PermissionDecision::Refuse
                }),
        }
    }
}

/// Chooses an option that allows the action, preferably only this time.
fn allow(options: &[PermissionOption]) -> PermissionDecision {
    match PermissionOption::find(options, &[PermissionKind::AllowOnce, PermissionKind::AllowAlways]) {
        Some(option) => PermissionDecision::Option(option.id.clone()),
        None => PermissionDecision::Ask,
    }
}

impl fmt::Debug for PermissionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ask => "Ask",
            Self::BypassPermissions => "BypassPermissions",
            Self::AcceptEdits => "AcceptEdits",
            Self::Deny => "Deny",
            Self::Function(_) => "Function",
        })
    }
}

impl fmt::Debug for PermissionFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermissionFunction")
    }
}
