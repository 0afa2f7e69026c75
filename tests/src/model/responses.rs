//! OpenAI responses.

use serde_json::{Value, json};

use super::{
    reply::Step,
    request::{Piece, text_of, texts_of},
    server::{INPUT_TOKENS, OUTPUT_TOKENS},
    tool::Tool,
    wire::{Encoder, typed},
};

pub(super) fn read(body: &Value) -> (Vec<Piece>, Vec<Tool>) {
    let mut pieces = Vec::new();
    if let Some(text) = body["input"].as_str() {
        pieces.push(Piece::User(text.to_owned()));
    }
    for item in body["input"].as_array().into_iter().flatten() {
        match (item["type"].as_str(), item["role"].as_str()) {
            (Some("message") | None, Some("user")) => {
                pieces.extend(texts_of(&item["content"]).into_iter().map(Piece::User));
            }
            (Some("function_call_output" | "custom_tool_call_output"), _) => {
                pieces.push(Piece::ToolResult(text_of(&item["output"])));
            }
            _ => {}
        }
    }
    let tools = body["tools"].as_array().into_iter().flatten();
    (pieces, tools.flat_map(tools_of).collect())
}

/// One tool, or those of a namespace, which are named `NAMESPACE/NAME` here.
fn tools_of(tool: &Value) -> Vec<Tool> {
    let Some(name) = tool["name"].as_str() else { return Vec::new() };
    if tool["type"] == "namespace" {
        let tools = tool["tools"].as_array().into_iter().flatten().flat_map(tools_of);
        return tools.map(|tool| Tool { name: format!("{name}/{}", tool.name), ..tool }).collect();
    }
    vec![Tool { name: name.to_owned(), schema: tool["parameters"].clone() }]
}

/// Writes the events of one response.
pub(super) struct Responses {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) sequence: u64,
    /// The items that are finished.
    pub(super) output: Vec<Value>,
    /// The item that is being written.
    pub(super) open: Option<Open>,
}

/// An item that is being written.
pub(super) struct Open {
    /// `message` or `reasoning`.
    kind: &'static str,
    id: String,
    text: String,
}

impl Responses {
    fn event(&mut self, mut event: Value) -> String {
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        typed(&event)
    }

    fn response(&self, status: &str) -> Value {
        let total = INPUT_TOKENS + OUTPUT_TOKENS;
        json!({
            "id": self.id, "object": "response", "created_at": 1, "status": status, "model": self.model,
            "output": self.output, "parallel_tool_calls": false, "tools": [],
            "usage": {
                "input_tokens": INPUT_TOKENS, "input_tokens_details": { "cached_tokens": 0 },
                "output_tokens": OUTPUT_TOKENS, "output_tokens_details": { "reasoning_tokens": 0 },
                "total_tokens": total,
            },
        })
    }

    fn text(&mut self, kind: &'static str, text: &str) -> String {
        let mut written = String::new();
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            written += &self.close();
            written += &self.open(kind);
        }
        let index = self.output.len();
        let Some(open) = &mut self.open else { return written };
        open.text += text;
        let id = open.id.clone();
        written += &match kind {
            "message" => self.event(json!({
                "type": "response.output_text.delta", "item_id": id, "output_index": index,
                "content_index": 0, "delta": text, "logprobs": [],
            })),
            _ => self.event(json!({
                "type": "response.reasoning_summary_text.delta", "item_id": id, "output_index": index,
                "summary_index": 0, "delta": text,
            })),
        };
        written
    }

    fn open(&mut self, kind: &'static str) -> String {
        let index = self.output.len();
        let id = format!("{kind}_{}_{index}", self.id);
        self.open = Some(Open { kind, id: id.clone(), text: String::new() });
        if kind == "message" {
            let item = json!({
                "type": "message", "id": id, "status": "in_progress", "role": "assistant", "content": [],
            });
            let part = json!({ "type": "output_text", "text": "", "annotations": [] });
            let added = self
                .event(json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
            let begun = self.event(json!({
                "type": "response.content_part.added", "item_id": id, "output_index": index,
                "content_index": 0, "part": part,
            }));
            return added + &begun;
        }
        let item = json!({ "type": "reasoning", "id": id, "summary": [] });
        let added =
            self.event(json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
        let begun = self.event(json!({
            "type": "response.reasoning_summary_part.added", "item_id": id, "output_index": index,
            "summary_index": 0, "part": { "type": "summary_text", "text": "" },
        }));
        added + &begun
    }

    fn close(&mut self) -> String {
        let Some(open) = self.open.take() else { return String::new() };
        let item = finished(&open);
        let index = self.output.len();
        let mut written = String::new();
        if open.kind == "message" {
            written += &self.event(json!({
                "type": "response.output_text.done", "item_id": open.id, "output_index": index,
                "content_index": 0, "text": open.text, "logprobs": [],
            }));
        } else {
            written += &self.event(json!({
                "type": "response.reasoning_summary_text.done", "item_id": open.id, "output_index": index,
                "summary_index": 0, "text": open.text,
            }));
        }
        written +=
            &self.event(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
        self.output.push(item);
        written
    }

    fn call(&mut self, name: &str, arguments: &Value) -> String {
        let index = self.output.len();
        let call = format!("call_{}_{index}", self.id);
        let (namespace, name) = match name.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, name),
        };
        let mut item = match arguments {
            Value::String(input) => json!({
                "type": "custom_tool_call", "id": format!("ctc_{}_{index}", self.id), "call_id": call,
                "name": name, "input": input, "status": "completed",
            }),
            arguments => json!({
                "type": "function_call", "id": format!("fc_{}_{index}", self.id), "call_id": call,
                "name": name, "arguments": arguments.to_string(), "status": "completed",
            }),
        };
        if let Some(namespace) = namespace {
            item["namespace"] = namespace.into();
        }
        let added =
            self.event(json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
        let done =
            self.event(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
        self.output.push(item);
        added + &done
    }
}

fn finished(open: &Open) -> Value {
    if open.kind == "message" {
        let part = json!({ "type": "output_text", "text": open.text, "annotations": [] });
        return json!({
            "type": "message", "id": open.id, "status": "completed", "role": "assistant", "content": [part],
        });
    }
    json!({
        "type": "reasoning", "id": open.id,
        "summary": [{ "type": "summary_text", "text": open.text }],
    })
}

impl Encoder for Responses {
    fn begin(&mut self) -> String {
        let response = self.response("in_progress");
        self.event(json!({ "type": "response.created", "response": response }))
    }

    fn step(&mut self, step: &Step) -> String {
        match step {
            Step::Text(text) => self.text("message", text),
            Step::Thought(text) => self.text("reasoning", text),
            Step::Pause(_) => String::new(),
            Step::Call { name, arguments } => {
                let closed = self.close();
                closed + &self.call(name, arguments)
            }
        }
    }

    fn end(&mut self) -> String {
        let closed = self.close();
        let response = self.response("completed");
        closed + &self.event(json!({ "type": "response.completed", "response": response }))
    }

    fn whole(&mut self, steps: &[Step]) -> Value {
        for step in steps {
            self.step(step);
        }
        self.close();
        self.response("completed")
    }
}
