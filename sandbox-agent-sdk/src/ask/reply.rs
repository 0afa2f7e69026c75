//! Answers that can be given once.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use acp_http_client::Responder;
use serde_json::Value;

use crate::RpcError;

/// The one answer to a request. If it is dropped without an answer, `fallback` is given.
pub(super) struct Reply {
    /// Guards the right to answer; held to take it.
    responder: Mutex<Option<Responder>>,
    fallback: Fallback,
}

/// What is answered if nobody does.
#[derive(Debug)]
pub(super) enum Fallback {
    /// This result.
    Result(Value),
    /// An error that says that nobody was there.
    Error,
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
}

impl Reply {
    pub(super) fn new(responder: Responder, fallback: Fallback) -> Self {
        Self { responder: Mutex::new(Some(responder)), fallback }
    }

    pub(super) fn give(&self, result: &Value) -> Result<(), ReplyError> {
        let responder = self.take().ok_or(ReplyError::Stale)?;
        if responder.respond(result) { Ok(()) } else { Err(ReplyError::Stale) }
    }

    pub(super) fn refuse(&self, error: RpcError) -> Result<(), ReplyError> {
        let responder = self.take().ok_or(ReplyError::Stale)?;
        let error = acp_http_client::RpcError::new(error.code, error.message);
        if responder.error(error) { Ok(()) } else { Err(ReplyError::Stale) }
    }

    fn take(&self) -> Option<Responder> {
        self.responder.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let Some(responder) = self.take() else { return };
        match &self.fallback {
            Fallback::Result(result) => responder.respond(result),
            Fallback::Error => {
                responder.error(acp_http_client::RpcError::internal("nobody was there to answer"))
            }
        };
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.responder.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        f.debug_struct("Reply").field("open", &open).finish_non_exhaustive()
    }
}
