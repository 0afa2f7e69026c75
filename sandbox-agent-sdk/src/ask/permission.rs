//! Permissions.

use std::fmt;
use std::sync::Arc;

use acp_http_client::Responder;
use serde_json::{Value, json};

use super::reply::{Fallback, Reply, ReplyError};
use crate::ToolCall;
use crate::open_enum::open_enum;

open_enum! {
    /// What choosing an option means.
    pub enum PermissionKind {
        /// This time.
        AllowOnce = "allow_once",
        /// From now on.
        AllowAlways = "allow_always",
        /// Not this time.
        RejectOnce = "reject_once",
        /// Never.
        RejectAlways = "reject_always",
    }
}

/// One of the answers that the agent offers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermissionOption {
    /// The id by which it is chosen.
    pub id: String,
    /// What to show.
    pub name: String,
    /// What it means; `None` if the agent does not say.
    pub kind: Option<PermissionKind>,
}

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

/// What a permission policy decides.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermissionDecision {
    /// The request is answered so. An answer that the agent does not offer refuses it.
    Reply(PermissionReply),
    /// The option with this id is chosen.
    Option(String),
    /// The request is given to the subscribers of events; without any it is refused.
    Ask,
}

/// A function that decides about permissions before anybody is asked.
pub(crate) type PermissionPolicy = Arc<dyn Fn(&PermissionRequest) -> PermissionDecision + Send + Sync>;

/// The agent asks whether it may do something.
///
/// It is cheap to clone, and the first answer counts. When the last copy is dropped without an answer, the request
/// is refused: an agent never gets a permission that nobody gave.
#[derive(Clone)]
pub struct PermissionRequest {
    inner: Arc<Inner>,
}

struct Inner {
    session_id: Option<String>,
    tool_call: Option<ToolCall>,
    options: Vec<PermissionOption>,
    raw: Value,
    reply: Reply,
}

impl PermissionRequest {
    pub(crate) fn new(params: Value, responder: Responder) -> Self {
        let options = read_options(&params);
        let refusal = refusal(&options);
        let inner = Inner {
            session_id: params.get("sessionId").and_then(Value::as_str).map(str::to_owned),
            tool_call: params.get("toolCall").and_then(ToolCall::read),
            options,
            raw: params,
            reply: Reply::new(responder, Fallback::Result(refusal)),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The session that asks.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.inner.session_id.as_deref()
    }

    /// The tool call that it is about.
    #[must_use]
    pub fn tool_call(&self) -> Option<&ToolCall> {
        self.inner.tool_call.as_ref()
    }

    /// The answers that the agent offers.
    #[must_use]
    pub fn options(&self) -> &[PermissionOption] {
        &self.inner.options
    }

    /// The request as it came.
    #[must_use]
    pub fn raw(&self) -> &Value {
        &self.inner.raw
    }

    /// Answers by what the answer means.
    ///
    /// # Errors
    /// [`ReplyError::NotOffered`] if the agent offers nothing of the kind: the request stays open.
    /// [`ReplyError::Stale`] if it is too late.
    pub fn reply(&self, reply: PermissionReply) -> Result<(), ReplyError> {
        let option = choose(&self.inner.options, reply).ok_or(ReplyError::NotOffered)?;
        self.inner.reply.give(&selected(&option.id))
    }

    /// Chooses an option by its id.
    ///
    /// # Errors
    /// As [`reply`](Self::reply).
    pub fn choose(&self, option_id: &str) -> Result<(), ReplyError> {
        if !self.inner.options.iter().any(|option| option.id == option_id) {
            return Err(ReplyError::NotOffered);
        }
        self.inner.reply.give(&selected(option_id))
    }

    /// Refuses: by a rejecting option if the agent offers one, else by cancelling.
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

    /// Does what a policy decided; `false` if somebody has to be asked.
    pub(crate) fn decide(&self, decision: &PermissionDecision) -> bool {
        let done = match decision {
            PermissionDecision::Reply(reply) => self.reply(*reply),
            PermissionDecision::Option(id) => self.choose(id),
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

/// Early servers name an option `id` instead of `optionId` and leave out its kind.
fn read_options(params: &Value) -> Vec<PermissionOption> {
    let options = params.get("options").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let read = options.iter().filter_map(|option| {
        let text = |name: &str| option.get(name).and_then(Value::as_str);
        let id = text("optionId").or_else(|| text("id"))?.to_owned();
        let name = text("name").unwrap_or(&id).to_owned();
        Some(PermissionOption { kind: text("kind").map(PermissionKind::from), id, name })
    });
    read.collect()
}

fn choose(options: &[PermissionOption], reply: PermissionReply) -> Option<&PermissionOption> {
    use PermissionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
    let kinds: &[PermissionKind] = match reply {
        PermissionReply::Once => &[AllowOnce],
        PermissionReply::Always => &[AllowAlways, AllowOnce],
        PermissionReply::Reject => &[RejectOnce, RejectAlways],
    };
    kinds.iter().find_map(|kind| options.iter().find(|option| option.kind.as_ref() == Some(kind)))
}

fn refusal(options: &[PermissionOption]) -> Value {
    match choose(options, PermissionReply::Reject) {
        Some(option) => selected(&option.id),
        None => cancelled(),
    }
}

fn selected(id: &str) -> Value {
    json!({"outcome": {"outcome": "selected", "optionId": id}})
}

fn cancelled() -> Value {
    json!({"outcome": {"outcome": "cancelled"}})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{PermissionReply, cancelled, choose, read_options, refusal, selected};

    #[test]
    fn replies_find_the_option_that_means_them() {
        let options = read_options(&json!({"options": [
            {"optionId": "y", "name": "Yes", "kind": "allow_once"}, {"optionId": "n", "name": "No", "kind": "reject_once"},
            {"optionId": "z", "kind": "brand_new"}, {"name": "no id"}, 5]}));
        assert_eq!(options.len(), 3);
        assert_eq!(choose(&options, PermissionReply::Once).unwrap().id, "y");
        assert_eq!(choose(&options, PermissionReply::Always).unwrap().id, "y");
        assert_eq!(choose(&options, PermissionReply::Reject).unwrap().id, "n");
        assert_eq!(refusal(&options), selected("n"));
    }

    #[test]
    fn what_cannot_be_refused_by_an_option_is_cancelled() {
        for params in [
            json!({"options": [{"optionId": "a", "kind": "allow_always"}]}),
            json!({"options": [{"id": "deny", "name": "Deny"}]}),
            json!({}),
            json!(null),
        ] {
            assert_eq!(refusal(&read_options(&params)), cancelled(), "{params}");
        }
    }
}
