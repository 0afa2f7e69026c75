//! Answers that can be given once.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use acp_http_client::Responder;
use serde_json::{Value, json};

use crate::RpcError;

/// Hears what was answered. It must not wait, nor use the hub.
pub(crate) type ReplyListener = Box<dyn FnOnce(&Value) + Send>;

/// The one response to a request. If it is dropped without one, `fallback` is given.
pub(super) struct Reply {
    /// Guards the right to answer; held to take it.
    open: Mutex<Option<(Responder, ReplyListener)>>,
    /// The response if there is no other; `None` for the error that the connection gives.
    fallback: Option<Value>,
}

/// Why an answer was not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// Somebody has answered already, or the agent does not wait any more: the turn was cancelled, or the
    /// connection has ended.
    #[error("the request has been answered or taken back")]
    Stale,
    /// The agent does not offer what was answered.
    #[error("the agent does not offer this answer")]
    NotOffered,
    /// The answer does not fit what was asked, and the request stays open.
    #[error("the answer does not fit `{field}`: {reason}")]
    Unfit {
        /// Which part of it; empty if it is the whole.
        field: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl Reply {
    pub(super) fn new(responder: Responder, fallback: Option<Value>, listener: ReplyListener) -> Self {
        Self { open: Mutex::new(Some((responder, listener))), fallback }
    }

    pub(super) fn give(&self, result: &Value) -> Result<(), ReplyError> {
        let (responder, listener) = self.take().ok_or(ReplyError::Stale)?;
        if !responder.respond(result) {
            return Err(ReplyError::Stale);
        }
        listener(&json!({ "result": result }));
        Ok(())
    }

    pub(super) fn refuse(&self, error: RpcError) -> Result<(), ReplyError> {
        let (responder, listener) = self.take().ok_or(ReplyError::Stale)?;
        let told = json!({"error": {"code": error.code, "message": error.message}});
        if !responder.error(error.into_wire()) {
            return Err(ReplyError::Stale);
        }
        listener(&told);
        Ok(())
    }

    /// Whether an answer is still wanted.
    pub(super) fn is_open(&self) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().is_some_and(|(responder, _)| !responder.is_closed())
    }

    fn take(&self) -> Option<(Responder, ReplyListener)> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(fallback) = self.fallback.take() {
            // It was answered before, or nothing waits for it any more.
            let _ = self.give(&fallback);
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("open", &self.is_open()).finish_non_exhaustive()
    }
}
