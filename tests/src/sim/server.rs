//! A model of a server: streams with replay buffers, sessions, restarts.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, atomic::AtomicBool},
};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::Instant,
};

use super::{
    agent,
    ledger::{Emitted, StreamKey},
    plan::{EventIds, Model, Unknown},
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
    pub(super) life: u32,
    /// Whether the response never comes.
    swallowed: bool,
    /// The connection id that was sent along, or is given.
    connection: Option<String>,
}

/// What the client sent along with a message.
#[derive(Debug, Default)]
pub(super) struct Headers {
    pub(super) connection: Option<String>,
    pub(super) bootstrap: bool,
    /// Whether the server accepts the request with 202 and answers on the stream.
    pub(super) accept: bool,
}

/// Where a reader of a stream stands.
#[derive(Debug)]
pub(super) struct Cursor {
    pub(super) stream: StreamKey,
    life: u32,
    position: u64,
    reader: u64,
    /// Whether it has brought an event.
    sent: bool,
}

/// What a reader of a stream finds.
#[derive(Debug)]
pub(super) enum Next {
    Event {
        index: usize,
        bytes: Bytes,
    },
    Nothing,
    /// The server is gone, or another client reads.
    Gone,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    index: usize,
    id: Option<String>,
    bytes: Bytes,
}

#[derive(Debug, Default)]
struct Channel {
    last: u64,
    buffer: VecDeque<Entry>,
    /// The reader of a stream that has one at most, and when it gave up the stream.
    reader: Option<u64>,
}

/// A turn that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) tag: String,
    caller: Caller,
    pub(super) cancelled: AtomicBool,
    /// The tags of agent requests that were answered.
    pub(super) answers: Mutex<Vec<String>>,
    /// Woken by a cancel and by an answer.
    pub(super) wake: Notify,
}

#[derive(Debug, Default)]
struct Session {
    running: Option<Arc<Running>>,
    queue: VecDeque<(String, Caller)>,
}

#[derive(Debug, Default)]
struct State {
    up: bool,
    life: u32,
    /// The connection ids in force, and how many were given.
    connections: BTreeSet<String>,
    next_connection: u32,
    bootstrapped: bool,
    channels: BTreeMap<StreamKey, Channel>,
    sessions: BTreeMap<String, Session>,
    next_session: u32,
    next_request: u32,
    next_slot: u64,
    next_reader: u64,
    slots: BTreeMap<u64, oneshot::Sender<Reply>>,
    /// The callers of turns that a restart with memory has ended: they hear of it afterwards.
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
    /// Counts changes that readers wait for.
    changed: watch::Sender<u64>,
}

impl Server {
    pub(super) fn new(world: Arc<World>) -> Arc<Self> {
        let state = State { up: true, ..State::default() };
        Arc::new(Self { world, state: Mutex::new(state), changed: watch::Sender::new(0) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn is_up(&self) -> bool {
        self.state().up
    }

    pub(super) fn is_alive(&self, life: u32) -> bool {
        let state = self.state();
        state.up && state.life == life
    }

    /// What another client left in the buffer, with an agent request that nobody answered.
    pub(super) fn fill_backlog(&self) {
        for n in 0..self.world.plan.backlog {
            if n % 4 == 1 {
                self.ask("x0", &format!("old{n}"), true);
            } else {
                self.update("x0", false);
            }
        }
    }

    /// The events of another client.
    pub(super) fn burst(&self, count: u64) {
        self.world.note(|| format!("server: {count} events of another client"));
        for _ in 0..count {
            self.update("x0", false);
        }
    }

    /// Stops the server. Every connection breaks.
    pub(super) fn stop(&self, memory: bool) {
        let mut state = self.state();
        let mut ledger = self.world.ledger();
        state.up = false;
        state.life += 1;
        state.slots.clear();
        state.open.clear();
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
            state.orphans.clear();
            state.connections.clear();
            state.bootstrapped = false;
        }
        drop((state, ledger));
        self.world.note(|| format!("server: stopped {} its memory", if memory { "with" } else { "without" }));
        self.world.disturb();
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn start(&self) {
        let (orphans, life) = {
            let mut state = self.state();
            state.up = true;
            (std::mem::take(&mut state.orphans), state.life)
        };
        for mut caller in orphans {
            caller.life = life;
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
            self.answer(message);
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
        let (slot, life) = (state.next_slot, state.life);
        let (sender, receiver) = oneshot::channel();
        let inline = method == "initialize" || self.world.plan.model != Model::Official;
        let waits = inline && !(headers.accept && self.world.plan.echo);
        if waits {
            state.slots.insert(slot, sender);
        }
        drop(state);
        let connection = headers.connection.clone();
        let caller = Caller { id, slot, session, life, swallowed: false, connection };
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

    fn call(self: &Arc<Self>, method: &str, params: &Value, mut caller: Caller) {
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
                self.respond(
                    &caller,
                    &Ok(json!({ "protocolVersion": 1, "agentCapabilities": {}, "authMethods": [] })),
                );
            }
            "session/new" => {
                let mut state = self.state();
                let id = format!("s{}", state.next_session);
                state.next_session += 1;
                state.sessions.insert(id.clone(), Session::default());
                drop(state);
                self.respond(&caller, &Ok(json!({ "sessionId": id })));
                agent::greet(self.clone(), id, caller.life);
            }
            _ if caller.session.is_some() && !known => {
                self.respond(&caller, &Err((-32002, "session not found")));
            }
            "session/prompt" => {
                let tag = params["prompt"][0]["text"].as_str().unwrap_or_default().to_owned();
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
            "session/load" => agent::load(self.clone(), caller),
            _ => self.respond(&caller, &Ok(json!({}))),
        }
    }

    fn prompt(self: &Arc<Self>, session: String, tag: String, caller: Caller) {
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
    pub(super) fn start_next(self: &Arc<Self>, session: &str) {
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

    pub(super) fn end_turn(self: &Arc<Self>, session: &str) {
        if let Some(entry) = self.state().sessions.get_mut(session) {
            entry.running = None;
        }
        self.start_next(session);
    }

    /// A cancel hits the turn that runs; without one it does nothing.
    fn cancel(&self, session: &str) {
        let running = self.state().sessions.get(session).and_then(|entry| entry.running.clone());
        let Some(running) = running else {
            return self.world.note(|| format!("server: cancel of {session} without a turn"));
        };
        self.world.note(|| format!("server: cancel of {}", running.tag));
        let allowed = {
            let mut ledger = self.world.ledger();
            let turn = ledger.turns.entry(running.tag.clone()).or_default();
            turn.cancelled || turn.abandoned
        };
        if !allowed {
            self.world.fail(format!("a cancel of another turn reached {}", running.tag));
        }
        running.cancelled.store(true, std::sync::atomic::Ordering::Relaxed);
        running.wake.notify_one();
    }

    /// An answer of the client to an agent request.
    fn answer(&self, message: &Value) {
        let Some(id) = message["id"].as_u64().and_then(|id| u32::try_from(id).ok()) else {
            return self.world.fail(format!("an answer without an id of ours: {message}"));
        };
        let found = self.state().open.remove(&id);
        let tag = format!("a{id}");
        let answered = {
            let mut ledger = self.world.ledger();
            let request = ledger.requests.entry(tag.clone()).or_default();
            request.answered += 1;
            (request.answered, request.backlog)
        };
        self.world.note(|| format!("server: answer to {tag}"));
        match answered {
            (_, true) if self.world.plan.shows_backlog() => {
                self.world.fail(format!("{tag} is backlog and was answered"))
            }
            (2.., _) => self.world.fail(format!("{tag} was answered {} times", answered.0)),
            _ => {}
        }
        let Some((session, tag)) = found else { return };
        if let Some(running) = self.state().sessions.get(&session).and_then(|entry| entry.running.clone()) {
            running.answers.lock().unwrap().push(tag);
            running.wake.notify_one();
        }
    }

    /// Sends an update and gives its index.
    pub(super) fn update(&self, session: &str, history: bool) -> usize {
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

    /// Sends an agent request and gives its tag.
    pub(super) fn ask(&self, session: &str, title: &str, backlog: bool) -> String {
        let mut state = self.state();
        let id = state.next_request;
        state.next_request += 1;
        let tag = format!("a{id}");
        state.open.insert(id, (session.to_owned(), tag.clone()));
        drop(state);
        self.world.ledger().requests.entry(tag.clone()).or_default().backlog = backlog;
        let stream = self.stream_of(Some(session));
        self.emit(stream, None, false, &format!("request {tag} of {session}"), |_| {
            format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"session/request_permission","params":{{"sessionId":"{session}","toolCall":{{"toolCallId":"{tag}","title":"{title}"}},"options":[{{"optionId":"yes","name":"Yes","kind":"allow_once"}}]}}}}"#
            )
        });
        tag
    }

    /// Sends the response of a request where the dialect wants it.
    pub(super) fn respond(&self, caller: &Caller, outcome: &Result<Value, (i32, &str)>) {
        if caller.swallowed || !self.is_alive(caller.life) {
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
            self.emit(stream, None, false, "response", |_| text.clone());
        }
        if let Some(slot) = slot {
            let connection = caller.connection.clone();
            let _ = slot.send(Reply { status: 200, connection, body: Some(text) });
        }
    }

    fn stream_of(&self, session: Option<&str>) -> StreamKey {
        session.filter(|_| self.world.plan.model == Model::Official).map(str::to_owned)
    }

    fn emit(
        &self,
        stream: StreamKey,
        session: Option<String>,
        history: bool,
        what: &str,
        text: impl FnOnce(usize) -> String,
    ) -> usize {
        let plan = &self.world.plan;
        let mut state = self.state();
        let mut ledger = self.world.ledger();
        let (index, generation) = (ledger.emitted.len(), ledger.generation);
        let text = text(index);
        let channel = state.channels.entry(stream.clone()).or_default();
        channel.last += 1;
        let number = channel.last;
        let id = match plan.ids {
            EventIds::Sequence => Some(number.to_string()),
            EventIds::Zero => Some("0".to_owned()),
            EventIds::Constant => Some("x".to_owned()),
            EventIds::TimeStamps => Some((1_700_000_000_000 + self.world.now().as_millis()).to_string()),
            EventIds::Descending => Some(1_000_000_u64.saturating_sub(number).to_string()),
            EventIds::Absent => None,
        };
        let line = id.as_ref().map(|id| format!("id: {id}\n")).unwrap_or_default();
        let bytes = Bytes::from(format!("event: message\n{line}data: {text}\n\n"));
        channel.buffer.push_back(Entry { number, index, id, bytes });
        if plan.model != Model::Official && channel.buffer.len() > plan.buffer {
            channel.buffer.pop_front();
        }
        ledger.emitted.push(Emitted {
            stream,
            number,
            generation,
            session,
            history,
            at: Instant::now(),
            brought: None,
            delivered: 0,
            reported: false,
        });
        drop((state, ledger));
        self.world.note(|| format!("server: event {number} (u{index}): {what}"));
        self.changed.send_modify(|count| *count += 1);
        index
    }

    /// Opens a stream for reading; the status if that is refused, 0 if there is no server.
    pub(super) fn open(
        &self,
        stream: StreamKey,
        last_event_id: Option<&str>,
        headers: &Headers,
        repeat: u64,
    ) -> Result<Cursor, u16> {
        let plan = &self.world.plan;
        let mut state = self.state();
        if !state.up {
            return Err(0);
        }
        let mut ledger = self.world.ledger();
        match plan.model {
            Model::Early | Model::Official if !state.knows(headers) => return Err(404),
            Model::Released if !state.bootstrapped => return Err(404),
            _ => {}
        }
        state.next_reader += 1;
        let (life, reader) = (state.life, state.next_reader);
        let channel = state.channels.entry(stream.clone()).or_default();
        if plan.model == Model::Official {
            if channel.reader.is_some() {
                return Err(409);
            }
            channel.reader = Some(reader);
            ledger.floors.insert(stream.clone(), 0);
            return Ok(Cursor { stream, life, position: 0, reader, sent: false });
        }
        let generation = ledger.generation;
        if ledger.opened_in.insert(stream.clone(), generation).is_some_and(|before| before != generation)
            && !plan.is_numbered()
        {
            // The ids may be those of other events now.
            ledger.excuse(&stream);
        }
        let first = channel.buffer.front().map_or(channel.last + 1, |entry| entry.number);
        let mut position = match last_event_id {
            None => first,
            Some(id) if plan.ids == EventIds::Sequence => {
                let asked = id.parse::<u64>().map_or(first, |last| last + 1);
                let position = asked.clamp(first, channel.last + 1);
                if asked != position && !plan.is_numbered() {
                    ledger.excuse(&stream);
                }
                position
            }
            Some(id) => {
                let mut found = channel.buffer.iter().filter(|entry| entry.id.as_deref() == Some(id));
                let behind = found.next().map(|entry| entry.number + 1);
                if behind.is_none() || found.next().is_some() {
                    ledger.excuse(&stream);
                }
                behind.unwrap_or(match plan.unknown {
                    Unknown::Everything => first,
                    Unknown::Nothing => channel.last + 1,
                })
            }
        };
        if last_event_id.is_some() {
            position = position.saturating_sub(repeat).max(first);
            if plan.ids == EventIds::TimeStamps {
                // Events of one millisecond have one id, which identifies none of them.
                ledger.excuse(&stream);
            }
            ledger.begun.insert(stream.clone());
        } else if !ledger.begun.contains(&stream) {
            let floor = channel.buffer.front().map_or(ledger.emitted.len(), |entry| entry.index);
            ledger.floors.insert(stream.clone(), floor);
        }
        Ok(Cursor { stream, life, position, reader, sent: false })
    }

    /// The next event for a reader.
    pub(super) fn next(&self, cursor: &mut Cursor) -> Next {
        let mut state = self.state();
        if !state.up || state.life != cursor.life {
            return Next::Gone;
        }
        let Some(channel) = state.channels.get_mut(&cursor.stream) else { return Next::Gone };
        if self.world.plan.model == Model::Official {
            if channel.reader != Some(cursor.reader) {
                return Next::Gone;
            }
            return match channel.buffer.pop_front() {
                Some(entry) => Next::Event { index: entry.index, bytes: entry.bytes },
                None => Next::Nothing,
            };
        }
        let Some(first) = channel.buffer.front().map(|entry| entry.number) else { return Next::Nothing };
        if first > cursor.position {
            // The reader was too slow. Without numbers nobody can see that.
            cursor.position = first;
            self.world.disturb();
            let mut ledger = self.world.ledger();
            if !cursor.sent && !ledger.begun.contains(&cursor.stream) {
                let floor = channel.buffer.front().map_or(0, |entry| entry.index);
                ledger.floors.insert(cursor.stream.clone(), floor);
            }
            if !self.world.plan.is_numbered() {
                ledger.excuse(&cursor.stream);
            }
        }
        let place = usize::try_from(cursor.position - first).unwrap_or(usize::MAX);
        let Some(entry) = channel.buffer.get(place) else { return Next::Nothing };
        cursor.position += 1;
        cursor.sent = true;
        Next::Event { index: entry.index, bytes: entry.bytes.clone() }
    }

    /// Whether the client has seen events of this reader: a swap among the first ones cannot be told.
    pub(super) fn has_begun(&self, cursor: &Cursor) -> bool {
        cursor.sent && self.world.ledger().begun.contains(&cursor.stream)
    }

    /// The reader of a stream is gone.
    pub(super) fn leave(&self, cursor: &Cursor) {
        let mut state = self.state();
        if let Some(channel) = state.channels.get_mut(&cursor.stream)
            && channel.reader == Some(cursor.reader)
        {
            channel.reader = None;
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
