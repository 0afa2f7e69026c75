//! Permissions.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::option::{PermissionKind, PermissionOption, cancelled, refusal, selected};
use super::params::Params;
use super::policy::PermissionDecision;
use super::reply::{Held, Reply, ReplyError, Responder};
use crate::update::ToolCall;

/// An answer by what it means rather than by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PermissionReply {
    /// Allows it this time.
    Once,
    /// Allows it from now on; where that is not offered, this time.
    Always,
    /// Refuses it; where only refusing for ever is offered, for ever.
    Reject,
}

/// How a permission request was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermissionOutcome {
    /// An option was selected.
    #[non_exhaustive]
    Selected {
        /// Its id.
        option_id: String,
        /// What it means; `None` if the agent does not say.
        kind: Option<PermissionKind>,
    },
    /// The request was cancelled.
    Cancelled,
    /// It was answered with something else, by [`PermissionRequest::respond_raw`].
    Other,
}

/// The agent asks whether it may do something.
///
/// It is cheap to clone, and it can be answered once: the first answer counts, and a later one fails with
/// [`ReplyError::Stale`]. When the last copy that can decide is dropped without an answer, the request is cancelled.
/// Copies in subscriptions that are not [deciding](crate::Events::deciding) do not keep it open. An agent never gets a
/// permission that was not given.
#[derive(Clone)]
pub struct PermissionRequest {
    inner: Arc<Inner>,
    /// Keeps the request open; `None` in a copy that only observes it.
    stake: Option<Arc<Stake>>,
}

struct Inner {
    session_id: Option<String>,
    tool_call: Option<ToolCall>,
    options: Vec<PermissionOption>,
    raw: Arc<Params>,
    reply: Reply,
}

/// Cancels the request when it is dropped, unless it was answered before.
struct Stake(Arc<Inner>);

impl Drop for Stake {
    fn drop(&mut self) {
        // It was answered before, or the agent does not wait any more.
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

    /// A copy that does not keep the request open.
    pub(crate) fn observed(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), stake: None }
    }

    /// Drops a copy whose holder does not decide. If no other copy does, the request is refused.
    pub(crate) fn release(self) {
        if self.stake.as_ref().is_some_and(|stake| Arc::strong_count(stake) == 1) {
            // The agent may have taken it back meanwhile.
            let _ = self.refuse();
        }
    }

    /// The id of the request, unique among the open requests of a connection.
    #[must_use]
    pub fn id(&self) -> &str {
        self.inner.raw.id()
    }

    /// The session that asks.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.inner.session_id.as_deref()
    }

    /// The tool call that it is about. What the agent reported of it before is merged in: kind, title, input, changes.
    #[must_use]
    pub fn tool_call(&self) -> Option<&ToolCall> {
        self.inner.tool_call.as_ref()
    }

    /// The answers that the agent offers.
    #[must_use]
    pub fn options(&self) -> &[PermissionOption] {
        &self.inner.options
    }

    /// What the agent says besides: the member `_meta`.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.inner.raw.get("_meta")
    }

    /// The request as it came, with whatever this version has no name for.
    #[must_use]
    pub fn raw(&self) -> &Value {
        &self.inner.raw
    }

    /// Whether an answer is still wanted: nobody has given one, the turn was not cancelled, and agent and connection
    /// live.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.inner.reply.is_open()
    }

    /// How it was answered, if it was.
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

    /// Waits until no answer is expected any more: it was answered, the turn was cancelled, or the agent, the session
    /// or the connection has ended. A user interface closes its dialog then.
    pub async fn closed(&self) {
        self.inner.reply.closed().await;
    }

    /// Allows it this time.
    ///
    /// # Errors
    /// [`ReplyError::NotOffered`] if the agent offers nothing of the kind: the request stays open.
    /// [`ReplyError::Stale`] if it is too late.
    pub fn allow_once(&self) -> Result<(), ReplyError> {
        self.of_kind(&[PermissionKind::AllowOnce])
    }

    /// Allows it from now on.
    ///
    /// # Errors
    /// As [`allow_once`](Self::allow_once).
    pub fn allow_always(&self) -> Result<(), ReplyError> {
        self.of_kind(&[PermissionKind::AllowAlways])
    }

    /// Refuses it this time.
    ///
    /// # Errors
    /// As [`allow_once`](Self::allow_once).
    pub fn reject_once(&self) -> Result<(), ReplyError> {
        self.of_kind(&[PermissionKind::RejectOnce])
    }

    /// Refuses it from now on.
    ///
    /// # Errors
    /// As [`allow_once`](Self::allow_once).
    pub fn reject_always(&self) -> Result<(), ReplyError> {
        self.of_kind(&[PermissionKind::RejectAlways])
    }

    /// Answers by what the answer means, with the next best option where the agent does not offer the very one.
    ///
    /// # Errors
    /// As [`allow_once`](Self::allow_once).
    pub fn reply(&self, reply: PermissionReply) -> Result<(), ReplyError> {
        use PermissionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
        self.of_kind(match reply {
            PermissionReply::Once => &[AllowOnce],
            PermissionReply::Always => &[AllowAlways, AllowOnce],
            PermissionReply::Reject => &[RejectOnce, RejectAlways],
        })
    }

    /// Chooses an option by its id, whatever its kind.
    ///
    /// # Errors
    /// As [`allow_once`](Self::allow_once).
    pub fn choose(&self, option_id: &str) -> Result<(), ReplyError> {
        if !self.inner.options.iter().any(|option| option.id == option_id) {
            return Err(ReplyError::NotOffered);
        }
        self.inner.reply.give(&selected(option_id))
    }

    /// Refuses: by an option that rejects if the agent offers one, else by cancelling.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it is too late.
    pub fn refuse(&self) -> Result<(), ReplyError> {
        self.inner.reply.give(&refusal(&self.inner.options))
    }

    /// Answers that the turn was cancelled.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it is too late.
    pub fn cancel(&self) -> Result<(), ReplyError> {
        self.inner.reply.give(&cancelled())
    }

    /// Answers with any result, as it is.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it is too late.
    pub fn respond_raw(&self, result: &Value) -> Result<(), ReplyError> {
        self.inner.reply.give(result)
    }

    pub(crate) fn size(&self) -> usize {
        self.inner.raw.weight()
    }

    fn of_kind(&self, kinds: &[PermissionKind]) -> Result<(), ReplyError> {
        let option = PermissionOption::find(&self.inner.options, kinds).ok_or(ReplyError::NotOffered)?;
        self.inner.reply.give(&selected(&option.id))
    }

    /// Does what a policy decided; `false` if somebody has to be asked.
    pub(crate) fn obey(&self, decision: &PermissionDecision) -> bool {
        let done = match decision {
            PermissionDecision::Reply(reply) => self.reply(*reply),
            PermissionDecision::Option(id) => self.choose(id),
            PermissionDecision::Refuse => self.refuse(),
            PermissionDecision::Ask => return false,
        };
        if done == Err(ReplyError::NotOffered) {
            tracing::warn!(
                "a permission policy chose what the agent does not offer; the permission is refused"
            );
            // The agent may have taken the request back meanwhile.
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
