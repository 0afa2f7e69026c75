//! A web back end: prompts by POST, a turn as server-sent events, permissions decided in the browser.
//!
//! ```text
//! GET  /events             what happens in the session, as JSON with a `type`
//! POST /prompt             the text of a prompt
//! POST /permissions/{id}   the id of an option, in response to an event of type `permission`
//! ```
//! `cargo run --example web_backend -- 8080` serves on a port until Ctrl-C. Without one, the program is its own browser
//! for one turn. The server of the agent is an embedded one, or `SANDBOX_AGENT_URL`.
//!
//! It serves everyone who reaches the port. A real one authenticates its users and refuses requests of other sites.

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
use sandbox_agent_sdk::turns::TurnEvent;
use sandbox_agent_sdk::{NewSession, PermissionRequest, SandboxAgentClient, Session};
use sdk_examples::Server;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;

/// How many events a slow browser may be behind.
const BEHIND: usize = 1024;

struct App {
    session: Session,
    /// The permission requests that wait for a user. Dropping one cancels it.
    waiting: Mutex<HashMap<String, PermissionRequest>>,
    news: broadcast::Sender<String>,
}

impl App {
    fn tell(&self, news: &Value) {
        // An error means that no browser is there.
        let _ = self.news.send(news.to_string());
    }

    /// Reads a turn to its end. The reader of `next_event` decides about permissions; a policy could decide some before.
    async fn follow(&self, prompt: String) {
        let mut turn = self.session.prompt(prompt);
        while let Some(event) = turn.next_event().await {
            let news = json!(event);
            if let TurnEvent::Permission(request) = event {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.retain(|_, request| request.is_open());
                waiting.insert(request.id().to_owned(), request);
            }
            self.tell(&news);
        }
    }
}

async fn prompt(State(app): State<Arc<App>>, text: String) -> StatusCode {
    // A turn that is dropped is cancelled, and so it must not belong to this request.
    tokio::spawn(async move { app.follow(text).await });
    StatusCode::ACCEPTED
}

async fn decide(State(app): State<Arc<App>>, Path(id): Path<String>, option: String) -> StatusCode {
    let mut waiting = app.waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(request) = waiting.get(&id) else { return StatusCode::NOT_FOUND };
    match request.choose(&option) {
        Ok(()) => _ = waiting.remove(&id),
        // The turn was cancelled, or the agent has ended.
        Err(ReplyError::Stale) => return StatusCode::GONE,
        Err(_) => return StatusCode::BAD_REQUEST,
    }
    StatusCode::NO_CONTENT
}

async fn events(State(app): State<Arc<App>>) -> Sse<impl Stream<Item = Result<Message, Infallible>>> {
    let news = stream::unfold(app.news.subscribe(), async |mut news| {
        let text = match news.recv().await {
            Ok(text) => text,
            Err(broadcast::error::RecvError::Lagged(count)) => {
                json!({"type": "lagged", "count": count}).to_string()
            }
            Err(broadcast::error::RecvError::Closed) => return None,
        };
        Some((Ok(Message::default().data(text)), news))
    });
    Sse::new(news).keep_alive(KeepAlive::default())
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
    let app = Arc::new(App { session, waiting: Mutex::default(), news: broadcast::Sender::new(BEHIND) });
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

/// What a browser does: it reads events, prompts, and lets its user decide.
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
            println!("{event}");
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
