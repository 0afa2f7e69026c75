//! Gemini `generateContent`.

use serde_json::{Value, json};

use super::{
    reply::Step,
    request::Piece,
    server::{INPUT_TOKENS, OUTPUT_TOKENS},
    tool::Tool,
    wire::{Encoder, data},
};

pub(super) fn read(body: &Value) -> (Vec<Piece>, Vec<Tool>) {
    let mut pieces = Vec::new();
    let contents = body["contents"].as_array().into_iter().flatten();
    for content in contents.filter(|content| content["role"] != "model") {
        for part in content["parts"].as_array().into_iter().flatten() {
            if let Some(text) = part["text"].as_str() {
                pieces.push(Piece::User(text.to_owned()));
            } else if let Some(response) = part.get("functionResponse") {
                let response = &response["response"];
                let output = response["output"].as_str().or_else(|| response["error"].as_str());
                pieces.push(Piece::ToolResult(output.map_or_else(|| response.to_string(), str::to_owned)));
            }
        }
    }
    let declared = body["tools"].as_array().into_iter().flatten();
    let declared = declared.flat_map(|tool| tool["functionDeclarations"].as_array().into_iter().flatten());
    let tools = declared.filter_map(|function| {
        let schema = function.get("parametersJsonSchema").or_else(|| function.get("parameters"));
        let name = function["name"].as_str()?.to_owned();
        Some(Tool { name, schema: schema.cloned().unwrap_or_default() })
    });
    (pieces, tools.collect())
}

/// Writes the chunks of one response.
pub(super) struct Gemini {
    pub(super) model: String,
}

impl Gemini {
    fn response(&self, parts: &Value, finish: Option<&str>) -> Value {
        let mut candidate = json!({ "content": { "role": "model", "parts": parts }, "index": 0 });
        if let Some(finish) = finish {
            candidate["finishReason"] = finish.into();
        }
        json!({
            "candidates": [candidate], "modelVersion": self.model,
            "usageMetadata": {
                "promptTokenCount": INPUT_TOKENS, "candidatesTokenCount": OUTPUT_TOKENS,
                "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS,
            },
        })
    }
}

fn part(step: &Step) -> Option<Value> {
    match step {
        Step::Text(text) => Some(json!({ "text": text })),
        Step::Thought(text) => Some(json!({ "text": text, "thought": true })),
        Step::Pause(_) => None,
        Step::Call { name, arguments } => {
            Some(json!({ "functionCall": { "name": name, "args": arguments } }))
        }
    }
}

impl Encoder for Gemini {
    fn step(&mut self, step: &Step) -> String {
        part(step).map(|part| data(&self.response(&json!([part]), None))).unwrap_or_default()
    }

    fn end(&mut self) -> String {
        data(&self.response(&json!([{ "text": "" }]), Some("STOP")))
    }

    fn whole(&mut self, steps: &[Step]) -> Value {
        let parts: Vec<Value> = steps.iter().filter_map(part).collect();
        self.response(&parts.into(), Some("STOP"))
    }
}
