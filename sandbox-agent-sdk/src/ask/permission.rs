//! Permissions.

use std::fmt;
use std::sync::Arc;

use acp_http_client::Responder;
use serde_json::Value;

use super::option::{PermissionKind, PermissionOption, cancelled, refusal, selected};
use super::params::Params;
use super::policy::PermissionDecision;
use super::reply::{Reply, ReplyError, ReplyListener};
use crate::ToolCall;

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

/// The agent asks whether it may do something.
///
/// It is cheap to clone, and it can be answered once: the first answer counts, and a later one is told that it is
/// [stale](ReplyError::Stale). When the last copy is dropped without an answer, the request is cancelled. An agent never
/// gets a permission that nobody gave.
#[derive(Clone)]
pub struct PermissionRequest {
    inner: Arc<Inner>,
}

struct Inner {
    session_id: Option<String>,
    tool_call: Option<ToolCall>,
    options: Vec<PermissionOption>,
    raw: Arc<Params>,
    reply: Reply,
}

impl PermissionRequest {
    pub(crate) fn new(params: Arc<Params>, responder: Responder, listener: ReplyListener) -> Self {
        let inner = Inner {
            session_id: params.get("sessionId").and_then(Value::as_str).map(str::to_owned),
            tool_call: params.get("toolCall").and_then(ToolCall::read),
            options: PermissionOption::read_all(&params),
            raw: params,
            reply: Reply::new(responder, Some(cancelled()), listener),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The session that asks.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.inner.session_id.as_deref()
    }

    /// The tool call that it is about, with what the tool is given and the files it works on.
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
