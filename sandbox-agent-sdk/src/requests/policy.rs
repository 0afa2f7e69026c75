//! Deciding about permissions before anybody is asked.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::option::{PermissionKind, PermissionOption};
use super::permission::{PermissionReply, PermissionRequest};
use crate::update::ToolKind;

/// What a permission policy decides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermissionDecision {
    /// The request is answered so. An answer that the agent does not offer refuses it.
    Reply(PermissionReply),
    /// The option with this id is chosen. An option that the agent does not offer refuses it.
    Option(String),
    /// The request is refused: by an option that rejects if there is one, else by cancelling.
    Refuse,
    /// The decision is left to the handler, to the reader of the turn or to deciding subscriptions; without any of these
    /// the request is refused.
    Ask,
}

type Decide = Arc<dyn Fn(&PermissionRequest) -> PermissionDecision + Send + Sync>;

/// What decides about permissions first. No policy approves anything because time has passed.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum PermissionPolicy {
    /// The [handler](crate::ClientOptions::permission_handler) decides; without one, turns that are read by
    /// [`next_event`](crate::Turn::next_event) and [deciding](crate::Events::deciding) subscriptions, and the first answer
    /// counts. Without any of these, requests are refused.
    #[default]
    Ask,
    /// Everything is allowed that the agent offers to allow, this time rather than for ever. Where it offers no such
    /// option, the decision is left open as with [`Ask`](Self::Ask).
    BypassPermissions,
    /// Changes of files are allowed, where the agent offers to allow them this time or for ever. Everything
    /// else, deleting and moving included, is left open as with [`Ask`](Self::Ask).
    AcceptEdits,
    /// Everything is refused.
    Deny,
    /// A function decides: [`PermissionPolicy::function`].
    Function(PermissionFunction),
}

/// A function that decides about permissions.
#[derive(Clone)]
pub struct PermissionFunction(Decide);

impl PermissionPolicy {
    /// A function decides. It runs where all events pass: keep it short, and leave what takes longer to
    /// [`PermissionDecision::Ask`]. If it panics, the request is refused.
    pub fn function(
        decide: impl Fn(&PermissionRequest) -> PermissionDecision + Send + Sync + 'static,
    ) -> Self {
        Self::Function(PermissionFunction(Arc::new(decide)))
    }

    /// What the policy says to a request.
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
                    tracing::error!("a permission policy panicked; the permission is refused");
                    PermissionDecision::Refuse
                }),
        }
    }
}

/// Chooses an option that allows, the one with the smaller consequences first.
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
