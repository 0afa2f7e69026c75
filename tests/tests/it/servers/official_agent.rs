//! An agent on the official SDK that obeys most directives of the stub agent. It is not a process, so it has no exit
//! code, no signal, no standard error, and cannot print other lines than messages.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use agent_client_protocol::{
    Agent, Client, ConnectTo, Error, Responder, UntypedMessage, V1, on_receive_notification,
    on_receive_request, v1::ConnectionTo,
};
use serde_json::{Value, json};
use tokio::sync::watch;

/// The state that the agents of all connections share. It survives restarts of the server.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    next: AtomicU64,
    /// The texts of each session.
    said: Mutex<HashMap<String, Vec<String>>>,
    /// The turns that can be cancelled.
    turns: Mutex<HashMap<String, watch::Sender<bool>>>,
}

type Connection = ConnectionTo<Client>;

/// The agent of one connection.
pub(crate) fn agent(memory: Arc<Memory>) -> impl ConnectTo<Client> {
    let cancelling = Arc::clone(&memory);
    Agent
        .v1()
        .on_receive_request(
            async move |request: UntypedMessage, responder: Responder<Value, V1>, cx: Connection| {
                let params = request.params().clone();
                let session = params["sessionId"].as_str().unwrap_or_default().to_owned();
                match request.method() {
                    "session/prompt" => {
                        let turn = memory.begin(&session, &params, cx.clone());
                        cx.spawn(async move { turn.run(responder).await })
                    }
                    method => match memory.answer(method, &session, &cx)? {
                        Ok(answer) => responder.respond(answer),
                        Err(refusal) => responder.respond_with_error(refusal),
                    },
                }
            },
            on_receive_request!(),
        )
        .on_receive_notification(
            async move |notification: UntypedMessage, _: Connection| {
                if notification.method() == "session/cancel" {
                    cancelling.cancel(notification.params()["sessionId"].as_str().unwrap_or_default());
                }
                Ok(())
            },
            on_receive_notification!(),
        )
}

impl Memory {
    /// Returns the result or the error response. The outer error is that of the connection.
    fn answer(&self, method: &str, session: &str, cx: &Connection) -> Result<Result<Value, Error>, Error> {
        let answer = match method {
            "initialize" => json!({
                "protocolVersion": 1,
                "agentInfo": { "name": "official-agent", "version": "1" },
                "agentCapabilities": { "loadSession": true, "sessionCapabilities": { "resume": {} } },
                "authMethods": [],
            }),
            "session/new" => {
                let id = format!("official-{}", self.next.fetch_add(1, Ordering::Relaxed) + 1);
                self.said.lock().unwrap().insert(id.clone(), Vec::new());
                json!({ "sessionId": id })
            }
            "session/load" | "session/resume" => {
                let said = self.said.lock().unwrap().get(session).cloned();
                let Some(said) = said else {
                    return Ok(Err(Error::invalid_params().data("no such session")));
                };
                for text in said.iter().filter(|_| method == "session/load") {
                    cx.send_notification(chunk(session, text)?)?;
                }
                json!({})
            }
            _ => return Ok(Err(Error::method_not_found())),
        };
        Ok(Ok(answer))
    }

    fn begin(self: &Arc<Self>, session: &str, params: &Value, cx: Connection) -> Turn {
        let blocks = params["prompt"].as_array().cloned().unwrap_or_default();
        let text: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
        let (sender, cancelled) = watch::channel(false);
        self.turns.lock().unwrap().insert(session.to_owned(), sender);
        Turn { memory: Arc::clone(self), session: session.to_owned(), text: text.join("\n"), cancelled, cx }
    }

    fn cancel(&self, session: &str) {
        if let Some(turn) = self.turns.lock().unwrap().get(session) {
            turn.send_replace(true);
        }
    }
}

struct Turn {
    memory: Arc<Memory>,
    session: String,
    text: String,
    cancelled: watch::Receiver<bool>,
    cx: Connection,
}

impl Turn {
    async fn run(mut self, responder: Responder<Value, V1>) -> Result<(), Error> {
        let mut responder = Some(responder);
        let text = std::mem::take(&mut self.text);
        for piece in text.split([';', '\n']).map(str::trim).filter(|piece| !piece.is_empty()) {
            let words: Vec<&str> = piece.split(' ').collect();
            match words.as_slice() {
                ["say", ..] => self.say(&piece["say ".len()..])?,
                ["updates", count, "bytes", bytes] => {
                    let text = "x".repeat(bytes.parse().unwrap_or(1));
                    for _ in 0..count.parse().unwrap_or(0) {
                        self.cx.send_notification(chunk(&self.session, &text)?)?;
                    }
                }
                ["recall"] => {
                    let said = self.memory.said.lock().unwrap().get(&self.session).cloned();
                    let said = format!("recall: {}", said.unwrap_or_default().join(", "));
                    self.cx.send_notification(chunk(&self.session, &said)?)?;
                }
                ["permission"] => self.ask().await?,
                ["delay", millis] => {
                    let time = Duration::from_millis(millis.parse().unwrap_or(0));
                    let _ = tokio::time::timeout(time, self.cancelled.wait_for(|cancelled| *cancelled)).await;
                }
                ["hang"] => drop(self.cancelled.wait_for(|cancelled| *cancelled).await),
                ["answer"] => self.answer(responder.take())?,
                // The closest to a crash for an agent inside the server.
                ["exit", code] => return Err(Error::internal_error().data(format!("exit {code}"))),
                [word, ..] if PROCESS_WORDS.contains(word) => {
                    let refusal = Error::invalid_params().data(format!("`{piece}` needs a process"));
                    return match responder.take() {
                        Some(responder) => responder.respond_with_error(refusal),
                        None => Ok(()),
                    };
                }
                _ => self.say(&format!("official: {piece}"))?,
            }
        }
        self.answer(responder)
    }

    fn answer(&self, responder: Option<Responder<Value, V1>>) -> Result<(), Error> {
        let Some(responder) = responder else { return Ok(()) };
        let reason = if *self.cancelled.borrow() { "cancelled" } else { "end_turn" };
        responder.respond(json!({ "stopReason": reason }))
    }

    fn say(&self, text: &str) -> Result<(), Error> {
        self.memory.said.lock().unwrap().entry(self.session.clone()).or_default().push(text.to_owned());
        self.cx.send_notification(chunk(&self.session, text)?)
    }

    async fn ask(&self) -> Result<(), Error> {
        let options = json!([
            { "optionId": "allow", "name": "Allow", "kind": "allow_once" },
            { "optionId": "reject", "name": "Reject", "kind": "reject_once" },
        ]);
        let call = json!({ "toolCallId": "call", "title": "echo test" });
        let params = json!({ "sessionId": self.session, "toolCall": call, "options": options });
        let request = UntypedMessage::new("session/request_permission", params)?;
        let answer: Value = self.cx.send_request(request).block_task().await?;
        let outcome = &answer["outcome"];
        let choice = outcome["optionId"].as_str().or(outcome["outcome"].as_str()).unwrap_or("no outcome");
        self.say(&format!("permission: {choice}"))
    }
}

/// The directives that need a process.
const PROCESS_WORDS: [&str; 5] = ["stderr", "garbage", "signal", "torn", "close-stdout"];

fn chunk(session: &str, text: &str) -> Result<UntypedMessage, Error> {
    let update =
        json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
    UntypedMessage::new("session/update", json!({ "sessionId": session, "update": update }))
}
