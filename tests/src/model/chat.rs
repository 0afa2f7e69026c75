//! OpenAI chat completions.

use serde_json::{Value, json};

use super::{
    reply::Step,
    request::{Piece, text_of, texts_of},
    server::{INPUT_TOKENS, OUTPUT_TOKENS},
    tool::Tool,
    wire::{Encoder, data, joined, message, thought},
};

pub(super) fn read(body: &Value) -> (Vec<Piece>, Vec<Tool>) {
    let mut pieces = Vec::new();
    for message in body["messages"].as_array().into_iter().flatten() {
        match message["role"].as_str() {
            Some("user") => pieces.extend(texts_of(&message["content"]).into_iter().map(Piece::User)),
            Some("tool") => pieces.push(Piece::ToolResult(text_of(&message["content"]))),
            _ => {}
        }
    }
    let tools = body["tools"].as_array().into_iter().flatten().filter_map(|tool| {
        let function = &tool["function"];
        let name = function["name"].as_str()?.to_owned();
        Some(Tool { name, schema: function["parameters"].clone() })
    });
    (pieces, tools.collect())
}

/// Writes chunks of one completion.
pub(super) struct Chat {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) calls: usize,
}

impl Chat {
    fn chunk(&self, delta: Value, finish: Option<&str>) -> String {
        data(&json!({
            "id": self.id, "object": "chat.completion.chunk", "created": 1, "model": self.model,
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
        }))
    }

    fn call(&mut self, name: &str, arguments: &Value) -> Value {
        let index = self.calls;
        self.calls += 1;
        json!({
            "index": index, "id": format!("call_{}_{index}", self.id), "type": "function",
            "function": { "name": name, "arguments": arguments.to_string() },
        })
    }

    fn finish(&self) -> &'static str {
        if self.calls > 0 { "tool_calls" } else { "stop" }
    }
}

fn usage() -> Value {
    json!({
        "prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    })
}

impl Encoder for Chat {
    fn begin(&mut self) -> String {
        self.chunk(json!({ "role": "assistant", "content": "" }), None)
    }

    fn step(&mut self, step: &Step) -> String {
        match step {
            Step::Text(text) => self.chunk(json!({ "content": text }), None),
            Step::Thought(text) => self.chunk(json!({ "reasoning_content": text }), None),
            Step::Pause(_) => String::new(),
            Step::Call { name, arguments } => {
                let call = self.call(name, arguments);
                self.chunk(json!({ "tool_calls": [call] }), None)
            }
        }
    }

    fn end(&mut self) -> String {
        let last = self.chunk(json!({}), Some(self.finish()));
        let usage = data(&json!({
            "id": self.id, "object": "chat.completion.chunk", "created": 1, "model": self.model,
            "choices": [], "usage": usage(),
        }));
        format!("{last}{usage}data: [DONE]\n\n")
    }

    fn whole(&mut self, steps: &[Step]) -> Value {
        let mut answer = json!({ "role": "assistant", "content": joined(steps, message) });
        let thoughts = joined(steps, thought);
        if !thoughts.is_empty() {
            answer["reasoning_content"] = thoughts.into();
        }
        let mut calls = Vec::new();
        for step in steps {
            if let Step::Call { name, arguments } = step {
                calls.push(self.call(name, arguments));
            }
        }
        if !calls.is_empty() {
            answer["tool_calls"] = calls.into();
        }
        json!({
            "id": self.id, "object": "chat.completion", "created": 1, "model": self.model,
            "choices": [{ "index": 0, "message": answer, "finish_reason": self.finish() }],
            "usage": usage(),
        })
    }
}
