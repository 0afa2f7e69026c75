//! The sessions of the model server: calls, turns, agent requests.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{Caller, Reply, Server};
use crate::sim::{agent, plan::Model};

/// The most that a load takes in all, in milliseconds: clients wait 300 s by default.
const LONGEST_LOAD: u64 = 200_000;

/// A turn that runs.
#[derive(Debug)]
pub(in crate::sim) struct Running {
    pub(in crate::sim) tag: String,
    pub(in crate::sim) caller: Caller,
    pub(in crate::sim) cancelled: AtomicBool,
    /// The tags of agent requests that were answered.
    pub(in crate::sim) answers: Mutex<Vec<String>>,
    /// Woken by a cancel and by an answer.
    pub(in crate::sim) wake: Notify,
}

/// What an agent has stored of a session.
#[derive(Debug, Default)]
pub(super) struct Saved {
    directory: String,
    /// The updates that a load replays.
    history: Vec<Value>,
}

/// A session that an agent loads step by step.
#[derive(Debug)]
pub(in crate::sim) struct Replay {
    pub(in crate::sim) session: String,
    load: usize,
    /// The stored session.
    stored: String,
    /// How often it was acquired, if the program that has it loaded owns it.
    owned: Option<u32>,
}

/// An update of a session's history. The text of the agent names the load.
fn replayed(mut update: Value, load: usize, session: &str) -> String {
    if update["sessionUpdate"] == "agent_message_chunk" {
        let text = update["content"]["text"].as_str().unwrap_or_default();
        update["content"]["text"] = format!("{text}h{load}").into();
    }
    let params = json!({ "sessionId": session, "update": update });
    json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }).to_string()
}

#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) running: Option<Arc<Running>>,
    pub(super) queue: VecDeque<(String, Caller)>,
}

impl Server {
    pub(super) fn call(self: &Arc<Self>, method: &str, params: &Value, mut caller: Caller) {
        let session = caller.session.clone().unwrap_or_default();
        let known = self.state().sessions.contains_key(&session);
        match method {
            "initialize" => {
                let mut state = self.state();
                let known = caller.connection.as_ref().is_some_and(|id| state.connections.contains(id));
                if matches!(self.world.plan.model, Model::Early | Model::Official) && !known {
                    state.next_connection += 1;
                    let id = format!("c{}", state.next_connection);
                    state.connections.insert(id.clone());
                    caller.connection = Some(id);
                }
                drop(state);
                let memory = self.world.plan.memory.unwrap_or_default();
                let sessions = if memory.resumes { json!({ "resume": {} }) } else { json!({}) };
                let agent = json!({ "loadSession": memory.loads, "sessionCapabilities": sessions });
                self.respond(
                    &caller,
                    &Ok(json!({ "protocolVersion": 1, "agentCapabilities": agent, "authMethods": [] })),
                );
            }
            "session/new" => {
                let mut state = self.state();
                let id = format!("s{}", state.next_session);
                state.next_session += 1;
                state.sessions.insert(id.clone(), Session::default());
                let directory = params["cwd"].as_str().unwrap_or_default().to_owned();
                state.disk.insert(id.clone(), Saved { directory: directory.clone(), history: Vec::new() });
                let mut ledger = self.world.ledger();
                let generation = ledger.generation;
                ledger.directories.insert((generation, id.clone()), directory);
                drop((state, ledger));
                self.world.note(|| format!("server: {id} is a session of {}", params["cwd"]));
                self.respond(&caller, &Ok(json!({ "sessionId": id })));
                agent::greet(self.clone(), id, caller.incarnation);
            }
            "session/load" | "session/resume" if self.world.plan.memory.is_some() => {
                self.reopen(session, method == "session/load", caller);
            }
            _ if caller.session.is_some() && !known => {
                self.respond(&caller, &Err((-32002, "session not found")));
            }
            "session/prompt" => {
                let blocks = params["prompt"].as_array().map(Vec::as_slice).unwrap_or_default();
                let text = |block: &Value| block["text"].as_str().unwrap_or_default().to_owned();
                let tag = blocks.last().map(text).unwrap_or_default();
                self.check_transcript(&tag, blocks);
                self.save(&session, "user_message_chunk", &tag);
                self.prompt(session, tag, caller);
            }
            "session/set_mode" => {
                let tag = params["modeId"].as_str().unwrap_or_default().to_owned();
                let mut random = self.world.random(&format!("swallow {tag}"));
                caller.swallowed = !self.world.is_over() && random.per_mille(self.world.plan.faults.swallow);
                if caller.swallowed {
                    self.world.disturb();
                }
                self.world.ledger().calls.entry(tag.clone()).or_default().executed += 1;
                agent::set_mode(self.clone(), caller, tag);
            }
            "session/load" => {
                let call = params["cwd"].as_str().and_then(|cwd| cwd.strip_prefix('/')?.parse().ok());
                agent::load(self.clone(), caller, call);
            }
            _ => self.respond(&caller, &Ok(json!({}))),
        }
    }

    /// Has the agent continue a session that it has stored.
    fn reopen(self: &Arc<Self>, session: String, loads: bool, caller: Caller) {
        let memory = self.world.plan.memory.unwrap_or_default();
        if !(if loads { memory.loads } else { memory.resumes }) {
            return self.respond(&caller, &Err((-32601, "method not found")));
        }
        let mut state = self.state();
        let Some(saved) = state.disk.get(&session) else {
            drop(state);
            return self.respond(&caller, &Err((-32002, "session not found")));
        };
        let history = if loads { saved.history.clone() } else { Vec::new() };
        let directory = saved.directory.clone();
        let mut ledger = self.world.ledger();
        let (generation, load) = (ledger.generation, ledger.loads.len());
        let stored = directory.trim_start_matches('/').to_owned();
        let owner =
            ledger.owner(&stored).filter(|owner| owner.program.is_some() && owner.program == caller.program);
        let owned = owner.map(|owner| owner.acquired);
        ledger.loads.push(owned.is_some());
        ledger.directories.insert((generation, session.clone()), directory);
        state.sessions.entry(session.clone()).or_default();
        drop((state, ledger));
        // A long history takes longer in all, but a client gives a load up after its own limit.
        let longest = LONGEST_LOAD / history.len().max(1) as u64;
        let replayed = history.into_iter().map(|update| replayed(update, load, &session)).collect();
        let step = self.world.plan.asking.map_or(0, |asking| asking.load.min(longest));
        if step > 0 {
            let replay = Replay { session, load, stored, owned };
            return agent::replay(self.clone(), caller, replay, replayed, step);
        }
        replayed.into_iter().for_each(|message| self.replay(&session, message));
        self.respond(&caller, &Ok(json!({})));
    }

    /// Replays one update of a session's history.
    pub(in crate::sim) fn replay(&self, session: &str, message: String) {
        self.emit(None, Some(session.to_owned()), Some(0), "history", |_| message);
    }

    /// Only a program that owns the session all the time can distinguish replayed events from new ones.
    pub(in crate::sim) fn check_owner(&self, replay: &Replay) {
        let mut ledger = self.world.ledger();
        let acquired = ledger.owner(&replay.stored).map(|owner| owner.acquired);
        ledger.loads[replay.load] &= acquired == replay.owned;
    }

    /// The history that a prompt begins with has each prompt once, and not the one that it precedes.
    fn check_transcript(&self, tag: &str, blocks: &[Value]) {
        let [before @ .., _] = blocks else { return };
        let text: String = before.iter().filter_map(|block| block["text"].as_str()).collect();
        let ledger = self.world.ledger();
        let twice = ledger.turns.keys().find(|known| text.matches(known.trim_end_matches('L')).count() > 1);
        let twice = twice.cloned();
        drop(ledger);
        if let Some(twice) = twice {
            self.world.fail(format!("the history before {tag} has {twice} twice: {text}"));
        }
        if text.contains(tag.trim_end_matches('L')) {
            self.world.fail(format!("the history before {tag} has {tag} itself: {text}"));
        }
    }

    /// The agent stores what was said.
    pub(in crate::sim) fn save(&self, session: &str, kind: &str, text: &str) {
        if let Some(saved) = self.state().disk.get_mut(session) {
            let content = json!({ "type": "text", "text": text });
            saved.history.push(json!({ "sessionUpdate": kind, "content": content }));
        }
    }

    pub(super) fn prompt(self: &Arc<Self>, session: String, tag: String, caller: Caller) {
        {
            let mut ledger = self.world.ledger();
            let taken = ledger.emitted.len();
            let record = ledger.turns.entry(tag.clone()).or_default();
            record.executed += 1;
            record.taken = taken;
        }
        self.world.note(|| format!("server: prompt {tag}"));
        let mut state = self.state();
        let Some(entry) = state.sessions.get_mut(&session) else { return };
        entry.queue.push_back((tag, caller));
        drop(state);
        self.start_next(&session);
    }

    /// Starts the next turn of a session, if none runs.
    pub(in crate::sim) fn start_next(self: &Arc<Self>, session: &str) {
        let mut state = self.state();
        let Some(entry) = state.sessions.get_mut(session).filter(|entry| entry.running.is_none()) else {
            return;
        };
        let Some((tag, caller)) = entry.queue.pop_front() else { return };
        let running = Arc::new(Running {
            tag,
            caller: caller.clone(),
            cancelled: AtomicBool::new(false),
            answers: Mutex::default(),
            wake: Notify::new(),
        });
        entry.running = Some(running.clone());
        drop(state);
        agent::run_turn(self.clone(), session.to_owned(), running, caller);
    }

    pub(in crate::sim) fn end_turn(self: &Arc<Self>, session: &str) {
        if let Some(entry) = self.state().sessions.get_mut(session) {
            entry.running = None;
        }
        self.start_next(session);
    }

    /// A cancel hits the turn that runs; without one it does nothing.
    pub(super) fn cancel(&self, session: &str) {
        self.world.ledger().cancel_requests(session);
        let running = self.state().sessions.get(session).and_then(|entry| entry.running.clone());
        let Some(running) = running else {
            return self.world.note(|| format!("server: cancel of {session} without a turn"));
        };
        self.world.note(|| format!("server: cancel of {}", running.tag));
        let allowed = {
            let mut ledger = self.world.ledger();
            let turn = ledger.turns.entry(running.tag.clone()).or_default();
            turn.cancelled || turn.abandoned || self.world.plan.memory.is_some()
        };
        if !allowed {
            self.world.fail(format!("a cancel of another turn reached {}", running.tag));
        }
        running.cancelled.store(true, std::sync::atomic::Ordering::Relaxed);
        running.wake.notify_one();
    }

    /// Sends an update and gives its index.
    pub(in crate::sim) fn update(&self, session: &str, history: Option<u64>) -> usize {
        let mut random = self.world.random("update");
        // Some are too large to be fetched again for a proof.
        let padding = if random.per_mille(20) { "x".repeat(random.index(6000)) } else { String::new() };
        let stream = self.stream_of(Some(session));
        let owner = Some(session.to_owned());
        self.emit(stream, owner, history, &format!("update of {session}"), |index| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"u{index} {padding}"}}}}}}}}"#
            )
        })
    }

    /// Reports the mode of a session, which is not part of any turn.
    pub(in crate::sim) fn report(&self, session: &str) {
        if self.world.plan.memory.is_none() {
            // Without stored sessions each update is checked by its text.
            self.update(session, None);
            return;
        }
        let stream = self.stream_of(Some(session));
        self.emit(stream, Some(session.to_owned()), None, &format!("mode of {session}"), |index| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}","update":{{"sessionUpdate":"current_mode_update","currentModeId":"m{index}"}}}}}}"#
            )
        });
    }

    /// Sends the response of a request where the dialect wants it.
    pub(in crate::sim) fn respond(&self, caller: &Caller, outcome: &Result<Value, (i32, &str)>) {
        if caller.swallowed || !self.is_alive(caller.incarnation) {
            return;
        }
        let outcome = match outcome {
            Ok(result) => format!(r#""result":{result}"#),
            Err((code, text)) => format!(r#""error":{{"code":{code},"message":"{text}"}}"#),
        };
        let text = format!(r#"{{"jsonrpc":"2.0","id":{},{outcome}}}"#, caller.id);
        let slot = self.state().slots.remove(&caller.slot);
        let official = self.world.plan.model == Model::Official;
        if self.world.plan.echo || (official && slot.is_none()) {
            let stream = self.stream_of(caller.session.as_deref());
            self.emit(stream, None, None, "response", |_| text.clone());
        }
        if let Some(slot) = slot {
            let connection = caller.connection.clone();
            let _ = slot.send(Reply { status: 200, connection, body: Some(text) });
        }
    }
}
