//! Permission requests.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::option::{PermissionKind, PermissionOption, cancelled, refusal, selected};
use super::params::Params;
use super::policy::PermissionDecision;
use super::reply::{Held, Reply, ReplyError, Responder};
use crate::update::ToolCall;

/// A decision by meaning instead of by option id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PermissionReply {
    /// Allows the action this time.
    Once,
    /// Allows the action from now on. If that is not offered, allows it this time.
    Always,
    /// Rejects the action this time. If that is not offered, rejects it from now on.
    Reject,
}

/// The decision of a permission request.
///
/// Serializes to an object whose `outcome` is `selected`, `cancelled` or `other`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum PermissionOutcome {
    /// An option was selected.
    #[non_exhaustive]
    Selected {
        /// The id of the option.
        option_id: String,
        /// The meaning of the option; `None` if the agent does not specify it.
        kind: Option<PermissionKind>,
    },
    /// The request was cancelled.
    Cancelled,
    /// Another response, sent with [`PermissionRequest::respond_raw`].
    Other,
}

/// A permission request of the agent.
///
/// It is cheap to clone and can be decided once: the first decision counts, and a later one fails with
/// [`ReplyError::Stale`]. Dropping the last deciding clone without a decision cancels the request. Clones in
/// subscriptions that are not [deciding](crate::Events::deciding), and all clones that are published while a
/// [handler](crate::ClientOptions::permission_handler) decides, only observe: they do not keep the request open, and
/// a decision by them fails with [`ReplyError::OnlyObserves`]. Only an explicit decision
/// grants a permission.
#[derive(Clone)]
pub struct PermissionRequest {
    inner: Arc<Inner>,
    /// Keeps the request open; `None` in a copy that only observes.
    stake: Option<Arc<Stake>>,
}

struct Inner {
    session_id: Option<String>,
    tool_call: Option<ToolCall>,
    options: Vec<PermissionOption>,
    raw: Arc<Params>,
    reply: Reply,
}

/// Cancels the request on drop, unless it was decided before.
struct Stake(Arc<Inner>);

impl Drop for Stake {
    fn drop(&mut self) {
        // An error means that it was decided before, or that the agent no longer waits.
        let _ = self.0.reply.give(&cancelled());
    }
}

impl PermissionRequest {
    pub(crate) fn new(
        params: Arc<Params>,
        responder: impl Into<Responder>,
        held: Held,
        reported: Option<ToolCall>,
    ) -> Self {
        let own = params.get("toolCall").and_then(ToolCall::read);
        let inner = Inner {
            session_id: params.get("sessionId").and_then(Value::as_str).map(str::to_owned),
            tool_call: own.map(|mut own| {
                reported.iter().for_each(|reported| own.complete_from(reported));
                own
            }),
            options: PermissionOption::read_all(&params),
            raw: params,
            reply: Reply::new(responder.into(), held),
        };
        let inner = Arc::new(inner);
        Self { stake: Some(Arc::new(Stake(Arc::clone(&inner)))), inner }
    }

    /// Returns a copy that does not keep the request open.
    pub(crate) fn observed(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), stake: None }
    }

    /// Drops a copy whose holder does not decide. Rejects the request if this was the last deciding copy, and returns
    /// whether it did.
    pub(crate) fn release(mut self) -> bool {
        // If copies are released concurrently, one of them is the last.
        match self.stake.take().and_then(Arc::into_inner) {
            // An error means that the agent no longer waits. Dropping the stake afterwards then has no effect.
            Some(_stake) => self.inner.reply.give(&refusal(&self.inner.options)).is_ok(),
            None => false,
        }
    }

    /// Returns the id of the request, unique among the open requests of a connection.
    #[must_use]
    pub fn id(&self) -> &str {
        self.inner.raw.id()
    }

    /// Returns the id of the session that sent the request.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.inner.session_id.as_deref()
    }

    /// Returns the tool call that needs the permission.
    ///
    /// It includes what the agent has already reported about this call in the turn: kind, title, input and changes.
    /// Reports that take more than 1 MiB are dropped. The tool call is then [incomplete](ToolCall::is_incomplete): it
    /// contains only the reports after the dropped ones.
    #[must_use]
    pub fn tool_call(&self) -> Option<&ToolCall> {
        self.inner.tool_call.as_ref()
    }

    /// Returns the options that the agent offers.
    #[must_use]
    pub fn options(&self) -> &[PermissionOption] {
        &self.inner.options
    }

    /// Returns the `_meta` field of the request.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.inner.raw.get("_meta")
    }

    /// Returns the parameters as received, including unknown fields.
    #[must_use]
    pub fn raw(&self) -> &Value {
        &self.inner.raw
    }

    /// Returns whether the agent still waits for a decision.
    ///
    /// `false` after a decision, after the turn was cancelled, and after the agent or the connection has ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.inner.reply.is_open()
    }

    /// Returns the decision; `None` if there is none.
    #[must_use]
    pub fn outcome(&self) -> Option<PermissionOutcome> {
        let result = self.inner.reply.result()?;
        let text = |name: &str| result.pointer(name).and_then(Value::as_str);
        Some(match (text("/outcome/outcome"), text("/outcome/optionId")) {
            (Some("selected"), Some(id)) => {
                let option = self.inner.options.iter().find(|option| option.id == id);
                PermissionOutcome::Selected {
                    option_id: id.to_owned(),
                    kind: option.and_then(|option| option.kind.clone()),
                }
            }
            (Some("cancelled"), _) => PermissionOutcome::Cancelled,
            _ => PermissionOutcome::Other,
        })
    }

    /// Waits until the request is closed: the agent no longer waits for a decision.
    ///
    /// The request is closed after a decision, when the turn is cancelled, and when the agent, the session or the
    /// connection ends. A user interface can then close its dialog.
    pub async fn closed(&self) {
        self.inner.reply.closed().await;
    }

    /// Allows the action this time.
    ///
    /// # Errors
    /// [`ReplyError::NotOffered`] if the agent does not offer this option; the request stays open.
    /// [`ReplyError::Stale`] if the agent no longer waits for a decision.
    pub fn allow_once(&self) -> Result<(), ReplyError> {
        self.of_kind(&[PermissionKind::AllowOnce])
    }

    /// Allows the action from now on.
    ///
    /// # Errors
    /// The errors of [`allow_once`](Self::allow_once).
    pub fn allow_always(&self) -> Result<(), ReplyError> {
        self.of_kind(&[PermissionKind::AllowAlways])
    }

    /// Rejects the action this time.
    ///
    /// # Errors
    /// The errors of [`allow_once`](Self::allow_once).
    pub fn reject_once(&self) -> Result<(), ReplyError> {
        self.of_kind(&[PermissionKind::RejectOnce])
    }

    /// Rejects the action from now on.
    ///
    /// # Errors
    /// The errors of [`allow_once`](Self::allow_once).
    pub fn reject_always(&self) -> Result<(), ReplyError> {
        self.of_kind(&[PermissionKind::RejectAlways])
    }

    /// Chooses the option that is closest to this decision.
    ///
    /// # Errors
    /// The errors of [`allow_once`](Self::allow_once).
    pub fn reply(&self, reply: PermissionReply) -> Result<(), ReplyError> {
        use PermissionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
        self.of_kind(match reply {
            PermissionReply::Once => &[AllowOnce],
            PermissionReply::Always => &[AllowAlways, AllowOnce],
            PermissionReply::Reject => &[RejectOnce, RejectAlways],
        })
    }

    /// Chooses an option of any kind by its id.
    ///
    /// # Errors
    /// The errors of [`allow_once`](Self::allow_once).
    pub fn choose(&self, option_id: &str) -> Result<(), ReplyError> {
        if !self.inner.options.iter().any(|option| option.id == option_id) {
            return Err(ReplyError::NotOffered);
        }
        self.give(&selected(option_id))
    }

    /// Rejects the action. Chooses a rejecting option if the agent offers one; otherwise cancels the request.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if the agent no longer waits for a decision.
    pub fn refuse(&self) -> Result<(), ReplyError> {
        self.give(&refusal(&self.inner.options))
    }

    /// Responds with the outcome `cancelled`.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if the agent no longer waits for a decision.
    pub fn cancel(&self) -> Result<(), ReplyError> {
        self.give(&cancelled())
    }

    /// Responds with any result, unchanged.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if the agent no longer waits for a decision.
    pub fn respond_raw(&self, result: &Value) -> Result<(), ReplyError> {
        self.give(result)
    }

    /// Sends a result. A copy that only observes cannot.
    fn give(&self, result: &Value) -> Result<(), ReplyError> {
        self.inner.reply.give_as(self.stake.is_some(), result)
    }

    pub(crate) fn size(&self) -> usize {
        self.inner.raw.weight()
    }

    fn of_kind(&self, kinds: &[PermissionKind]) -> Result<(), ReplyError> {
        let option = PermissionOption::find(&self.inner.options, kinds).ok_or(ReplyError::NotOffered)?;
        self.give(&selected(&option.id))
    }

    /// Applies the decision of a policy. Returns `false` if the policy leaves it to others.
    pub(crate) fn obey(&self, decision: &PermissionDecision) -> bool {
        let done = match decision {
            PermissionDecision::Reply(reply) => self.reply(*reply),
            PermissionDecision::Option(id) => self.choose(id),
            PermissionDecision::Refuse => self.refuse(),
            PermissionDecision::Ask => return false,
        };
        if done == Err(ReplyError::NotOffered) {
            tracing::warn!(
                "a permission policy chose an option that the agent does not offer; the request is rejected"
            );
            // An error means that the agent no longer waits.
            let _ = self.refuse();
        }
        true
    }
}

impl fmt::Debug for PermissionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermissionRequest")
            .field("session_id", &self.inner.session_id)
            .field("options", &self.inner.options)
            .field("reply", &self.inner.reply)
            .finish_non_exhaustive()
    }
}
