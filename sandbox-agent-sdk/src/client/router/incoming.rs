//! One agent request as it arrives.

use std::sync::Arc;

use acp_http_client as wire;
use serde::Deserialize;
use serde_json::Value;

use crate::client::pump::place;

/// An agent request with the means to answer it.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) method: String,
    /// The session that it names, if it names one that can be read.
    pub(super) session: Option<String>,
    /// The parameters, or why they cannot be parsed.
    pub(super) params: Result<Arc<Value>, serde_json::Error>,
    /// What the parameters take in memory, in bytes.
    pub(super) weight: usize,
    pub(super) responder: wire::Responder,
    /// What every client that sees it identifies it by: its id and its content.
    pub(super) place: String,
}

/// The member that names the session. A request that has it twice is not read: which of them counts differs between
/// readers.
#[derive(Deserialize)]
struct Named {
    #[serde(rename = "sessionId", default)]
    session_id: Value,
}

impl Incoming {
    /// Reads a request. `strict` refuses a session id that others could read differently.
    pub(super) fn read(request: &wire::AgentRequest, responder: wire::Responder, strict: bool) -> Self {
        let (id, content) = (request.id().as_json().as_bytes(), request.params().as_bytes());
        let place = format!("{}-{}", place(0, id), place(0, content));
        let params = request.params().parse::<Value>().map(Arc::new);
        let session = params.as_deref().ok().and_then(|params| {
            let id = match strict {
                false => params.get("sessionId")?.as_str()?.to_owned(),
                true if params.is_object() => match request.params().parse::<Named>().ok()?.session_id {
                    Value::String(id) => id,
                    _ => return None,
                },
                true => return None,
            };
            Some(id)
        });
        let method = request.method().to_owned();
        Self { method, session, params, weight: content.len(), responder, place }
    }
}
