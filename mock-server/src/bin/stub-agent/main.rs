//! A small real ACP agent for tests. See `--help`.

mod options;
mod peer;
mod session;
mod step;
mod turn;

use std::{
    io::{BufRead, BufReader},
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    options::{Options, Reopen},
    peer::Peer,
    session::Sessions,
    step::Step,
    turn::{Cancel, Turn, rest},
};

/// How long the agent survives the end of its input with `--ignore-eof`. The limit keeps a forgotten agent
/// from running forever.
const STUBBORN_LIFE: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{}", include_str!("help.txt"));
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("stub-agent: {message}; see --help");
            return ExitCode::from(2);
        }
    };
    if options.ignore_sigterm {
        // Threads inherit the mask, so the signal stays pending for the whole process.
        let mut signals = nix::sys::signal::SigSet::empty();
        signals.add(nix::sys::signal::Signal::SIGTERM);
        if let Err(error) = signals.thread_block() {
            eprintln!("stub-agent: cannot block SIGTERM: {error}");
        }
    }
    let agent = Arc::new(Stub {
        sessions: Sessions::with_memory(options.memory.clone()),
        options,
        peer: Peer::default(),
    });
    agent.turn("").run(&agent.options.at_start);
    read_input(&agent);
    if agent.options.ignore_eof {
        rest(STUBBORN_LIFE);
    }
    // Running turns end with the process.
    ExitCode::SUCCESS
}

/// Reads lines until the input closes.
fn read_input(agent: &Arc<Stub>) {
    let mut input = BufReader::new(std::io::stdin().lock());
    let mut line = Vec::new();
    while let Ok(1..) = input.read_until(b'\n', &mut line) {
        match serde_json::from_slice::<Value>(&line) {
            Ok(message) => agent.take(message),
            Err(error) => eprintln!("stub-agent: a line that is not JSON: {error}"),
        }
        line.clear();
    }
}

/// The agent: its options, its peer and its sessions.
struct Stub {
    options: Options,
    peer: Peer,
    sessions: Sessions,
}

impl Stub {
    fn take(self: &Arc<Self>, message: Value) {
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        match (method.as_str(), message.get("id")) {
            ("", Some(_)) => self.peer.settle(message),
            ("", None) => eprintln!("stub-agent: neither a request nor a response"),
            ("session/cancel", _) => self.sessions.cancel(session_id(&message)),
            (_, None) => {}
            // Prompts, and methods with directives, may take long and must not block the reader.
            (_, Some(_)) if method == "session/prompt" || self.options.steps_on(&method).is_some() => {
                let agent = Arc::clone(self);
                thread::spawn(move || agent.work(&method, &message));
            }
            (_, Some(id)) => self.respond(&method, id, &message["params"]),
        }
    }

    /// Runs the directives of a method, then the method itself.
    fn work(&self, method: &str, message: &Value) {
        if let Some(steps) = self.options.steps_on(method) {
            self.turn(session_id(message)).run(steps);
        }
        if method == "session/prompt" {
            self.prompt(&message["id"], session_id(message), &message["params"]);
        } else {
            self.respond(method, &message["id"], &message["params"]);
        }
    }

    fn turn<'a>(&'a self, session: &'a str) -> Turn<'a> {
        let cancel = Arc::new(Cancel::default());
        Turn {
            peer: &self.peer,
            sessions: &self.sessions,
            session,
            cancel,
            answer: None,
            late: Duration::ZERO,
        }
    }

    fn prompt(&self, id: &Value, session: &str, params: &Value) {
        let text = prompt_text(params);
        let cancel = match self.sessions.begin(session, &text) {
            Ok(cancel) => cancel,
            Err(why) => return self.peer.refuse(id, -32002, why),
        };
        let mut turn = self.turn(session);
        turn.cancel = cancel;
        turn.answer = Some(Box::new(|cancelled| {
            let reason = if cancelled { "cancelled" } else { "end_turn" };
            // The next prompt may arrive as soon as this response is sent.
            self.sessions.finish(session);
            self.peer.answer(id, json!({ "stopReason": reason }));
        }));
        turn.run(&Step::parse_prompt(&text));
    }

    fn respond(&self, method: &str, id: &Value, params: &Value) {
        let session = params["sessionId"].as_str().unwrap_or_default();
        let result = match method {
            "initialize" => initialized(params, self.options.reopen),
            "session/new" => self.created(params, None),
            "session/fork" => self.created(params, Some(session)),
            "session/load" | "session/resume" => {
                let loads = method == "session/load";
                if !(if loads { self.options.reopen.loads() } else { self.options.reopen.resumes() }) {
                    return self.peer.refuse(id, -32601, "method not found");
                }
                let Some(history) = self.sessions.open(session, &params["cwd"]) else {
                    return self.peer.refuse(id, -32002, session::UNKNOWN);
                };
                let replayed = history.into_iter().filter(|_| loads);
                replayed.for_each(|update| self.peer.update(session, update));
                self.sessions.settings(session)
            }
            "session/list" => json!({ "sessions": self.sessions.list() }),
            "session/close" | "session/delete" => {
                self.sessions.remove(session);
                json!({})
            }
            "session/set_mode" => {
                self.sessions.set_mode(session, &params["modeId"]);
                let update =
                    json!({ "sessionUpdate": "current_mode_update", "currentModeId": params["modeId"] });
                self.peer.update(session, update);
                json!({})
            }
            "session/set_model" => {
                self.sessions.set_model(session, &params["modelId"]);
                json!({})
            }
            "session/set_config_option" => {
                if params["configId"] == "model" {
                    self.sessions.set_model(session, &params["value"]);
                }
                json!({ "configOptions": self.sessions.settings(session)["configOptions"] })
            }
            "authenticate" => json!({}),
            _ => return self.peer.refuse(id, -32601, "method not found"),
        };
        self.peer.answer(id, result);
    }

    fn created(&self, params: &Value, origin: Option<&str>) -> Value {
        let id = self.sessions.create(&params["cwd"], origin);
        let mut result = self.sessions.settings(&id);
        result["sessionId"] = id.into();
        result
    }
}

fn initialized(params: &Value, reopen: Reopen) -> Value {
    let mut abilities = json!({ "list": {}, "fork": {}, "close": {}, "delete": {} });
    if reopen.resumes() {
        abilities["resume"] = json!({});
    }
    let version = params["protocolVersion"].as_u64().map_or(1, |version| version.min(1));
    json!({
        "protocolVersion": version,
        "agentInfo": { "name": "stub-agent", "version": env!("CARGO_PKG_VERSION") },
        "agentCapabilities": {
            "loadSession": reopen.loads(),
            "promptCapabilities": { "image": false, "audio": false, "embeddedContext": false },
            "sessionCapabilities": abilities,
        },
        "authMethods": [],
    })
}

fn session_id(message: &Value) -> &str {
    message["params"]["sessionId"].as_str().unwrap_or_default()
}

fn prompt_text(params: &Value) -> String {
    let blocks = params["prompt"].as_array().map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    texts.join("\n")
}
