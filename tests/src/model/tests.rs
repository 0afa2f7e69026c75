//! The model over real sockets, without agents.

use acp_http_client::http_client_builder;
use futures::StreamExt;
use serde_json::{Value, json};

use super::{Api, INPUT_TOKENS, OUTPUT_TOKENS, ScriptedModel};
use crate::within;

const APIS: [Api; 4] = [Api::OpenAiChat, Api::OpenAiResponses, Api::Anthropic, Api::Gemini];

/// A request as an agent would make it: earlier texts, the prompt with added context, tools, and what a tool returned.
fn body(api: Api, prompt: &str, stream: bool, tool_result: Option<&str>) -> Value {
    let command = json!({ "type": "object", "properties": { "command": { "type": "string" } } });
    let context = "<system-reminder>\nsay 99\n</system-reminder>";
    match api {
        Api::OpenAiChat => {
            let mut messages = vec![
                json!({ "role": "system", "content": "say 98" }),
                json!({ "role": "user", "content": "earlier" }),
                json!({ "role": "assistant", "content": "say 97" }),
                json!({ "role": "user", "content": [
                    { "type": "text", "text": context }, { "type": "text", "text": prompt },
                ] }),
            ];
            if let Some(result) = tool_result {
                messages.push(json!({ "role": "assistant", "tool_calls": [] }));
                messages.push(json!({ "role": "tool", "tool_call_id": "c", "content": result }));
            }
            let tool = json!({ "type": "function", "function": { "name": "bash", "parameters": command } });
            json!({ "model": "m", "stream": stream, "messages": messages, "tools": [tool] })
        }
        Api::OpenAiResponses => {
            let message = |text: &str| json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] });
            let mut input = vec![message("earlier"), message(context), message(prompt)];
            if let Some(result) = tool_result {
                input.push(json!({ "type": "function_call_output", "call_id": "c", "output": result }));
            }
            let tool = json!({ "type": "function", "name": "shell", "parameters": command });
            json!({ "model": "m", "stream": stream, "input": input, "tools": [tool] })
        }
        Api::Anthropic => {
            let mut messages = vec![
                json!({ "role": "user", "content": "earlier" }),
                json!({ "role": "user", "content": [
                    { "type": "text", "text": context }, { "type": "text", "text": prompt },
                ] }),
            ];
            if let Some(result) = tool_result {
                let result = json!({ "type": "tool_result", "tool_use_id": "c", "content": result });
                messages.push(
                    json!({ "role": "user", "content": [result, { "type": "text", "text": context }] }),
                );
            }
            let tool = json!({ "name": "Bash", "input_schema": command });
            json!({ "model": "m", "stream": stream, "max_tokens": 10, "messages": messages, "tools": [tool] })
        }
        Api::Gemini => {
            let mut contents = vec![
                json!({ "role": "user", "parts": [{ "text": "earlier" }] }),
                json!({ "role": "user", "parts": [{ "text": context }, { "text": prompt }] }),
            ];
            if let Some(result) = tool_result {
                let response = json!({ "name": "run_shell_command", "response": { "output": result } });
                contents.push(json!({ "role": "user", "parts": [{ "functionResponse": response }] }));
            }
            let tool = json!({ "name": "run_shell_command", "parametersJsonSchema": command });
            json!({ "contents": contents, "tools": [{ "functionDeclarations": [tool] }] })
        }
    }
}

fn path(api: Api, stream: bool) -> &'static str {
    match api {
        Api::OpenAiChat => "/v1/chat/completions",
        Api::OpenAiResponses => "/v1/responses",
        Api::Anthropic => "/v1/messages",
        Api::Gemini if stream => "/v1beta/models/m:streamGenerateContent",
        Api::Gemini => "/v1beta/models/m:generateContent",
    }
}

/// What an agent reads out of a response.
#[derive(Debug, Default, PartialEq)]
struct Read {
    texts: Vec<String>,
    thoughts: Vec<String>,
    calls: Vec<(String, Value)>,
    tokens: (u64, u64),
    ended: bool,
}

async fn ask(model: &ScriptedModel, api: Api, stream: bool, body: &Value) -> (u16, Read) {
    let request = http_client_builder()
        .build()
        .expect("an HTTP client")
        .post(model.url() + path(api, stream))
        .body(body.to_string());
    let response = request.header("x-api-key", "k").send().await.expect("a response");
    let status = response.status().as_u16();
    let mut bytes = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        bytes.extend(chunk.expect("a chunk"));
    }
    let text = String::from_utf8(bytes).expect("text");
    let mut read = Read::default();
    if status != 200 {
        read.texts.push(text);
    } else if stream {
        for line in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
            match line {
                "[DONE]" => read.ended = true,
                line => event(api, &serde_json::from_str(line).expect("JSON"), &mut read),
            }
        }
    } else {
        whole(api, &serde_json::from_str(&text).expect("JSON"), &mut read);
    }
    (status, read)
}

fn arguments(value: &Value) -> Value {
    serde_json::from_str(value.as_str().expect("text")).expect("JSON")
}

fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

fn event(api: Api, event: &Value, read: &mut Read) {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    match api {
        Api::OpenAiChat => {
            read.texts.extend(text("/choices/0/delta/content").filter(|text| !text.is_empty()));
            read.thoughts.extend(text("/choices/0/delta/reasoning_content"));
            if let Some(call) = event.pointer("/choices/0/delta/tool_calls/0/function") {
                read.calls
                    .push((call["name"].as_str().expect("a name").to_owned(), arguments(&call["arguments"])));
            }
            if event.get("usage").is_some() {
                read.tokens =
                    (number(event, "/usage/prompt_tokens"), number(event, "/usage/completion_tokens"));
            }
        }
        Api::OpenAiResponses => match event["type"].as_str() {
            Some("response.output_text.delta") => read.texts.extend(text("/delta")),
            Some("response.reasoning_summary_text.delta") => read.thoughts.extend(text("/delta")),
            Some("response.output_item.done") if event["item"]["type"] == "function_call" => {
                let item = &event["item"];
                read.calls
                    .push((item["name"].as_str().expect("a name").to_owned(), arguments(&item["arguments"])));
            }
            Some("response.completed") => {
                let usage = &event["response"]["usage"];
                read.tokens = (number(usage, "/input_tokens"), number(usage, "/output_tokens"));
                read.ended = true;
            }
            _ => {}
        },
        Api::Anthropic => match event["type"].as_str() {
            Some("content_block_start") if event["content_block"]["type"] == "tool_use" => {
                let name = event["content_block"]["name"].as_str().expect("a name").to_owned();
                read.calls.push((name, Value::Null));
            }
            Some("content_block_delta") => {
                read.texts.extend(text("/delta/text"));
                read.thoughts.extend(text("/delta/thinking"));
                if let (Some(input), Some(call)) = (event["delta"].get("partial_json"), read.calls.last_mut())
                {
                    call.1 = arguments(input);
                }
            }
            Some("message_start") => read.tokens.0 = number(event, "/message/usage/input_tokens"),
            Some("message_delta") => read.tokens.1 = number(event, "/usage/output_tokens"),
            Some("message_stop") => read.ended = true,
            _ => {}
        },
        Api::Gemini => {
            gemini_parts(event, read);
            read.ended |= event["candidates"][0]["finishReason"] == "STOP";
        }
    }
}

fn gemini_parts(response: &Value, read: &mut Read) {
    for part in response["candidates"][0]["content"]["parts"].as_array().expect("parts") {
        if let Some(call) = part.get("functionCall") {
            read.calls.push((call["name"].as_str().expect("a name").to_owned(), call["args"].clone()));
            continue;
        }
        let text = part["text"].as_str().expect("text").to_owned();
        match part["thought"] == true {
            true => read.thoughts.push(text),
            false if text.is_empty() => {}
            false => read.texts.push(text),
        }
    }
    let usage = &response["usageMetadata"];
    read.tokens = (number(usage, "/promptTokenCount"), number(usage, "/candidatesTokenCount"));
}

fn whole(api: Api, response: &Value, read: &mut Read) {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    match api {
        Api::OpenAiChat => {
            let message = &response["choices"][0]["message"];
            read.texts.push(text(&message["content"]));
            read.thoughts.extend(message.get("reasoning_content").map(text));
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                read.calls.push((text(&call["function"]["name"]), arguments(&call["function"]["arguments"])));
            }
            let usage = &response["usage"];
            read.tokens = (number(usage, "/prompt_tokens"), number(usage, "/completion_tokens"));
        }
        Api::OpenAiResponses => {
            for item in response["output"].as_array().expect("output") {
                match item["type"].as_str().expect("a type") {
                    "message" => read.texts.push(text(&item["content"][0]["text"])),
                    "reasoning" => read.thoughts.push(text(&item["summary"][0]["text"])),
                    _ => read.calls.push((text(&item["name"]), arguments(&item["arguments"]))),
                }
            }
            let usage = &response["usage"];
            read.tokens = (number(usage, "/input_tokens"), number(usage, "/output_tokens"));
        }
        Api::Anthropic => {
            for block in response["content"].as_array().expect("content") {
                match block["type"].as_str().expect("a type") {
                    "text" => read.texts.push(text(&block["text"])),
                    "thinking" => read.thoughts.push(text(&block["thinking"])),
                    _ => read.calls.push((text(&block["name"]), block["input"].clone())),
                }
            }
            let usage = &response["usage"];
            read.tokens = (number(usage, "/input_tokens"), number(usage, "/output_tokens"));
        }
        Api::Gemini => gemini_parts(response, read),
    }
    read.ended = true;
}

/// Asks by every API, streaming and not.
async fn everywhere(prompt: &str, tool_result: Option<&str>, check: impl Fn(Api, bool, u16, Read)) {
    let model = ScriptedModel::start().await;
    for api in APIS {
        for stream in [true, false] {
            let (status, read) = ask(&model, api, stream, &body(api, prompt, stream, tool_result)).await;
            check(api, stream, status, read);
        }
    }
    assert_eq!(model.turns().len(), 2 * APIS.len());
    assert!(model.turns().iter().all(|request| request.prompt == prompt), "{:?}", model.turns());
    assert!(model.turns().iter().all(|request| request.earlier_prompts == ["earlier"]));
}

#[tokio::test]
async fn say_gives_numbered_chunks_by_every_api() {
    everywhere("say 3", None, |api, stream, status, read| {
        let texts: &[&str] = if stream { &["0 ", "1 ", "2 "] } else { &["0 1 2 "] };
        let texts = match (api, stream) {
            (Api::Gemini, false) => &["0 ", "1 ", "2 "],
            _ => texts,
        };
        assert_eq!(
            (status, read.texts.as_slice(), read.ended),
            (200, texts.map_owned().as_slice(), true),
            "{api:?}"
        );
        assert_eq!(read.tokens, (INPUT_TOKENS, OUTPUT_TOKENS), "{api:?}");
        assert!(read.thoughts.is_empty() && read.calls.is_empty());
    })
    .await;
}

trait Owned {
    fn map_owned(&self) -> Vec<String>;
}

impl Owned for &[&str] {
    fn map_owned(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}

#[tokio::test]
async fn think_gives_reasoning_before_the_message_by_every_api() {
    everywhere("think 2", None, |api, stream, _, read| {
        assert_eq!(read.thoughts.concat(), "thought 0 thought 1 ", "{api:?} {stream}");
        assert_eq!(read.texts.concat(), "thought about it", "{api:?} {stream}");
    })
    .await;
}

#[tokio::test]
async fn tool_calls_the_tool_of_the_request_and_then_says_what_it_returned() {
    everywhere("tool echo hi", None, |api, stream, _, read| {
        let name = match api {
            Api::OpenAiChat => "bash",
            Api::OpenAiResponses => "shell",
            Api::Anthropic => "Bash",
            Api::Gemini => "run_shell_command",
        };
        let call = (name.to_owned(), json!({ "command": "echo hi" }));
        assert_eq!(read.calls, [call], "{api:?} {stream}");
        assert!(read.texts.concat().is_empty() && read.ended);
    })
    .await;
    everywhere("tool echo hi", Some("hi\n"), |api, stream, _, read| {
        assert_eq!(read.texts.concat(), "tool said: hi", "{api:?} {stream}");
        assert!(read.calls.is_empty());
    })
    .await;
}

#[tokio::test]
async fn error_fails_with_its_status_in_the_form_of_the_api() {
    everywhere("error 429", None, |api, _, status, read| {
        let body: Value = serde_json::from_str(&read.texts.concat()).expect("JSON");
        assert_eq!(status, 429);
        assert_eq!(body["error"]["message"], "scripted failure 429", "{api:?}");
    })
    .await;
}

#[tokio::test]
async fn anything_else_is_an_echo_and_slow_takes_its_time() {
    everywhere("what is this", None, |api, stream, _, read| {
        assert_eq!(read.texts.concat(), "echo: what is this", "{api:?} {stream}");
    })
    .await;
    everywhere("slow 2", None, |_, _, _, read| assert_eq!(read.texts.concat(), "0 1 ")).await;
}

#[tokio::test]
async fn a_request_without_tools_is_a_side_request_and_runs_no_script() {
    let model = ScriptedModel::start().await;
    let mut body = body(Api::OpenAiChat, "error 500", false, None);
    body["tools"] = json!([]);
    let (status, read) = ask(&model, Api::OpenAiChat, false, &body).await;
    assert_eq!((status, read.texts.concat().as_str()), (200, "A scripted title"));
    assert!(model.turns().is_empty() && model.requests().len() == 1);
}

#[tokio::test]
async fn a_wrong_key_is_refused_and_recorded() {
    let model = ScriptedModel::with_key("right").await;
    let (status, _) = ask(&model, Api::Anthropic, false, &body(Api::Anthropic, "say 1", false, None)).await;
    assert_eq!(status, 401);
    assert_eq!(model.turns()[0].key.as_deref(), Some("k"));
}

#[tokio::test]
async fn a_stream_that_its_reader_gives_up_ends() {
    let model = ScriptedModel::start().await;
    let body = body(Api::OpenAiChat, "slow 100000", true, None);
    let request = http_client_builder()
        .build()
        .expect("an HTTP client")
        .post(model.url() + "/v1/chat/completions")
        .body(body.to_string());
    let mut response = request.send().await.expect("a response");
    assert!(response.chunk().await.expect("a chunk").is_some());
    drop(response);
    within("the model is idle", model.idle()).await;
}

#[tokio::test]
async fn responses_of_two_turns_are_served_at_once() {
    let model = ScriptedModel::start().await;
    let slow = body(Api::OpenAiChat, "slow 20", true, None);
    let one = ask(&model, Api::OpenAiChat, true, &slow);
    let two = ask(&model, Api::OpenAiChat, true, &slow);
    let (_, _, ()) = within("both turns", async { tokio::join!(one, two, model.serves_turns(2)) }).await;
}

#[tokio::test]
async fn tools_are_called_as_their_schemas_want() {
    let model = ScriptedModel::start().await;
    let schema = json!({
        "type": "object", "required": ["command", "workdir", "timeout"],
        "properties": {
            "command": { "type": "array" }, "workdir": { "type": "string" }, "timeout": { "type": "number" },
            "optional": { "type": "string" },
        },
    });
    let ask_with = async |prompt: &str, tools: Value| {
        let mut body = body(Api::OpenAiResponses, prompt, false, None);
        body["tools"] = tools;
        ask(&model, Api::OpenAiResponses, false, &body).await.1
    };
    let shell = json!([{ "type": "function", "name": "shell", "parameters": schema }]);
    let read = ask_with("tool ls", shell.clone()).await;
    let wanted = json!({ "command": ["bash", "-lc", "ls"], "workdir": "scripted", "timeout": 1 });
    assert_eq!(read.calls, [("shell".to_owned(), wanted)]);
    let read = ask_with("write a/b.txt", shell).await;
    let command = read.calls[0].1["command"][2].as_str().expect("a command").to_owned();
    assert!(
        command.starts_with("apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: a/b.txt\n+written"),
        "{command}"
    );
    let writer = json!({ "type": "object", "properties": { "file_path": {}, "content": {}, "other": {} } });
    let read =
        ask_with("write /x", json!([{ "type": "function", "name": "write_file", "parameters": writer }]))
            .await;
    assert_eq!(read.calls[0].1, json!({ "file_path": "/x", "content": super::WRITTEN }));
    let (old, new) = super::EDITED;
    let editor =
        json!({ "type": "object", "properties": { "file_path": {}, "old_string": {}, "new_string": {} } });
    let edit = json!([{ "type": "function", "name": "replace", "parameters": editor }]);
    let read = ask_with("edit /x", edit).await;
    assert_eq!(read.calls[0].1, json!({ "file_path": "/x", "old_string": old, "new_string": new }));
    let patcher = json!({ "type": "object", "properties": { "input": {} } });
    let patcher = json!([{ "type": "function", "name": "apply_patch", "parameters": patcher }]);
    let read = ask_with("edit /x", patcher).await;
    let patch = format!("*** Begin Patch\n*** Update File: /x\n@@\n-{old}\n+{new}\n*** End Patch");
    assert_eq!(read.calls[0].1, json!({ "input": patch }));
    let reader = json!({ "type": "object", "properties": { "filePath": {} } });
    let read = ask_with("read /x", json!([{ "type": "function", "name": "read", "parameters": reader }]));
    assert_eq!(read.await.calls[0].1, json!({ "filePath": "/x" }));
    let read = ask_with(
        "call fetch {\"a\":1}",
        json!([{ "type": "function", "name": "mcp__fetch", "parameters": {} }]),
    );
    assert_eq!(read.await.calls, [("mcp__fetch".to_owned(), json!({ "a": 1 }))]);
    let space =
        json!({ "type": "namespace", "name": "mcp", "tools": [{ "type": "function", "name": "fetch" }] });
    let read = ask_with("call fetch {}", json!([space])).await;
    assert_eq!(read.calls, [("fetch".to_owned(), json!({}))]);
}
