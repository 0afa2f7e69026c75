use futures::future::join_all;
use serde_json::{Value, json};

use super::answers::AgentAnswer;
use super::instance::Player;
use super::step::{Permission, Step, Terminal, ToolCall};

impl Player {
    /// Performs a step that sends a request to the client. Returns the steps that follow from the response.
    pub(super) async fn ask_step(&self, session: &str, step: Step) -> Vec<Step> {
        match step {
            Step::AskPermission(permission) => {
                let answer = self.ask("session/request_permission", permission.params(session)).await;
                permission.follow_up(answer.pointer("/result/outcome").unwrap_or(&Value::Null))
            }
            Step::AskQuestion { message, schema } => {
                let params = json!({
                    "sessionId": session, "mode": "form", "message": message, "requestedSchema": schema,
                });
                let answer = self.ask("elicitation/create", params).await;
                vec![Step::Say(format!("answer: {}", answer.get("result").unwrap_or(&Value::Null)))]
            }
            Step::ReadFile { path } => {
                let params = json!({ "sessionId": session, "path": path });
                let answer = self.ask("fs/read_text_file", params).await;
                vec![Step::Say(format!("read: {}", text_or_error(&answer, "/result/content")))]
            }
            Step::WriteFile { path, content } => {
                let params = json!({ "sessionId": session, "path": path, "content": content });
                let answer = self.ask("fs/write_text_file", params).await;
                let outcome = if answer.get("error").is_some() { "refused" } else { "done" };
                vec![Step::Say(format!("write: {outcome}"))]
            }
            Step::Terminal(terminal) => self.run(session, &terminal).await,
            Step::Request { method, mut params } => {
                if let Value::Object(members) = &mut params {
                    members.entry("sessionId").or_insert_with(|| session.into());
                }
                self.ask(&method, params).await;
                Vec::new()
            }
            Step::FireRequests(count) => {
                let asks = (0..count).map(|number| {
                    let call = ToolCall::new(format!("fired-{number}"), format!("Call {number}"));
                    self.ask("session/request_permission", Permission::new(call).params(session))
                });
                join_all(asks).await;
                Vec::new()
            }
            // The other steps send no request and are handled by the player.
            _ => Vec::new(),
        }
    }

    /// Sends a request to the client, waits for the response and records it.
    async fn ask(&self, method: &str, params: Value) -> Value {
        let (id, answer) = self.register();
        self.outlet.value(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        match answer.await {
            Ok(answer) => {
                let record = AgentAnswer { method: method.to_owned(), params, answer: answer.clone() };
                self.outlet.surroundings().answers.push(record);
                answer
            }
            // The agent died while it waited, so the turn ends here.
            Err(_) => std::future::pending().await,
        }
    }

    async fn run(&self, session: &str, terminal: &Terminal) -> Vec<Step> {
        let params = json!({ "sessionId": session, "command": terminal.command, "args": terminal.args });
        let created = self.ask("terminal/create", params).await;
        let Some(id) = created.pointer("/result/terminalId").cloned() else {
            return vec![Step::Say(format!("terminal: {}", text_or_error(&created, "/result/terminalId")))];
        };
        let params = json!({ "sessionId": session, "terminalId": id });
        self.ask("terminal/wait_for_exit", params.clone()).await;
        let output = self.ask("terminal/output", params.clone()).await;
        self.ask("terminal/release", params).await;
        vec![Step::Say(format!("terminal: {}", text_or_error(&output, "/result/output")))]
    }
}

/// Returns the text at `pointer`, or the error message.
fn text_or_error(answer: &Value, pointer: &str) -> String {
    let text = answer.pointer(pointer).and_then(Value::as_str);
    let error = answer.pointer("/error/message").and_then(Value::as_str);
    match (text, error) {
        (Some(text), _) => text.to_owned(),
        (None, Some(error)) => format!("error: {error}"),
        (None, None) => "nothing".to_owned(),
    }
}
