//! Anthropic messages.

use serde_json::{Value, json};

use super::{
    reply::Step,
    request::{Piece, text_of},
    server::{INPUT_TOKENS, OUTPUT_TOKENS},
    tool::Tool,
    wire::{Encoder, typed},
};

pub(super) fn read(body: &Value) -> (Vec<Piece>, Vec<Tool>) {
    let mut pieces = Vec::new();
    let messages = body["messages"].as_array().into_iter().flatten();
    for message in messages.filter(|message| message["role"] == "user") {
        let content = &message["content"];
        if let Some(text) = content.as_str() {
            pieces.push(Piece::User(text.to_owned()));
        }
        for block in content.as_array().into_iter().flatten() {
            match block["type"].as_str() {
                Some("text") => pieces.push(Piece::User(text_of(&block["text"]))),
                Some("tool_result") => pieces.push(Piece::ToolResult(text_of(&block["content"]))),
                _ => {}
            }
        }
    }
    let tools = body["tools"].as_array().into_iter().flatten().filter_map(|tool| {
        Some(Tool { name: tool["name"].as_str()?.to_owned(), schema: tool["input_schema"].clone() })
    });
    (pieces, tools.collect())
}

/// Writes the events of one message.
pub(super) struct Anthropic {
    pub(super) id: String,
    pub(super) model: String,
    /// How many blocks have begun.
    pub(super) blocks: usize,
    /// The kind of the block that is being written.
    pub(super) open: Option<&'static str>,
    pub(super) called: bool,
}

impl Anthropic {
    fn begin_block(&mut self, kind: &'static str, block: &Value) -> String {
        let closed = self.close();
        self.open = Some(kind);
        self.blocks += 1;
        let index = self.blocks - 1;
        closed + &typed(&json!({ "type": "content_block_start", "index": index, "content_block": block }))
    }

    fn delta(&self, delta: &Value) -> String {
        let index = self.blocks.saturating_sub(1);
        typed(&json!({ "type": "content_block_delta", "index": index, "delta": delta }))
    }

    fn close(&mut self) -> String {
        let Some(kind) = self.open.take() else { return String::new() };
        let signature = match kind {
            "thinking" => self.delta(&json!({ "type": "signature_delta", "signature": "scripted" })),
            _ => String::new(),
        };
        let index = self.blocks.saturating_sub(1);
        signature + &typed(&json!({ "type": "content_block_stop", "index": index }))
    }

    fn stop_reason(&self) -> &'static str {
        if self.called { "tool_use" } else { "end_turn" }
    }

    fn message(&self, content: Value, stop_reason: Option<&str>) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": stop_reason, "stop_sequence": null,
            "usage": {
                "input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS,
                "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            },
        })
    }

    fn call_id(&self) -> String {
        format!("toolu_{}_{}", self.id, self.blocks)
    }
}

impl Encoder for Anthropic {
    fn begin(&mut self) -> String {
        typed(&json!({ "type": "message_start", "message": self.message(json!([]), None) }))
    }

    fn step(&mut self, step: &Step) -> String {
        match step {
            Step::Text(text) => {
                let begun = match self.open {
                    Some("text") => String::new(),
                    _ => self.begin_block("text", &json!({ "type": "text", "text": "" })),
                };
                begun + &self.delta(&json!({ "type": "text_delta", "text": text }))
            }
            Step::Thought(text) => {
                let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                let begun = match self.open {
                    Some("thinking") => String::new(),
                    _ => self.begin_block("thinking", &block),
                };
                begun + &self.delta(&json!({ "type": "thinking_delta", "thinking": text }))
            }
            Step::Pause(_) => String::new(),
            Step::Call { name, arguments } => {
                self.called = true;
                let block = json!({ "type": "tool_use", "id": self.call_id(), "name": name, "input": {} });
                let begun = self.begin_block("tool_use", &block);
                let input =
                    self.delta(&json!({ "type": "input_json_delta", "partial_json": arguments.to_string() }));
                begun + &input
            }
        }
    }

    fn end(&mut self) -> String {
        let closed = self.close();
        let delta = json!({ "stop_reason": self.stop_reason(), "stop_sequence": null });
        let usage = json!({ "output_tokens": OUTPUT_TOKENS });
        let last = typed(&json!({ "type": "message_delta", "delta": delta, "usage": usage }));
        closed + &last + &typed(&json!({ "type": "message_stop" }))
    }

    fn whole(&mut self, steps: &[Step]) -> Value {
        let mut content: Vec<Value> = Vec::new();
        for step in steps {
            let (kind, member, text) = match step {
                Step::Text(text) => ("text", "text", text),
                Step::Thought(text) => ("thinking", "thinking", text),
                Step::Pause(_) => continue,
                Step::Call { name, arguments } => {
                    self.called = true;
                    content.push(json!({
                        "type": "tool_use", "id": self.call_id(), "name": name, "input": arguments,
                    }));
                    continue;
                }
            };
            match content.last_mut().filter(|last| last["type"] == kind) {
                Some(last) => {
                    let joined = last[member].as_str().unwrap_or_default().to_owned() + text;
                    last[member] = joined.into();
                }
                None => content.push(json!({ "type": kind, member: text })),
            }
        }
        self.message(content.into(), Some(self.stop_reason()))
    }
}
