//! Questions.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use super::form::{FormChoice, QuestionForm};
use super::params::Params;
use super::reply::{Held, Reply, ReplyError, Responder};
use crate::error::RpcError;

/// The method of structured questions.
pub(crate) const ELICITATION: &str = "elicitation/create";
/// The notification that what a user was sent elsewhere for is done.
pub(crate) const ELICITATION_COMPLETE: &str = "elicitation/complete";
/// The method by which servers pass on an agent's questions.
pub(crate) const REQUEST_QUESTION: &str = "_sandboxagent/session/request_question";

/// Which questions a program is ready for, as the agent is told.
///
/// It is an announcement: a question that an agent asks without having been told reaches the subscribers of events all
/// the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuestionSupport {
    /// None.
    #[default]
    Off,
    /// Forms.
    Forms,
    /// Forms, and sending the user to a web page.
    FormsAndUrls,
}

impl QuestionSupport {
    /// The announcement, if there is anything to announce.
    pub(crate) fn to_value(self) -> Option<Value> {
        match self {
            Self::Off => None,
            Self::Forms => Some(json!({"form": {}})),
            Self::FormsAndUrls => Some(json!({"form": {}, "url": {}})),
        }
    }
}

/// What a question wants of the user.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum QuestionKind {
    /// To fill in a form.
    Form(QuestionForm),
    /// To open a page. That the user is done there is told as
    /// [`Event::QuestionCompleted`](crate::Event::QuestionCompleted).
    #[non_exhaustive]
    Url {
        /// The id by which its completion is told.
        id: String,
        /// The page. It comes from the agent: show it before it is opened.
        url: String,
    },
    /// To choose. Without options, any text will do.
    Choice(Vec<FormChoice>),
    /// Something that this version has no name for; [`QuestionRequest::raw`] has it.
    Other,
}

/// The agent asks the user something.
///
/// It is cheap to clone, and it can be answered once: the first answer counts, and a later one fails with
/// [`ReplyError::Stale`]. When the last copy that can decide is dropped without an answer, the question is cancelled.
/// Copies in subscriptions that are not [deciding](crate::Events::deciding) do not keep it open.
#[derive(Clone)]
pub struct QuestionRequest {
    inner: Arc<Inner>,
    /// Keeps the question open; `None` in a copy that only observes it.
    _stake: Option<Arc<Stake>>,
}

/// Cancels the question when it is dropped, unless it was answered before.
struct Stake(Arc<Inner>);

impl Drop for Stake {
    fn drop(&mut self) {
        // It was answered before, or the agent does not wait any more.
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
        Self { _stake: Some(Arc::new(Stake(Arc::clone(&inner)))), inner }
    }

    /// A copy that does not keep the question open.
    pub(crate) fn observed(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), _stake: None }
    }

    /// The id of the request, unique among the open requests of a connection.
    #[must_use]
    pub fn id(&self) -> &str {
        self.inner.raw.id()
    }

    /// Waits until no answer is expected any more.
    pub async fn closed(&self) {
        self.inner.reply.closed().await;
    }

    /// The session that asks.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.text("sessionId")
    }

    /// The tool call that asks, if one does.
    #[must_use]
    pub fn tool_call_id(&self) -> Option<&str> {
        self.text("toolCallId")
    }

    /// The question in words.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.text("message").or_else(|| self.text("prompt")).or_else(|| self.text("question"))
    }

    /// What it wants of the user.
    #[must_use]
    pub fn kind(&self) -> &QuestionKind {
        &self.inner.kind
    }

    /// The JSON schema that an answer has to fit, if the agent gives one.
    #[must_use]
    pub fn schema(&self) -> Option<&Value> {
        self.inner.raw.get("requestedSchema")
    }

    /// What the agent says besides: the member `_meta`.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.inner.raw.get("_meta")
    }

    /// The method by which it came.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.inner.method
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

    /// Answers it: a form with an object that has its fields, anything else with a text or a list of texts.
    ///
    /// # Errors
    /// [`ReplyError::Unfit`] if it does not fit the form: the question stays open. [`ReplyError::Stale`] if it is too
    /// late.
    pub fn answer(&self, answer: &Value) -> Result<(), ReplyError> {
        if let QuestionKind::Form(form) = &self.inner.kind {
            form.check(answer)?;
        }
        self.inner.reply.give(&match self.inner.method.as_str() {
            ELICITATION => json!({"action": "accept", "content": answer}),
            _ => json!({"status": "answered", "outcome": "answered", "answers": answer}),
        })
    }

    /// Agrees to what needs no answer: to open the page.
    ///
    /// # Errors
    /// [`ReplyError::NotOffered`] if the question wants an answer: it stays open. [`ReplyError::Stale`] if it is too
    /// late.
    pub fn accept(&self) -> Result<(), ReplyError> {
        match self.inner.kind {
            QuestionKind::Form(_) | QuestionKind::Choice(_) => Err(ReplyError::NotOffered),
            QuestionKind::Url { .. } | QuestionKind::Other => {
                self.inner.reply.give(&json!({"action": "accept"}))
            }
        }
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

    /// Answers that the user has left.
    ///
    /// # Errors
    /// [`ReplyError::Stale`] if it is too late.
    pub fn cancel(&self) -> Result<(), ReplyError> {
        self.inner.reply.give(&cancelled(&self.inner.method))
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
        // Agents older than the modes send a schema alone.
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
    fn every_mode_is_read_and_an_unknown_one_is_kept_raw() {
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
    fn options_are_read_in_every_shape() {
        let params =
            json!({"options": [["a", "A"], "b", {"id": "c", "label": "C"}, {"value": "d"}, 5, ["e"], null]});
        let QuestionKind::Choice(options) = read_kind(REQUEST_QUESTION, &params) else { panic!("no choice") };
        let read: Vec<_> =
            options.iter().map(|option| (option.value.as_str(), option.title.as_str())).collect();
        assert_eq!(read, [("a", "A"), ("b", "b"), ("c", "C"), ("d", "d")]);
        assert_eq!(read_kind(REQUEST_QUESTION, &json!(null)), QuestionKind::Choice(Vec::new()));
    }

    #[test]
    fn only_what_is_on_is_announced() {
        assert_eq!(QuestionSupport::Off.to_value(), None);
        assert_eq!(QuestionSupport::Forms.to_value(), Some(json!({"form": {}})));
        assert_eq!(QuestionSupport::FormsAndUrls.to_value(), Some(json!({"form": {}, "url": {}})));
    }
}
