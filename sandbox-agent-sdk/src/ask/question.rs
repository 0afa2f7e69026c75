//! Questions.

use std::fmt;
use std::sync::Arc;

use acp_http_client::Responder;
use serde_json::{Value, json};

use super::reply::{Fallback, Reply, ReplyError};
use crate::RpcError;

/// The method of structured questions.
pub(crate) const ELICITATION: &str = "elicitation/create";
/// The method by which servers pass on an agent's questions.
pub(crate) const REQUEST_QUESTION: &str = "_sandboxagent/session/request_question";

/// The agent asks the user something.
///
/// It is cheap to clone, and the first answer counts. When the last copy is dropped without an answer, the question
/// is cancelled.
#[derive(Clone)]
pub struct QuestionRequest {
    inner: Arc<Inner>,
}

struct Inner {
    method: String,
    raw: Value,
    reply: Reply,
}

impl QuestionRequest {
    pub(crate) fn new(method: &str, params: Value, responder: Responder) -> Self {
        let fallback = match method {
            ELICITATION => Fallback::Result(json!({"action": "cancel"})),
            REQUEST_QUESTION => Fallback::Result(json!({"status": "rejected", "outcome": "cancelled"})),
            _ => Fallback::Error,
        };
        let reply = Reply::new(responder, fallback);
        Self { inner: Arc::new(Inner { method: method.to_owned(), raw: params, reply }) }
    }

    /// The session that asks.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.inner.raw.get("sessionId").and_then(Value::as_str)
    }

    /// The question in words.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        let text = |name: &str| self.inner.raw.get(name).and_then(Value::as_str);
        text("message").or_else(|| text("prompt")).or_else(|| text("question"))
    }

    /// The JSON schema that an answer has to fit, if the agent gives one.
    #[must_use]
    pub fn schema(&self) -> Option<&Value> {
        self.inner.raw.get("requestedSchema")
    }

    /// The method by which it came.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.inner.method
    }

    /// The request as it came.
    #[must_use]
    pub fn raw(&self) -> &Value {
        &self.inner.raw
    }

    /// Answers it: with an object that fits the schema, or with a list of answers.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it is too late.
    pub fn answer(&self, answer: &Value) -> Result<(), ReplyError> {
        self.inner.reply.give(&match self.inner.method.as_str() {
            ELICITATION => json!({"action": "accept", "content": answer}),
            _ => json!({"status": "answered", "outcome": "answered", "answers": answer}),
        })
    }

    /// Declines to answer.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it is too late.
    pub fn decline(&self) -> Result<(), ReplyError> {
        self.inner.reply.give(&match self.inner.method.as_str() {
            ELICITATION => json!({"action": "decline"}),
            _ => json!({"status": "rejected", "outcome": "rejected"}),
        })
    }

    /// Answers with any result, as it is.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it is too late.
    pub fn respond_raw(&self, result: &Value) -> Result<(), ReplyError> {
        self.inner.reply.give(result)
    }

    /// Answers with an error.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it is too late.
    pub fn fail(&self, error: RpcError) -> Result<(), ReplyError> {
        self.inner.reply.refuse(error)
    }
}

impl fmt::Debug for QuestionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuestionRequest")
            .field("method", &self.inner.method)
            .field("reply", &self.inner.reply)
            .finish_non_exhaustive()
    }
}
