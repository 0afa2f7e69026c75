use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::play::{Ending, Halt, Scene};
use super::script::{Script, Turn};
use super::{Exit, ExitStatus, Outlet, Running, Undelivered};
use crate::process::StderrCapture;
use crate::server::Panicked;

/// How many of the last stderr lines the server quotes.
const QUOTED_LINES: usize = 16;

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

    fn stderr_lines(&self) -> u64 {
        self.0.state().stderr.total_lines()
    }

    fn close_input(&self) {
        self.0.die(ExitStatus::Code(0), &[]);
    }

    fn kill(&self) {
        self.0.die(ExitStatus::Signal(9), &[]);
    }
}

/// Plays the steps of a script.
pub(super) struct Player {
    script: Script,
    pub(super) outlet: Outlet,
    /// Guards sessions and open requests; held for a lookup.
    state: Mutex<State>,
    /// The running turns. The tasks hold the player, so dropping the instance aborts them.
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct State {
    dead: bool,
    /// The number of prompts per session.
    sessions: HashMap<String, usize>,
    /// The running requests.
    scenes: Vec<Weak<Scene>>,
    /// Pending agent requests.
    waiting: HashMap<String, oneshot::Sender<Value>>,
    asked: u64,
    stderr: StderrCapture,
}

impl State {
    /// Writes one line to standard error.
    fn write_stderr(&mut self, line: &str) {
        self.stderr.push(line.as_bytes());
        self.stderr.push(b"\n");
    }
}

impl Player {
    /// Handles one message from the server.
    fn take(self: &Arc<Self>, message: Value) -> Result<(), Undelivered> {
        if self.state().dead {
            return Err(Undelivered);
        }
        let method = message.get("method").and_then(Value::as_str).map(str::to_owned);
        let params = message.get("params").cloned().unwrap_or(Value::Null);
        match (method, message.get("id")) {
            (Some(method), Some(id)) => self.request(id.clone(), &method, params),
            (Some(method), None) if method == "session/cancel" => {
                let session = session_id(&params).unwrap_or_default();
                self.halt(Halt::Cancelled, |scene| scene.session_id == session);
            }
            (Some(method), None) if method == "$/cancel_request" => {
                let request = params.get("requestId").cloned().unwrap_or(Value::Null);
                self.halt(Halt::Revoked, |scene| scene.id == request);
            }
            (Some(_), None) => {}
            (None, Some(Value::String(id))) => {
                let waiter = self.state().waiting.remove(id);
                if let Some(waiter) = waiter {
                    // An aborted turn no longer receives.
                    let _ = waiter.send(message);
                }
            }
            (None, _) => {}
        }
        Ok(())
    }

    /// Stops the matching turns.
    fn halt(&self, halt: Halt, fits: impl Fn(&Scene) -> bool) {
        let mut state = self.state();
        state.scenes.retain(|scene| scene.strong_count() > 0);
        for scene in state.scenes.iter().filter_map(Weak::upgrade).filter(|scene| fits(scene)) {
            scene.halt.send_replace(halt);
        }
    }

    fn request(self: &Arc<Self>, id: Value, method: &str, params: Value) {
        if let Some(steps) = self.script.hook.as_ref().and_then(|hook| hook(method, &params)) {
            let scene = self.scene(id, session_id(&params).unwrap_or_default());
            let player = Arc::clone(self);
            self.spawn(async move { player.perform(&scene, steps).await });
            return;
        }
        match method {
            "session/prompt" => self.prompt(id, params),
            "session/load" | "session/resume" => {
                let session = session_id(&params).unwrap_or_default().to_owned();
                if method == "session/load" || self.script.replays_on_resume {
                    for update in (self.script.history)(&session) {
                        self.update(&session, update);
                    }
                }
                self.open(id, session);
            }
            "session/new" => self.open(id, self.script.next_session_id(&self.outlet)),
            "session/fork" => {
                // The source of the fork becomes known too.
                if let Some(source) = session_id(&params) {
                    self.state().sessions.entry(source.to_owned()).or_default();
                }
                self.open(id, self.script.next_session_id(&self.outlet));
            }
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

    /// Returns the responses of methods that need no steps.
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

    /// Registers a session and responds with it.
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
        let number = self.state().sessions.get_mut(&session).map(|turns| {
            *turns += 1;
            *turns
        });
        let Some(number) = number else {
            self.answer(id, unknown_session());
            return;
        };
        let scene = self.scene(id, &session);
        let turn = Turn { session_id: session, text: prompt_text(&params), number, params };
        let player = Arc::clone(self);
        self.spawn(async move {
            let steps = player.faulty_steps().unwrap_or_else(|| (player.script.behaviour)(&turn));
            match player.script.ends_by_state {
                true => player.perform_by_state(&scene, steps).await,
                false => player.perform(&scene, steps).await,
            }
        });
    }

    /// Creates a request that can be stopped.
    fn scene(&self, id: Value, session: &str) -> Arc<Scene> {
        let scene = Arc::new(Scene::new(id, session.to_owned()));
        let mut state = self.state();
        state.scenes.retain(|scene| scene.strong_count() > 0);
        state.scenes.push(Arc::downgrade(&scene));
        scene
    }

    pub(super) fn update(&self, session: &str, update: Value) {
        self.notify("session/update", json!({ "sessionId": session, "update": update }));
    }

    pub(super) fn notify(&self, method: &str, params: Value) {
        self.outlet.value(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    pub(super) fn answer(&self, id: Value, ending: Ending) {
        let (member, value) = match ending {
            Ending::Result(result) => ("result", result),
            Ending::Error(error) => ("error", error),
            Ending::Dead => return,
        };
        if !self.state().dead {
            self.outlet.value(&json!({ "jsonrpc": "2.0", "id": id, member: value }));
        }
    }

    /// Registers an agent request. Returns its id and the receiver of the response.
    pub(super) fn register(&self) -> (String, oneshot::Receiver<Value>) {
        let (waiter, answer) = oneshot::channel();
        let mut state = self.state();
        state.asked += 1;
        let id = format!("ask-{}", state.asked);
        state.waiting.insert(id.clone(), waiter);
        (id, answer)
    }

    pub(super) fn die(&self, status: ExitStatus, stderr: &[String]) {
        let summary = {
            let mut state = self.state();
            if std::mem::replace(&mut state.dead, true) {
                return;
            }
            state.waiting.clear();
            for line in stderr {
                state.write_stderr(line);
            }
            state.stderr.summary()
        };
        self.outlet.exited(Exit { status, stderr: summary });
        self.stop();
    }

    /// Writes one line to standard error.
    pub(super) fn write_stderr(&self, line: &str) {
        self.state().write_stderr(line);
    }

    fn stop(&self) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }

    /// Starts a task. A panic in it is recorded and ends the agent, like the panic of a process.
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

fn unknown_session() -> Ending {
    Ending::Error(json!({ "code": -32002, "message": "session not found" }))
}
