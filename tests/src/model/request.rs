//! A request to the model, read from any of the APIs.

use serde_json::Value;

use super::tool::Tool;

/// The API that a request was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `POST …/chat/completions`.
    OpenAiChat,
    /// `POST …/responses`.
    OpenAiResponses,
    /// `POST …/messages`.
    Anthropic,
    /// `POST …:generateContent` and `…:streamGenerateContent`.
    Gemini,
}

/// A request that the model was sent.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// The API it came by.
    pub api: Api,
    /// Its path.
    pub path: String,
    /// Whether the response is streamed.
    pub stream: bool,
    /// The key it was sent with.
    pub key: Option<String>,
    /// Its whole body.
    pub body: Value,
    /// The last text of the user that is not context which the agent added.
    pub prompt: String,
    /// The user's texts before that, oldest first.
    pub earlier_prompts: Vec<String>,
    /// What tools returned since the last text of the user.
    pub tool_results: Vec<String>,
    /// The tools it offers.
    pub(super) tools: Vec<Tool>,
}

impl ModelRequest {
    pub(super) fn new(api: Api, path: &str, stream: bool, key: Option<String>, body: Value) -> Self {
        let (messages, tools) = match api {
            Api::OpenAiChat => super::chat::read(&body),
            Api::OpenAiResponses => super::responses::read(&body),
            Api::Anthropic => super::anthropic::read(&body),
            Api::Gemini => super::gemini::read(&body),
        };
        let mut prompts = Vec::new();
        let mut tool_results = Vec::new();
        for piece in messages {
            match piece {
                Piece::User(text) => {
                    if let Some(text) = said(&text) {
                        prompts.push(text);
                        tool_results.clear();
                    }
                }
                Piece::ToolResult(text) => tool_results.push(text),
            }
        }
        let prompt = prompts.pop().unwrap_or_default();
        Self {
            api,
            path: path.to_owned(),
            stream,
            key,
            body,
            prompt,
            earlier_prompts: prompts,
            tool_results,
            tools,
        }
    }

    /// Whether this is a request of the agent's own, for a title or the like: such requests offer no tools.
    pub fn is_side_request(&self) -> bool {
        self.tools.is_empty()
    }

    /// The names of the tools it offers.
    pub fn tool_names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|tool| tool.name.as_str())
    }

    /// Whether this text is anywhere in the body.
    pub fn contains(&self, text: &str) -> bool {
        self.body.to_string().contains(text)
    }
}

/// The parts of a conversation that the script needs.
#[derive(Debug)]
pub(super) enum Piece {
    /// One text of the user.
    User(String),
    /// What a tool returned.
    ToolResult(String),
}

/// What the user said, without the context that agents add to it; `None` if it is nothing but that.
fn said(text: &str) -> Option<String> {
    let mut rest = text.trim();
    // Context comes in elements, `<system-reminder>` and the like, before or after what was said.
    while let Some(name) = rest.strip_prefix('<').and_then(|rest| rest.split(['>', ' ']).next()) {
        let Some((_, behind)) = rest.split_once(&format!("</{name}>")) else { break };
        rest = behind.trim();
    }
    if let Some(position) = rest.find("<system-reminder>") {
        rest = rest[..position].trim();
    }
    (!rest.is_empty() && !rest.starts_with('<')).then(|| rest.to_owned())
}

/// The text of a content that is a string or an array of parts.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part {
                Value::String(text) => text.as_str(),
                part => part["text"].as_str().unwrap_or_default(),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The texts of a content that is a string or an array of parts, one by one.
pub(super) fn texts_of(content: &Value) -> Vec<String> {
    match content {
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).map(str::to_owned).collect()
        }
        other => vec![text_of(other)],
    }
}
