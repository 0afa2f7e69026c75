//! Questions of the agent to the user.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use super::form::{FormChoice, QuestionForm};
use super::params::Params;
use super::reply::{Held, Reply, ReplyError, Responder};
use crate::error::RpcError;

/// The method of structured questions.
pub(crate) const ELICITATION: &str = "elicitation/create";
/// The notification that the user has finished on a web page.
pub(crate) const ELICITATION_COMPLETE: &str = "elicitation/complete";
/// The method with which servers forward an agent's questions.
pub(crate) const REQUEST_QUESTION: &str = "_sandboxagent/session/request_question";

/// The kinds of questions that the client advertises to the agent.
///
/// A question that was not advertised is still delivered to subscribers of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuestionSupport {
    /// No questions.
    #[default]
    Off,
    /// Forms.
    Forms,
    /// Forms and web pages.
    FormsAndUrls,
}

impl QuestionSupport {
    /// Returns the capability to advertise, if there is one.
    pub(crate) fn to_value(self) -> Option<Value> {
        match self {
            Self::Off => None,
            Self::Forms => Some(json!({"form": {}})),
            Self::FormsAndUrls => Some(json!({"form": {}, "url": {}})),
        }
    }
}

/// The action that is requested from the user.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum QuestionKind {
    /// The user fills in a form.
    Form(QuestionForm),
    /// The user opens a web page.
    ///
    /// [`Event::QuestionCompleted`](crate::Event::QuestionCompleted) reports that the user has completed the page.
    #[non_exhaustive]
    Url {
        /// The id of the question in [`Event::QuestionCompleted`](crate::Event::QuestionCompleted).
        id: String,
        /// The URL. It comes from the agent: show it to the user before you open it.
        url: String,
    },
    /// The user chooses one of these. An empty list means any text.
    Choice(Vec<FormChoice>),
    /// A kind that this version does not know; see [`QuestionRequest::raw`].
    Other,
}

/// A question of the agent to the user.
///
/// It is cheap to clone and can be answered once: the first answer counts, and a later one fails with
/// [`ReplyError::Stale`]. Dropping the last deciding clone without an answer cancels the question. Clones in
/// subscriptions that are not [deciding](crate::Events::deciding) only observe: they do not keep it open, and an answer
/// by them fails with [`ReplyError::OnlyObserves`].
#[derive(Clone)]
pub struct QuestionRequest {
    inner: Arc<Inner>,
    /// Keeps the question open; `None` in a copy that only observes.
    stake: Option<Arc<Stake>>,
}

/// Cancels the question on drop, unless it was answered before.
struct Stake(Arc<Inner>);

impl Drop for Stake {
    fn drop(&mut self) {
        // An error means that it was answered before, or that the agent no longer waits.
        let _ = self.0.reply.give(&cancelled(&self.0.method));
    }
}

struct Inner {
    method: String,
    kind: QuestionKind,
    raw: Arc<Params>,
    reply: Reply,
}

impl QuestionRequest {
    pub(crate) fn new(
        method: &str,
        params: Arc<Params>,
        responder: impl Into<Responder>,
        held: Held,
    ) -> Self {
        let reply = Reply::new(responder.into(), held);
        let kind = read_kind(method, &params);
        let inner = Arc::new(Inner { method: method.to_owned(), kind, raw: params, reply });
        Self { stake: Some(Arc::new(Stake(Arc::clone(&inner)))), inner }
    }

    /// Returns a copy that does not keep the question open.
    pub(crate) fn observed(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), stake: None }
    }

    /// Sends a result. A copy that only observes cannot.
    fn give(&self, result: &Value) -> Result<(), ReplyError> {
        self.inner.reply.give_as(self.stake.is_some(), result)
    }

    /// Returns the id of the request, unique among the open requests of a connection.
    #[must_use]
    pub fn id(&self) -> &str {
        self.inner.raw.id()
    }

    /// Waits until the agent no longer waits for an answer.
    pub async fn closed(&self) {
        self.inner.reply.closed().await;
    }

    /// Returns the id of the session that sent the question.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.text("sessionId")
    }

    /// Returns the id of the tool call that the question belongs to, if any.
    #[must_use]
    pub fn tool_call_id(&self) -> Option<&str> {
        self.text("toolCallId")
    }

    /// Returns the text of the question.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.text("message").or_else(|| self.text("prompt")).or_else(|| self.text("question"))
    }

    /// Returns the action that is requested from the user.
    #[must_use]
    pub fn kind(&self) -> &QuestionKind {
        &self.inner.kind
    }

    /// Returns the JSON schema of the answer, if the agent sent one.
    #[must_use]
    pub fn schema(&self) -> Option<&Value> {
        self.inner.raw.get("requestedSchema")
    }

    /// Returns the `_meta` field of the request.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.inner.raw.get("_meta")
    }

    /// Returns the method of the request.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.inner.method
    }

    /// Returns the parameters as received, including unknown fields.
    #[must_use]
    pub fn raw(&self) -> &Value {
        &self.inner.raw
    }

    /// Returns whether the agent still waits for an answer.
    ///
    /// `false` after an answer, after the turn was cancelled, and after the agent or the connection has ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.inner.reply.is_open()
    }

    /// Sends the user's answer.
    ///
    /// The answer to a form is an object with its fields. The answer to any other question is a string or a list
    /// of strings.
    ///
    /// # Errors
    /// [`ReplyError::Unfit`] if the answer does not match the form; the question stays open.
    /// [`ReplyError::Stale`] if the agent no longer waits for an answer.
    pub fn answer(&self, answer: &Value) -> Result<(), ReplyError> {
        if let QuestionKind::Form(form) = &self.inner.kind {
            form.check(answer)?;
        }
        self.give(&match self.inner.method.as_str() {
            ELICITATION => json!({"action": "accept", "content": answer}),
            _ => json!({"status": "answered", "outcome": "answered", "answers": answer}),
        })
    }

    /// Accepts a question that needs no answer: the user opens the web page.
    ///
    /// # Errors
    /// [`ReplyError::NotOffered`] if the question needs an answer; it stays open. [`ReplyError::Stale`] if the
    /// agent no longer waits for an answer.
    pub fn accept(&self) -> Result<(), ReplyError> {
        match self.inner.kind {
            QuestionKind::Form(_) | QuestionKind::Choice(_) => Err(ReplyError::NotOffered),
            QuestionKind::Url { .. } | QuestionKind::Other => self.give(&json!({"action": "accept"})),
        }
    }

    /// Declines the question: the user does not want to answer.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if the agent no longer waits for an answer.
    pub fn decline(&self) -> Result<(), ReplyError> {
        self.give(&match self.inner.method.as_str() {
            ELICITATION => json!({"action": "decline"}),
            _ => json!({"status": "rejected", "outcome": "rejected"}),
        })
    }

    /// Cancels the question: the user dismissed it without a choice.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if the agent no longer waits for an answer.
    pub fn cancel(&self) -> Result<(), ReplyError> {
        self.give(&cancelled(&self.inner.method))
    }

    /// Responds with any result, unchanged.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if the agent no longer waits for an answer.
    pub fn respond_raw(&self, result: &Value) -> Result<(), ReplyError> {
        self.give(result)
    }

    /// Responds with an error.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if the agent no longer waits for an answer.
    pub fn fail(&self, error: RpcError) -> Result<(), ReplyError> {
        if self.stake.is_none() && self.inner.reply.is_open() {
            return Err(ReplyError::OnlyObserves);
        }
        self.inner.reply.refuse(error)
    }

    pub(crate) fn size(&self) -> usize {
        self.inner.raw.weight()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.inner.raw.get(name).and_then(Value::as_str)
    }
}

fn cancelled(method: &str) -> Value {
    match method {
        ELICITATION => json!({"action": "cancel"}),
        _ => json!({"status": "rejected", "outcome": "cancelled"}),
    }
}

fn read_kind(method: &str, params: &Value) -> QuestionKind {
    let text = |name: &str| params.get(name).and_then(Value::as_str).map(str::to_owned);
    if method == REQUEST_QUESTION {
        let options = params.get("options").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        return QuestionKind::Choice(options.iter().filter_map(FormChoice::read).collect());
    }
    match (text("mode").as_deref(), params.get("requestedSchema"), text("elicitationId"), text("url")) {
        // Older agents send a schema without a mode.
        (Some("form") | None, Some(schema), _, _) => QuestionKind::Form(QuestionForm::read(schema)),
        (Some("url"), _, Some(id), Some(url)) => QuestionKind::Url { id, url },
        _ => QuestionKind::Other,
    }
}

impl fmt::Debug for QuestionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuestionRequest")
            .field("method", &self.inner.method)
            .field("kind", &self.inner.kind)
            .field("reply", &self.inner.reply)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ELICITATION, QuestionKind, QuestionSupport, REQUEST_QUESTION, read_kind};

    #[test]
    fn every_mode_is_parsed_and_an_unknown_one_is_preserved() {
        let form = json!({"mode": "form", "requestedSchema": {"properties": {"a": {"type": "boolean"}}}});
        assert!(matches!(read_kind(ELICITATION, &form), QuestionKind::Form(form) if form.fields.len() == 1));
        let url = json!({"mode": "url", "elicitationId": "e", "url": "https://example.org"});
        let expected = QuestionKind::Url { id: "e".into(), url: "https://example.org".into() };
        assert_eq!(read_kind(ELICITATION, &url), expected);
        for odd in [json!({"mode": "_hologram"}), json!({"mode": "url", "url": "x"}), json!(null), json!({})]
        {
            assert_eq!(read_kind(ELICITATION, &odd), QuestionKind::Other, "{odd}");
        }
    }

    #[test]
    fn options_are_parsed_in_every_format() {
        let params =
            json!({"options": [["a", "A"], "b", {"id": "c", "label": "C"}, {"value": "d"}, 5, ["e"], null]});
        let QuestionKind::Choice(options) = read_kind(REQUEST_QUESTION, &params) else { panic!("no choice") };
        let read: Vec<_> =
            options.iter().map(|option| (option.value.as_str(), option.title.as_str())).collect();
        assert_eq!(read, [("a", "A"), ("b", "b"), ("c", "C"), ("d", "d")]);
        assert_eq!(read_kind(REQUEST_QUESTION, &json!(null)), QuestionKind::Choice(Vec::new()));
    }

    #[test]
    fn only_enabled_questions_are_advertised() {
        assert_eq!(QuestionSupport::Off.to_value(), None);
        assert_eq!(QuestionSupport::Forms.to_value(), Some(json!({"form": {}})));
        assert_eq!(QuestionSupport::FormsAndUrls.to_value(), Some(json!({"form": {}, "url": {}})));
    }
}
