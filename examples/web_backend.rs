//! A web back end: prompts by POST, turns as server-sent events, permissions decided in the browser.
//!
//! ```text
//! GET  /events             the events of the session, as JSON with a `type`
//! POST /prompt             the text of a prompt
//! POST /permissions/{id}   the id of an option, in response to an event of type `permission`
//! ```
//! `cargo run --example web_backend -- 8080` serves this port until Ctrl-C. Without a port, the program also simulates
//! the browser, for one turn. The agent runs on an embedded server, or on the server at `SANDBOX_AGENT_URL`.
//!
//! The example serves every client that reaches the port. A real back end authenticates its users and rejects cross-site
//! requests.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::{Event as Message, KeepAlive, Sse};
use axum::routing::{get, post};
use futures::{Stream, StreamExt, stream};
use sandbox_agent_sdk::requests::ReplyError;
use sandbox_agent_sdk::text::printable;
use sandbox_agent_sdk::turns::TurnEvent;
use sandbox_agent_sdk::{NewSession, PermissionRequest, SandboxAgentClient, Session};
use sdk_examples::Server;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;

/// How many events are buffered for a slow browser.
const BUFFERED_EVENTS: usize = 1024;

struct App {
    session: Session,
    /// The permission requests that wait for the user. Dropping one cancels it.
    waiting: Mutex<HashMap<String, PermissionRequest>>,
    events: broadcast::Sender<String>,
}

impl App {
    fn publish(&self, message: &Value) {
        // An error means that no browser is connected.
        let _ = self.events.send(message.to_string());
    }

    /// Reads a turn to its end. Permission requests arrive in `next_event`, unless a policy decides them before.
    async fn follow(&self, prompt: String) {
        let mut turn = self.session.prompt(prompt);
        while let Some(event) = turn.next_event().await {
            let message = json!(event);
            if let TurnEvent::Permission(request) = event {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.retain(|_, request| request.is_open());
                waiting.insert(request.id().to_owned(), request);
            }
            self.publish(&message);
        }
    }
}

async fn prompt(State(app): State<Arc<App>>, text: String) -> StatusCode {
    // Dropping a turn cancels it, so a separate task owns the turn.
    tokio::spawn(async move { app.follow(text).await });
    StatusCode::ACCEPTED
}

async fn decide(State(app): State<Arc<App>>, Path(id): Path<String>, option: String) -> StatusCode {
    let mut waiting = app.waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(request) = waiting.get(&id) else { return StatusCode::NOT_FOUND };
    match request.choose(&option) {
        Ok(()) => _ = waiting.remove(&id),
        // The turn was cancelled, or the agent ended.
        Err(ReplyError::Stale) => return StatusCode::GONE,
        Err(_) => return StatusCode::BAD_REQUEST,
    }
    StatusCode::NO_CONTENT
}

async fn events(State(app): State<Arc<App>>) -> Sse<impl Stream<Item = Result<Message, Infallible>>> {
    let messages = stream::unfold(app.events.subscribe(), async |mut events| {
        let text = match events.recv().await {
            Ok(text) => text,
            Err(broadcast::error::RecvError::Lagged(count)) => {
                json!({"type": "lagged", "count": count}).to_string()
            }
            Err(broadcast::error::RecvError::Closed) => return None,
        };
        Some((Ok(Message::default().data(text)), events))
    });
    Sse::new(messages).keep_alive(KeepAlive::default())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = Server::find().await;
    let mut options = SandboxAgentClient::builder(&server.url).agent(&server.agent);
    if let Some(token) = &server.token {
        options = options.token(token);
    }
    let client = options.build()?;
    let session = client.new_session(NewSession::in_dir("/")).await?;
    let app =
        Arc::new(App { session, waiting: Mutex::default(), events: broadcast::Sender::new(BUFFERED_EVENTS) });
    let router = Router::new()
        .route("/events", get(events))
        .route("/prompt", post(prompt))
        .route("/permissions/{id}", post(decide))
        .with_state(app);

    let port = std::env::args().nth(1).map(|port| port.parse()).transpose()?;
    let listener = TcpListener::bind(("127.0.0.1", port.unwrap_or(0))).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("serving on {url}");
    let serving = axum::serve(listener, router).into_future();
    tokio::select! {
        served = serving => served?,
        browsed = browse(&url), if port.is_none() => browsed?,
        _ = tokio::signal::ctrl_c() => {}
    }
    client.disconnect().await?;
    Ok(())
}

/// Simulates a browser: reads events, sends a prompt, and decides a permission request.
async fn browse(url: &str) -> Result<(), Box<dyn Error>> {
    let http = reqwest::Client::new();
    let mut events = http.get(format!("{url}/events")).send().await?.bytes_stream();
    let prompt = "ask for a permission and then say hello";
    http.post(format!("{url}/prompt")).body(prompt).send().await?.error_for_status()?;
    let mut text = Vec::new();
    while let Some(bytes) = events.next().await {
        text.extend_from_slice(&bytes?);
        while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
            let block: Vec<u8> = text.drain(..end + 2).collect();
            let Some(data) = block.strip_prefix(b"data: ") else { continue };
            let event: Value = serde_json::from_slice(data)?;
            println!("{}", printable(&event.to_string()));
            if event["type"] == "permission" {
                let id = event["id"].as_str().unwrap_or_default();
                let option = event["options"][0]["optionId"].as_str().unwrap_or_default().to_owned();
                let decided = http.post(format!("{url}/permissions/{id}")).body(option).send().await?;
                println!("decided: {}", decided.status());
            } else if event["type"] == "turnEnded" {
                return Ok(());
            }
        }
    }
    Ok(())
}
