use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::ExitStatus;
use super::instance::Player;
use super::step::Step;

/// How many updates of a flood are printed before other tasks may run.
const FLOOD_BATCH: usize = 64;

/// How a list of steps ended.
pub(super) enum Ending {
    Result(Value),
    Error(Value),
    /// The agent died; no response is sent.
    Dead,
}

/// Whether and how a client stops a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Halt {
    #[default]
    No,
    /// By `session/cancel`: the turn ends with the stop reason `cancelled`.
    Cancelled,
    /// By `$/cancel_request`: the request fails.
    Revoked,
}

/// One running request.
pub(super) struct Scene {
    pub(super) id: Value,
    pub(super) session_id: String,
    pub(super) halt: watch::Sender<Halt>,
    answered: AtomicBool,
}

impl Scene {
    pub(super) fn new(id: Value, session_id: String) -> Self {
        Self { id, session_id, halt: watch::Sender::default(), answered: AtomicBool::new(false) }
    }

    /// Returns how the turn ends if the client stops it.
    fn halted(&self) -> Option<Ending> {
        match *self.halt.borrow() {
            Halt::No => None,
            Halt::Cancelled => Some(stopped("cancelled")),
            Halt::Revoked => Some(Ending::Error(json!({ "code": -32800, "message": "Request cancelled" }))),
        }
    }

    /// Waits until the client stops the turn.
    async fn wait_for_halt(&self) {
        // The sender lives as long as the scene.
        let _ = self.halt.subscribe().wait_for(|halt| *halt != Halt::No).await;
    }
}

impl Player {
    /// Plays the steps of one request and responds to it, unless a step has already done so.
    pub(super) async fn perform(&self, scene: &Scene, steps: Vec<Step>) {
        let ending = self.play(scene, steps).await;
        self.close(scene, ending);
    }

    /// Plays the steps of a prompt whose response only confirms that the prompt was accepted. A `state_update` ends
    /// the turn and contains the result.
    pub(super) async fn perform_by_state(&self, scene: &Scene, steps: Vec<Step>) {
        let state = |state: &str| json!({ "sessionUpdate": "state_update", "state": state });
        self.update(&scene.session_id, state("running"));
        self.close(scene, Ending::Result(json!({ "messageId": scene.id.to_string() })));
        let mut idle = state("idle");
        match self.play(scene, steps).await {
            Ending::Result(Value::Object(members)) => {
                members.into_iter().for_each(|(name, value)| idle[name] = value);
            }
            Ending::Error(error) => {
                idle["stopReason"] = json!("error");
                idle["error"] = error;
            }
            Ending::Result(_) => {}
            Ending::Dead => return,
        }
        self.update(&scene.session_id, idle);
    }

    /// Responds to the request of a scene, once.
    fn close(&self, scene: &Scene, ending: Ending) {
        if !scene.answered.swap(true, Ordering::SeqCst) {
            self.answer(scene.id.clone(), ending);
        }
    }

    async fn play(&self, scene: &Scene, steps: Vec<Step>) -> Ending {
        let mut steps = VecDeque::from(steps);
        while let Some(step) = steps.pop_front() {
            if let Some(ending) = self.step(scene, step, &mut steps).await {
                return ending;
            }
            if let Some(ending) = scene.halted() {
                return ending;
            }
        }
        stopped("end_turn")
    }

    /// Performs one step. Steps that follow from it are inserted before the rest.
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
            Step::Stderr(line) => self.write_stderr(&line),
            Step::Raw(value) => self.outlet.value(&value),
            Step::Garbage(line) => self.outlet.line(line),
            Step::Flood { updates, bytes } => self.flood(scene, updates, bytes).await,
            Step::Wait(time) => {
                // A timeout is the normal end of a wait.
                let _ = tokio::time::timeout(time, scene.wait_for_halt()).await;
            }
            Step::WaitForCancel => scene.wait_for_halt().await,
            Step::Answer(reason) => self.close(scene, stopped(&reason)),
            Step::Hang => return std::future::pending().await,
            Step::Crash(crash) => {
                self.die(crash.status, &crash.stderr);
                return Some(Ending::Dead);
            }
            Step::Exit(code) => {
                self.die(ExitStatus::Code(code), &[]);
                return Some(Ending::Dead);
            }
            Step::Fail { code, message, data } => return Some(failed(code, &message, data)),
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
            if scene.halted().is_some() {
                return;
            }
        }
    }
}

fn stopped(reason: &str) -> Ending {
    Ending::Result(json!({ "stopReason": reason }))
}

fn failed(code: i64, message: &str, data: Option<Value>) -> Ending {
    let mut error = json!({ "code": code, "message": message });
    if let Some(data) = data {
        error["data"] = data;
    }
    Ending::Error(error)
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
