use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::script::{Script, Turn};
use super::step::{Permission, PermissionOption, Step, ToolCall};
use super::{Exit, ExitStatus, Outlet, Running, Undelivered};
use crate::fault::{Fault, Moment};
use crate::process::StderrCapture;
use crate::server::Panicked;

/// How many of the last lines of standard error the server quotes.
const QUOTED_LINES: usize = 16;

/// How many updates of a flood are printed before other tasks get a turn.
const FLOOD_BATCH: usize = 64;

/// The exit code of a Rust process that panicked.
const PANICKED: i32 = 101;

/// A launched [`Script`]. Dropping it ends its tasks.
pub(super) struct Instance(Arc<Player>);

impl Instance {
    pub(super) fn new(script: Script, outlet: Outlet) -> Self {
        Self(Arc::new(Player { script, outlet, state: Mutex::default(), tasks: Mutex::default() }))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Instance").finish_non_exhaustive()
    }
}

impl Running for Instance {
    fn deliver(&self, message: Value) -> BoxFuture<'_, Result<(), Undelivered>> {
        std::future::ready(self.0.take(message)).boxed()
    }

    fn stderr_tail(&self) -> Vec<String> {
        self.0.state().stderr.last_lines(QUOTED_LINES)
    }

    fn close_input(&self) {
        self.0.die(ExitStatus::Code(0), &[]);
    }

    fn kill(&self) {
        self.0.die(ExitStatus::Signal(9), &[]);
    }
}

/// What plays the steps of a script.
pub(super) struct Player {
    script: Script,
    pub(super) outlet: Outlet,
    /// Guards sessions and open requests; held for a lookup.
    state: Mutex<State>,
    /// The turns under way. The tasks hold the player, and the instance ends them when it goes.
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct State {
    dead: bool,
    sessions: HashMap<String, Session>,
    /// Requests to the client that wait for an answer.
    waiting: HashMap<String, oneshot::Sender<Value>>,
    asked: u64,
    stderr: StderrCapture,
}

impl State {
    /// Writes one line to standard error.
    fn complain(&mut self, line: &str) {
        self.stderr.push(line.as_bytes());
        self.stderr.push(b"\n");
    }
}

#[derive(Default)]
struct Session {
    turns: usize,
    /// Set by a cancel; a new one for each turn.
    cancel: watch::Sender<bool>,
}

/// How a list of steps ended.
enum Ending {
    Result(Value),
    Error(Value),
    /// The agent died; there is nobody to answer.
    Dead,
}

/// One request being played.
struct Scene {
    session_id: String,
    cancel: watch::Receiver<bool>,
}

impl Player {
    /// Takes one message from the server.
    fn take(self: &Arc<Self>, message: Value) -> Result<(), Undelivered> {
        if self.state().dead {
            return Err(Undelivered);
        }
        let method = message.get("method").and_then(Value::as_str).map(str::to_owned);
        let params = message.get("params").cloned().unwrap_or(Value::Null);
        match (method, message.get("id")) {
            (Some(method), Some(id)) => self.request(id.clone(), &method, params),
            (Some(method), None) if method == "session/cancel" => self.cancel(&params),
            (Some(_), None) => {}
            (None, Some(Value::String(id))) => {
                let waiter = self.state().waiting.remove(id);
                if let Some(waiter) = waiter {
                    // A turn that was cut off no longer listens.
                    let _ = waiter.send(message);
                }
            }
            (None, _) => {}
        }
        Ok(())
    }

    fn cancel(&self, params: &Value) {
        let state = self.state();
        if let Some(session) = session_id(params).and_then(|id| state.sessions.get(id)) {
            session.cancel.send_replace(true);
        }
    }

    fn request(self: &Arc<Self>, id: Value, method: &str, params: Value) {
        if let Some(steps) = self.script.hook.as_ref().and_then(|hook| hook(method, &params)) {
            let cancel = watch::Sender::new(false).subscribe();
            let scene = Scene { session_id: session_id(&params).unwrap_or_default().to_owned(), cancel };
            self.spawn_turn(id, scene, steps);
            return;
        }
        match method {
            "session/prompt" => self.prompt(id, params),
            "session/load" => {
                let session = session_id(&params).unwrap_or_default().to_owned();
                for update in (self.script.history)(&session) {
                    self.update(&session, update);
                }
                self.open(id, session);
            }
            "session/new" => self.open(id, self.script.next_session_id()),
            "session/fork" => {
                // The conversation that is forked from is known again, too.
                if let Some(source) = session_id(&params) {
                    self.state().sessions.entry(source.to_owned()).or_default();
                }
                self.open(id, self.script.next_session_id());
            }
            "session/resume" => self.open(id, session_id(&params).unwrap_or_default().to_owned()),
            "session/close" | "session/delete" => {
                let known = session_id(&params).and_then(|id| self.state().sessions.remove(id)).is_some();
                let ending = if known { Ending::Result(json!({})) } else { unknown_session() };
                self.answer(id, ending);
            }
            _ => {
                let ending = self.usual(method, &params);
                self.answer(id, ending);
            }
        }
    }

    /// The answers that need neither a session nor time.
    fn usual(&self, method: &str, params: &Value) -> Ending {
        match method {
            "initialize" => {
                let mut result = self.script.initialize.clone();
                if let (Some(own), Some(wanted)) =
                    (result.get_mut("protocolVersion"), params.get("protocolVersion"))
                {
                    *own = wanted.clone();
                }
                Ending::Result(result)
            }
            "authenticate" | "logout" | "session/set_mode" | "session/set_model" => Ending::Result(json!({})),
            "session/set_config_option" => Ending::Result(json!({
                "configOptions": self.script.session.get("configOptions").cloned().unwrap_or(json!([])),
            })),
            _ => Ending::Error(json!({
                "code": -32601,
                "message": "Method not found",
                "data": { "method": method },
            })),
        }
    }

    /// Answers with a session that is known from now on.
    fn open(&self, id: Value, session: String) {
        self.state().sessions.entry(session.clone()).or_default();
        let mut result = Map::from_iter([("sessionId".to_owned(), Value::String(session))]);
        if let Value::Object(members) = &self.script.session {
            result.extend(members.clone());
        }
        self.answer(id, Ending::Result(Value::Object(result)));
    }

    fn prompt(self: &Arc<Self>, id: Value, params: Value) {
        let session = session_id(&params).unwrap_or_default().to_owned();
        let started = {
            let mut state = self.state();
            state.sessions.get_mut(&session).map(|session| {
                session.turns += 1;
                session.cancel = watch::Sender::new(false);
                (session.turns, session.cancel.subscribe())
            })
        };
        let Some((number, cancel)) = started else {
            self.answer(id, unknown_session());
            return;
        };
        let turn = Turn { session_id: session.clone(), text: prompt_text(&params), number, params };
        let player = Arc::clone(self);
        let scene = Scene { session_id: session, cancel };
        self.spawn(async move {
            let steps = player.faulty_steps().unwrap_or_else(|| (player.script.behaviour)(&turn));
            let ending = player.play(&scene, steps).await;
            player.answer(id, ending);
        });
    }

    fn spawn_turn(self: &Arc<Self>, id: Value, scene: Scene, steps: Vec<Step>) {
        let player = Arc::clone(self);
        self.spawn(async move {
            let ending = player.play(&scene, steps).await;
            player.answer(id, ending);
        });
    }

    /// What a fault makes the agent do instead of its script.
    fn faulty_steps(&self) -> Option<Vec<Step>> {
        let moment = Moment { verb: "POST", path: "", method: Some("session/prompt") };
        let fault = self.outlet.surroundings().faults.strike(&moment, |fault| {
            matches!(fault, Fault::PermissionWaitsForCancel | Fault::UnknownVariants).then(|| fault.clone())
        })?;
        Some(if fault == Fault::UnknownVariants { unknown_variants() } else { permission_until_cancelled() })
    }

    async fn play(&self, scene: &Scene, steps: Vec<Step>) -> Ending {
        let mut steps = VecDeque::from(steps);
        while let Some(step) = steps.pop_front() {
            if let Some(ending) = self.step(scene, step, &mut steps).await {
                return ending;
            }
            if *scene.cancel.borrow() {
                return stopped("cancelled");
            }
        }
        stopped("end_turn")
    }

    /// Does one step; steps that follow from it are put in front of the rest.
    async fn step(&self, scene: &Scene, step: Step, rest: &mut VecDeque<Step>) -> Option<Ending> {
        let session = scene.session_id.as_str();
        match step {
            Step::Say(text) => self.update(session, chunk("agent_message_chunk", &text)),
            Step::Think(text) => self.update(session, chunk("agent_thought_chunk", &text)),
            Step::ToolCall(call) => {
                let mut update = call.to_value();
                update["sessionUpdate"] = json!("tool_call");
                self.update(session, update);
            }
            Step::ToolUpdate { id, status, text } => self.update(session, tool_update(&id, &status, text)),
            Step::Update(update) => self.update(session, update),
            Step::Notify { method, params } => self.notify(&method, params),
            Step::Stderr(line) => self.state().complain(&line),
            Step::Raw(value) => self.outlet.value(&value),
            Step::Garbage(line) => self.outlet.line(line),
            Step::Flood { updates, bytes } => self.flood(scene, updates, bytes).await,
            Step::Wait(time) => {
                let mut cancel = scene.cancel.clone();
                // Running out of time is the usual end of a wait.
                let _ = tokio::time::timeout(time, cancel.wait_for(|cancelled| *cancelled)).await;
            }
            Step::WaitForCancel => {
                let mut cancel = scene.cancel.clone();
                if cancel.wait_for(|cancelled| *cancelled).await.is_err() {
                    return std::future::pending().await;
                }
            }
            Step::Crash(crash) => {
                self.die(crash.status, &crash.stderr);
                return Some(Ending::Dead);
            }
            Step::Exit(code) => {
                self.die(ExitStatus::Code(code), &[]);
                return Some(Ending::Dead);
            }
            Step::Hang => return std::future::pending().await,
            Step::Fail { code, message, data } => {
                let mut error = json!({ "code": code, "message": message });
                if let Some(data) = data {
                    error["data"] = data;
                }
                return Some(Ending::Error(error));
            }
            Step::Stop(reason) => return Some(stopped(&reason)),
            Step::Finish(result) => return Some(Ending::Result(result)),
            asking => {
                for follow_up in self.ask_step(session, asking).await.into_iter().rev() {
                    rest.push_front(follow_up);
                }
            }
        }
        None
    }

    async fn flood(&self, scene: &Scene, updates: usize, bytes: usize) {
        let text = "x".repeat(bytes);
        for number in 0..updates {
            self.update(&scene.session_id, chunk("agent_message_chunk", &text));
            if number % FLOOD_BATCH == FLOOD_BATCH - 1 {
                tokio::task::yield_now().await;
            }
            if *scene.cancel.borrow() {
                return;
            }
        }
    }

    pub(super) fn update(&self, session: &str, update: Value) {
        self.notify("session/update", json!({ "sessionId": session, "update": update }));
    }

    fn notify(&self, method: &str, params: Value) {
        self.outlet.value(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn answer(&self, id: Value, ending: Ending) {
        let (member, value) = match ending {
            Ending::Result(result) => ("result", result),
            Ending::Error(error) => ("error", error),
            Ending::Dead => return,
        };
        if !self.state().dead {
            self.outlet.value(&json!({ "jsonrpc": "2.0", "id": id, member: value }));
        }
    }

    /// Registers a request to the client: its id and where the answer comes.
    pub(super) fn register(&self) -> (String, oneshot::Receiver<Value>) {
        let (waiter, answer) = oneshot::channel();
        let mut state = self.state();
        state.asked += 1;
        let id = format!("ask-{}", state.asked);
        state.waiting.insert(id.clone(), waiter);
        (id, answer)
    }

    fn die(&self, status: ExitStatus, stderr: &[String]) {
        let summary = {
            let mut state = self.state();
            if std::mem::replace(&mut state.dead, true) {
                return;
            }
            state.waiting.clear();
            for line in stderr {
                state.complain(line);
            }
            state.stderr.summary()
        };
        self.outlet.exited(Exit { status, stderr: summary });
        self.stop();
    }

    fn stop(&self) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }

    /// Starts a task. A panic in it is recorded and ends the agent as it would end a process.
    fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        let player = Arc::clone(self);
        let guarded = async move {
            let panics = player.outlet.surroundings().panics.clone();
            if let Err(Panicked(message)) = panics.guard(future).await {
                player.die(ExitStatus::Code(PANICKED), &[message]);
            }
        };
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(guarded);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn session_id(params: &Value) -> Option<&str> {
    params.get("sessionId")?.as_str()
}

fn prompt_text(params: &Value) -> String {
    let blocks = params.get("prompt").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> =
        blocks.iter().filter_map(|block| block.get("text").and_then(Value::as_str)).collect();
    texts.join("\n")
}

fn stopped(reason: &str) -> Ending {
    Ending::Result(json!({ "stopReason": reason }))
}

fn unknown_session() -> Ending {
    Ending::Error(json!({ "code": -32002, "message": "session not found" }))
}

fn chunk(kind: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } })
}

fn tool_update(id: &str, status: &str, text: Option<String>) -> Value {
    let mut update = json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "status": status });
    if let Some(text) = text {
        update["content"] = json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
    }
    update
}

fn permission_until_cancelled() -> Vec<Step> {
    let call = ToolCall::new("tool-call-until-cancelled", "Wait for the user");
    vec![
        Step::ToolCall(call.clone()),
        Step::AskPermission(Permission::new(call).then(|_| Vec::new())),
        Step::WaitForCancel,
    ]
}

fn unknown_variants() -> Vec<Step> {
    let call =
        ToolCall { kind: "teleport".to_owned(), ..ToolCall::new("tool-call-unknown", "From the future") };
    let option =
        PermissionOption { id: "today".into(), name: "Allow today".into(), kind: "allow_for_today".into() };
    vec![
        Step::Update(json!({ "sessionUpdate": "future_update", "payload": { "answer": 42 } })),
        Step::Update(json!({
            "sessionUpdate": "agent_message_chunk",
            "content": { "type": "hologram", "data": "…" },
        })),
        Step::ToolCall(call.clone()),
        Step::Notify { method: "_vendor/unknown".into(), params: json!({ "anything": true }) },
        Step::AskPermission(Permission::new(call).options(vec![option])),
        Step::Stop("future_reason".into()),
    ]
}
