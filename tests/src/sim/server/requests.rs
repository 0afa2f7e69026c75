//! The agent requests of the model server.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use super::{Running, Server};
use crate::sim::ledger::GivenUp;

/// How long the owner of a session has at least to serve a request: less than an agent waits.
const PATIENCE: Duration = Duration::from_secs(300);

/// What an agent asks for.
#[derive(Debug, Clone, Copy)]
pub(in crate::sim) enum Wanted<'a> {
    /// Permission, with this title.
    Permission(&'a str),
    /// That a file is written.
    Write,
}

impl Server {
    /// Sends an agent request of a turn, or one that was left in the buffer, and gives its tag.
    pub(in crate::sim) fn ask(&self, session: &str, wanted: Wanted<'_>, turn: Option<&str>) -> String {
        let mut state = self.state();
        let id = state.next_request;
        state.next_request += 1;
        let tag = format!("a{id}");
        state.open.insert(id, (session.to_owned(), tag.clone()));
        drop(state);
        let mut ledger = self.world.ledger();
        let directory = ledger.directories.get(&(ledger.generation, session.to_owned())).cloned();
        let record = ledger.requests.entry(tag.clone()).or_default();
        record.backlog = turn.is_none();
        (record.session, record.directory) = (session.to_owned(), directory);
        record.turn = turn.map(str::to_owned);
        record.writes = matches!(wanted, Wanted::Write);
        drop(ledger);
        let (method, mut params) = match wanted {
            Wanted::Permission(title) => {
                let mut options = vec![json!({ "optionId": "yes", "name": "Yes", "kind": "allow_once" })];
                if self.world.plan.asking.is_some() {
                    options.push(json!({ "optionId": "no", "name": "No", "kind": "reject_once" }));
                }
                let call = json!({ "toolCallId": tag, "title": title });
                ("session/request_permission", json!({ "toolCall": call, "options": options }))
            }
            Wanted::Write => ("fs/write_text_file", json!({ "path": format!("/{tag}"), "content": turn })),
        };
        params["sessionId"] = session.into();
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        let stream = self.stream_of(Some(session));
        self.emit(stream, None, None, &format!("{method} {tag} of {session}"), |_| message);
        tag
    }

    /// An answer of a client to an agent request. The agent takes the first one.
    pub(super) fn answer(&self, message: &Value, program: &str) {
        let Some(id) = message["id"].as_u64().and_then(|id| u32::try_from(id).ok()) else {
            return self.world.fail(format!("an answer without an id of ours: {message}"));
        };
        let found = self.state().open.remove(&id);
        let tag = format!("a{id}");
        let answered = {
            let mut ledger = self.world.ledger();
            let request = ledger.requests.entry(tag.clone()).or_default();
            request.answered += 1;
            if found.is_some() {
                request.taken = Some((program.to_owned(), message.clone()));
                request.taken_at = Some(Instant::now());
            }
            (request.answered, request.backlog)
        };
        self.world.note(|| {
            let response = message.get("result").or(message.get("error")).unwrap_or(&Value::Null);
            format!("server: answer to {tag}, open {}: {response}", found.is_some())
        });
        match answered {
            (_, true) if self.world.plan.shows_backlog() => {
                self.world.fail(format!("{tag} is backlog and was answered"))
            }
            // The next owner of a session does not know whether the answer of the one before arrived.
            (2.., _) if self.world.plan.memory.is_none() => {
                self.world.fail(format!("{tag} was answered {} times", answered.0))
            }
            _ => {}
        }
        let Some((session, tag)) = found else { return };
        if let Some(running) = self.state().sessions.get(&session).and_then(|entry| entry.running.clone()) {
            running.answers.lock().unwrap().push(tag);
            running.wake.notify_one();
        }
    }

    /// The agent does not wait for the response to a request any more.
    pub(in crate::sim) fn give_up(&self, tag: &str, why: GivenUp) {
        let mut state = self.state();
        let before = state.open.len();
        state.open.retain(|_, (_, open)| open != tag);
        let mut ledger = self.world.ledger();
        let Some(request) = ledger.requests.get(tag).filter(|_| state.open.len() < before) else { return };
        let stored = request.stored_session().unwrap_or_default();
        let owner = ledger.owner(&stored).filter(|owner| owner.since.elapsed() > PATIENCE);
        // Where the session was released, no program may respond before the next one acquires it.
        let left_by = owner.filter(|_| why == GivenUp::TimedOut).and_then(|owner| owner.program.clone());
        let request = ledger.requests.entry(tag.to_owned()).or_default();
        (request.given_up, request.left_by) = (Some(why), left_by);
    }

    /// The turn that runs in a session of the agent, and the tags of the requests that it waits for.
    pub(in crate::sim) fn waiting(&self, session: &str) -> Option<(Arc<Running>, Vec<String>)> {
        let state = self.state();
        let running = state.sessions.get(session)?.running.clone()?;
        let open = state.open.values().filter(|(of, _)| of == session);
        let open = open.map(|(_, tag)| tag.clone()).collect();
        Some((running, open))
    }
}
