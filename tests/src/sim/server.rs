//! A model of a server: streams with replay buffers, sessions, restarts.

mod requests;
mod sessions;
mod streams;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

use serde_json::Value;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

pub(super) use self::{
    requests::Wanted,
    sessions::{Replay, Running},
    streams::{Cursor, Next},
};
use self::{
    sessions::{Saved, Session},
    streams::Channel,
};
use super::{
    ledger::{GivenUp, StreamKey},
    plan::Model,
    world::World,
};

/// What a POST is answered with.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) connection: Option<String>,
    pub(super) body: Option<String>,
}

/// When a POST is answered.
#[derive(Debug)]
pub(super) enum Handled {
    Now(Reply),
    /// With its response; never, if the server restarts before.
    Later(oneshot::Receiver<Reply>),
}

/// Who made a request, and how it is answered.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    id: Value,
    slot: u64,
    pub(super) session: Option<String>,
    pub(super) incarnation: u32,
    /// Whether the response never comes.
    swallowed: bool,
    /// The connection id that was sent along, or is given.
    connection: Option<String>,
    /// The program that made it, where there are several.
    program: Option<String>,
}

/// What the client sent along with a message.
#[derive(Debug, Default)]
pub(super) struct Headers {
    pub(super) connection: Option<String>,
    pub(super) bootstrap: bool,
    pub(super) program: Option<String>,
    /// Whether the server accepts the request with 202 and answers on the stream.
    pub(super) accept: bool,
}

#[derive(Debug, Default)]
struct State {
    up: bool,
    incarnation: u32,
    /// The connection ids in force, and how many were given.
    connections: BTreeSet<String>,
    next_connection: u32,
    bootstrapped: bool,
    channels: BTreeMap<StreamKey, Channel>,
    sessions: BTreeMap<String, Session>,
    /// What the agent has stored of its sessions.
    disk: BTreeMap<String, Saved>,
    next_session: u32,
    next_request: u32,
    next_slot: u64,
    next_reader: u64,
    slots: BTreeMap<u64, oneshot::Sender<Reply>>,
    /// The callers of turns that a restart with memory has ended: they are answered afterwards.
    orphans: Vec<Caller>,
    /// The agent requests that are open, by id: session and tag.
    open: BTreeMap<u32, (String, String)>,
}

impl State {
    fn knows(&self, headers: &Headers) -> bool {
        headers.connection.as_ref().is_some_and(|id| self.connections.contains(id))
    }
}

/// The model server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) world: Arc<World>,
    state: Mutex<State>,
    /// Wakes readers, in the order in which they began to wait.
    changed: Arc<Notify>,
}

impl Server {
    pub(super) fn new(world: Arc<World>) -> Arc<Self> {
        let state = State { up: true, ..State::default() };
        Arc::new(Self { world, state: Mutex::new(state), changed: Arc::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn changes(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    pub(super) fn is_up(&self) -> bool {
        self.state().up
    }

    pub(super) fn is_alive(&self, incarnation: u32) -> bool {
        let state = self.state();
        state.up && state.incarnation == incarnation
    }

    /// What another client left in the buffer, with unanswered agent requests.
    pub(super) fn fill_backlog(&self) {
        for n in 0..self.world.plan.backlog {
            if n % 4 == 1 {
                self.ask("x0", Wanted::Permission(&format!("old{n}")), None);
            } else {
                self.update("x0", None);
            }
        }
    }

    /// The events of another client.
    pub(super) fn burst(&self, count: u64) {
        self.world.note(|| format!("server: {count} events of another client"));
        for _ in 0..count {
            self.update("x0", None);
        }
    }

    /// Stops the server. Every connection breaks.
    pub(super) fn stop(&self, memory: bool) {
        let mut state = self.state();
        let mut ledger = self.world.ledger();
        state.up = false;
        state.incarnation += 1;
        state.slots.clear();
        for (_, tag) in std::mem::take(&mut state.open).into_values() {
            ledger.requests.entry(tag).or_default().given_up = Some(GivenUp::Restarted);
        }
        let mut ended = Vec::new();
        for session in state.sessions.values_mut() {
            ended.extend(session.running.take().map(|running| (running.tag.clone(), running.caller.clone())));
            ended.extend(session.queue.drain(..));
        }
        for (tag, caller) in ended {
            let known = ledger.turns.get(&tag).is_some_and(|turn| ledger.outlived(turn));
            if memory {
                state.orphans.push(caller);
            } else if known {
                ledger.turns.entry(tag).or_default().killed = Some(Instant::now());
            }
        }
        for channel in state.channels.values_mut() {
            channel.reader = None;
        }
        if !memory {
            if !self.world.plan.is_numbered() {
                for stream in state.channels.keys() {
                    ledger.excuse(stream);
                }
            }
            ledger.generation += 1;
            state.channels.clear();
            state.sessions.clear();
            if !self.world.plan.memory.is_some_and(|memory| memory.remembers) {
                state.disk.clear();
                if self.world.plan.memory.is_some() {
                    // The ids are given out again.
                    state.next_session = 0;
                }
            }
            state.orphans.clear();
            state.connections.clear();
            state.bootstrapped = false;
        }
        drop((state, ledger));
        self.world.note(|| format!("server: stopped {} its memory", if memory { "with" } else { "without" }));
        self.world.disturb();
        self.changed.notify_waiters();
    }

    pub(super) fn start(&self) {
        let (orphans, incarnation) = {
            let mut state = self.state();
            state.up = true;
            (std::mem::take(&mut state.orphans), state.incarnation)
        };
        for mut caller in orphans {
            caller.incarnation = incarnation;
            self.respond(&caller, &Err((-32000, "the agent has exited")));
        }
        self.world.disturb();
        self.world.note(|| "server: started".to_owned());
    }

    /// Handles one message.
    pub(super) fn handle(self: &Arc<Self>, message: &Value, headers: &Headers) -> Handled {
        let mut state = self.state();
        let method = message["method"].as_str();
        if let Some(status) = self.refusal(&mut state, method, headers) {
            return Handled::Now(Reply { status, connection: None, body: None });
        }
        let Some(method) = method else {
            drop(state);
            self.answer(message, headers.program.as_deref().unwrap_or_default());
            return accepted();
        };
        let session = message["params"]["sessionId"].as_str().map(str::to_owned);
        let Some(id) = message.get("id").cloned() else {
            drop(state);
            if method == "session/cancel" {
                self.cancel(&session.unwrap_or_default());
            }
            return accepted();
        };
        state.next_slot += 1;
        let (slot, incarnation) = (state.next_slot, state.incarnation);
        let (sender, receiver) = oneshot::channel();
        let inline = method == "initialize" || self.world.plan.model != Model::Official;
        let waits = inline && !(headers.accept && self.world.plan.echo);
        if waits {
            state.slots.insert(slot, sender);
        }
        drop(state);
        let connection = headers.connection.clone();
        let program = headers.program.clone();
        let caller = Caller { id, slot, session, incarnation, swallowed: false, connection, program };
        self.call(method, &message["params"], caller);
        if waits { Handled::Later(receiver) } else { accepted() }
    }

    fn refusal(&self, state: &mut State, method: Option<&str>, headers: &Headers) -> Option<u16> {
        match self.world.plan.model {
            Model::Early | Model::Official if method == Some("initialize") => None,
            Model::Early | Model::Official => (!state.knows(headers)).then_some(404),
            Model::Released if headers.bootstrap => {
                state.bootstrapped = true;
                None
            }
            Model::Released => (!state.bootstrapped).then_some(400),
            Model::Rpc | Model::Auto => None,
        }
    }

    /// Deletes the connection.
    pub(super) fn delete(&self) -> u16 {
        self.state().connections.clear();
        204
    }
}

fn accepted() -> Handled {
    Handled::Now(Reply { status: 202, connection: None, body: None })
}
