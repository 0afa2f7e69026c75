//! The agent of the captures, reimplemented as a custom [`Agent`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use mock_server::{Agent, Exit, ExitStatus, LaunchError, Outlet, Running, StderrSummary, Undelivered};
use serde_json::{Value, json};
use tokio::sync::watch;

/// The duration that stands for one second of the captured agent.
pub(crate) const SECOND: Duration = Duration::from_millis(75);

#[derive(Debug, Default)]
pub(crate) struct CapturedAgent {
    sessions: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Instance {
    outlet: Outlet,
    sessions: Arc<AtomicU64>,
    stderr: Mutex<Vec<String>>,
    /// The prompt that waits for a permission.
    asking: Mutex<Option<Value>>,
    exited: AtomicU64,
}

impl Agent for CapturedAgent {
    fn launch(&self, outlet: Outlet) -> BoxFuture<'static, Result<Arc<dyn Running>, LaunchError>> {
        let instance: Arc<dyn Running> = Arc::new(Instance {
            outlet,
            sessions: Arc::clone(&self.sessions),
            stderr: Mutex::default(),
            asking: Mutex::default(),
            exited: AtomicU64::new(0),
        });
        std::future::ready(Ok(instance)).boxed()
    }
}

impl Running for Instance {
    fn deliver(&self, message: Value) -> BoxFuture<'_, Result<(), Undelivered>> {
        self.take(&message);
        std::future::ready(Ok(())).boxed()
    }

    fn stderr_tail(&self) -> Vec<String> {
        self.stderr.lock().unwrap().clone()
    }

    fn close_input(&self) {
        self.exit(0);
    }

    fn kill(&self) {
        self.exit(0);
    }
}

impl Instance {
    fn take(&self, message: &Value) {
        let params = &message["params"];
        match (message["method"].as_str(), message.get("id")) {
            (Some("initialize"), Some(id)) => self.result(
                id,
                json!({
                    "agentCapabilities": { "loadSession": true, "sessionCapabilities": { "list": {} } },
                    "agentInfo": { "name": "stub", "version": "0.0.1" },
                    "authMethods": [],
                    "protocolVersion": 1,
                }),
            ),
            (Some("session/new"), Some(id)) => {
                let number = self.sessions.fetch_add(1, Ordering::SeqCst) + 1;
                self.result(id, json!({ "sessionId": format!("s{number}") }));
            }
            (Some("session/prompt"), Some(id)) => {
                self.prompt(id.clone(), params["prompt"][0]["text"].as_str().unwrap_or_default());
            }
            (Some(method), Some(id)) => {
                let error =
                    json!({ "code": -32601, "message": "Method not found", "data": { "method": method } });
                self.outlet.value(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
            }
            (Some("session/cancel"), None) => self.notify("_stub/got_cancel", params.clone()),
            (None, Some(_)) => {
                self.notify("_stub/got_response", message.clone());
                if let Some(prompt) = self.asking.lock().unwrap().take() {
                    self.finish(&prompt);
                }
            }
            _ => {}
        }
    }

    fn prompt(&self, id: Value, text: &str) {
        match text {
            "hello" => {
                let content = json!({ "type": "text", "text": "echo: hello" });
                let update = json!({ "sessionUpdate": "agent_message_chunk", "content": content });
                self.notify("session/update", json!({ "sessionId": "s1", "update": update }));
                self.finish(&id);
            }
            "error" | "errordata" => {
                self.stderr.lock().unwrap().push("detail on stderr".into());
                let mut error = json!({ "code": -32000, "message": "agent says no" });
                if text == "errordata" {
                    error["data"] = "a string".into();
                }
                self.outlet.value(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
            }
            "die" => {
                self.stderr.lock().unwrap().extend(["boom line 1".into(), "boom line 2".into()]);
                self.exit(3);
            }
            "die-after-response" => {
                self.finish(&id);
                self.exit(3);
            }
            "invalid" => {
                self.outlet.line("this is not json");
                for value in [json!([1, 2, 3]), json!("str"), json!(42)] {
                    self.outlet.value(&value);
                }
                self.finish(&id);
            }
            "twice" => {
                for number in [1, 2] {
                    self.result(&id, json!({ "n": number, "stopReason": "end_turn" }));
                }
            }
            "perm" => {
                *self.asking.lock().unwrap() = Some(id);
                let params = json!({
                    "sessionId": "s1",
                    "toolCall": { "toolCallId": "t1", "title": "run ls" },
                    "options": [
                        { "optionId": "allow", "name": "Allow", "kind": "allow_once" },
                        { "optionId": "reject", "name": "Reject", "kind": "reject_once" },
                    ],
                });
                let method = "session/request_permission";
                self.outlet
                    .value(&json!({ "jsonrpc": "2.0", "id": "perm-1", "method": method, "params": params }));
            }
            slow if slow.starts_with("slow:") => {
                let seconds: u32 = slow["slow:".len()..].parse().unwrap();
                let outlet = self.outlet.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(SECOND * seconds).await;
                    outlet.value(
                        &json!({ "jsonrpc": "2.0", "id": id, "result": { "stopReason": "end_turn" } }),
                    );
                });
            }
            flood if flood.starts_with("flood:") => {
                for number in 0..flood["flood:".len()..].parse::<u32>().unwrap() {
                    self.notify("_stub/flood", json!({ "n": number }));
                }
                self.finish(&id);
            }
            // "hang" and "close-stdout": no response.
            _ => {}
        }
    }

    fn finish(&self, id: &Value) {
        self.result(id, json!({ "stopReason": "end_turn" }));
    }

    fn result(&self, id: &Value, result: Value) {
        self.outlet.value(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    fn notify(&self, method: &str, params: Value) {
        self.outlet.value(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn exit(&self, code: i32) {
        if self.exited.fetch_add(1, Ordering::SeqCst) == 0 {
            let last = self.stderr.lock().unwrap().clone();
            let stderr = StderrSummary { last, ..StderrSummary::default() };
            self.outlet.exited(Exit { status: ExitStatus::Code(code), stderr });
        }
    }
}

/// The built-in agent of the released server, which sends everything twice.
#[derive(Debug)]
pub(crate) struct EchoAgent;

#[derive(Debug)]
struct Echo(Outlet);

impl Agent for EchoAgent {
    fn launch(&self, outlet: Outlet) -> BoxFuture<'static, Result<Arc<dyn Running>, LaunchError>> {
        let instance: Arc<dyn Running> = Arc::new(Echo(outlet));
        std::future::ready(Ok(instance)).boxed()
    }

    fn installed(&self) -> bool {
        false
    }
}

impl Running for Echo {
    fn deliver(&self, message: Value) -> BoxFuture<'_, Result<(), Undelivered>> {
        let params = json!({ "message": message });
        self.0.value(&json!({ "jsonrpc": "2.0", "method": "mock/echo", "params": params }));
        let result = json!({ "echoed": message });
        self.0.value(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }));
        std::future::ready(Ok(())).boxed()
    }

    fn close_input(&self) {}

    fn kill(&self) {}
}

/// An agent that echoes requests and ignores the end of its input.
#[derive(Debug, Default)]
pub(crate) struct StubbornAgent {
    alive: watch::Sender<u64>,
}

#[derive(Debug)]
struct Stubborn {
    outlet: Outlet,
    alive: watch::Sender<u64>,
}

impl StubbornAgent {
    /// Returns a receiver of the number of running instances.
    pub(crate) fn alive(&self) -> watch::Receiver<u64> {
        self.alive.subscribe()
    }
}

impl Agent for StubbornAgent {
    fn launch(&self, outlet: Outlet) -> BoxFuture<'static, Result<Arc<dyn Running>, LaunchError>> {
        self.alive.send_modify(|alive| *alive += 1);
        let instance: Arc<dyn Running> = Arc::new(Stubborn { outlet, alive: self.alive.clone() });
        std::future::ready(Ok(instance)).boxed()
    }
}

impl Running for Stubborn {
    fn deliver(&self, message: Value) -> BoxFuture<'_, Result<(), Undelivered>> {
        let result = json!({ "echo": message["params"] });
        self.outlet.value(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }));
        std::future::ready(Ok(())).boxed()
    }

    fn close_input(&self) {}

    fn kill(&self) {}
}

impl Drop for Stubborn {
    fn drop(&mut self) {
        self.alive.send_modify(|alive| *alive -= 1);
    }
}
