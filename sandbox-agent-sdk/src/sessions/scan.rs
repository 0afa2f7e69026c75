//! Reads a part of the server's stream a second time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use acp_http_client as wire;
use futures::FutureExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::entry::Entry;
use super::store::StoredEventKind;
use crate::Error;
use crate::client::{Connection, Place};
use crate::termination::TerminationReport;

/// How many bytes of a session's messages are read at most.
const MAX_BYTES: usize = 256 << 20;

/// What is looked for in the stream.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// The id of the agent's session.
    pub(super) agent_session: String,
    /// The last message that is stored.
    pub(super) behind: Place,
    /// Where to begin, at or before that message: behind it agent requests are received again.
    pub(super) from: u64,
    /// The JSON-RPC ids of prompts whose responses are looked for.
    pub(super) responses: Vec<String>,
}

/// What the server's stream has behind a position, up to the response to a request that was sent after it.
#[derive(Debug)]
pub(super) struct Scan {
    /// Whether the message at the position is still the same one: the server has not restarted since.
    pub(super) is_proven: bool,
    /// Whether the server is known to have restarted.
    pub(super) is_other: bool,
    /// What belongs to the session.
    pub(super) entries: Vec<Entry>,
    /// The responses that were looked for, by the id of their request, with how many entries precede each.
    pub(super) responses: HashMap<String, (usize, Value)>,
    /// Messages that the server no longer has.
    pub(super) gaps: Vec<(u64, u64)>,
    /// The last message.
    pub(super) end: Option<Place>,
    /// Agent requests of the session, with the means to answer them while the reader lives.
    pub(super) requests: Vec<(wire::AgentRequest, wire::Responder)>,
    pub(super) reader: wire::AcpHttpClient,
}

#[derive(Debug, Default)]
struct Read {
    is_proven: bool,
    is_other: bool,
    entries: Vec<Entry>,
    bytes: usize,
    truncated: bool,
    responses: HashMap<String, (usize, Value)>,
    end: Option<Place>,
}

#[derive(Deserialize)]
struct Message<'a> {
    method: Option<String>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Params {
    #[serde(rename = "sessionId", alias = "session_id")]
    session_id: Option<String>,
}

impl Scan {
    /// Reads the stream.
    ///
    /// # Errors
    /// If the server cannot be read a second time.
    pub(super) async fn run(connection: &Connection, wanted: Wanted) -> Result<Self, Error> {
        let read: Arc<Mutex<Read>> = Arc::default();
        let (tapped, sought) = (Arc::clone(&read), wanted.clone());
        let builder =
            connection.reader(wanted.from.saturating_sub(1)).tap(move |envelope: wire::Envelope<'_>| {
                if envelope.direction == wire::Direction::Inbound {
                    let offset = envelope.event_id.and_then(|id| id.parse().ok());
                    tapped.lock().unwrap_or_else(PoisonError::into_inner).take(offset, envelope.raw, &sought);
                }
            });
        let (builder, mut incoming) = builder.agent_requests();
        let reader = builder.build().map_err(Error::from_wire)?;
        let mut events = reader.events();
        let probe = reader.request_raw("session/list", &json!({})).ordered(true);
        let mut requests = Vec::new();
        let mut keep = |(request, responder): (wire::AgentRequest, wire::Responder)| {
            let of_session = serde_json::from_slice::<Params>(request.params().as_bytes());
            match of_session.ok().and_then(|params| params.session_id) {
                Some(session) if session == wanted.agent_session => requests.push((request, responder)),
                // It is addressed to another client.
                _ => drop(responder.ignore()),
            }
        };
        let mut probe = std::pin::pin!(probe.into_future());
        let probed = loop {
            tokio::select! {
                biased;
                Some(request) = incoming.next() => keep(request),
                probed = &mut probe => break probed,
            }
        };
        while let Some(Some(request)) = tokio::task::unconstrained(incoming.next()).now_or_never() {
            keep(request);
        }
        match probed {
            // Its place in the stream counts, and not what it says.
            Ok(_) | Err(wire::Error::Rpc { .. }) => {}
            Err(error) => {
                requests.into_iter().for_each(|(_, responder)| drop(responder.ignore()));
                return Err(Error::from_wire(error));
            }
        }
        let read = std::mem::take(&mut *read.lock().unwrap_or_else(PoisonError::into_inner));
        let mut scan = Self {
            is_proven: read.is_proven,
            is_other: read.is_other,
            entries: read.entries,
            responses: read.responses,
            gaps: Vec::new(),
            end: read.end,
            requests,
            reader,
        };
        scan.learn(&mut events, wanted.behind.offset, read.truncated);
        Ok(scan)
    }

    /// Takes in what the reader reports about the stream itself.
    fn learn(&mut self, events: &mut wire::Events, behind: u64, truncated: bool) {
        while let Some(event) = events.try_recv() {
            match event {
                wire::Event::Restarted { .. } => self.is_other = true,
                wire::Event::Gap { from, to, .. } if to > behind => {
                    self.gaps.push((from.max(behind + 1), to));
                }
                _ => {}
            }
        }
        if truncated && let Some(end) = self.end {
            self.gaps.push((behind + 1, end.offset));
        }
        self.is_proven &= !self.is_other;
    }
}

impl Read {
    fn take(&mut self, offset: Option<u64>, raw: &[u8], wanted: &Wanted) {
        let Ok(message) = serde_json::from_slice::<Message<'_>>(raw) else { return };
        let params = message.params.map_or("null", RawValue::get);
        let Some(offset) = offset else { return };
        let content = if message.method.is_some() { params.as_bytes() } else { raw };
        let place = Place::of(offset, content);
        if offset == wanted.behind.offset {
            self.is_proven = place == wanted.behind;
            self.is_other |= !self.is_proven;
        }
        if self.end.is_none_or(|end| end.offset < offset) {
            self.end = Some(place);
        }
        match &message.method {
            None => {
                let id = message.id.and_then(|id| serde_json::from_str::<String>(id.get()).ok());
                if let Some(id) = id.filter(|id| wanted.responses.contains(id))
                    && let Ok(response) = serde_json::from_slice(raw)
                {
                    self.responses.insert(id, (self.entries.len(), response));
                }
            }
            Some(method) if message.id.is_none() && offset > wanted.behind.offset => {
                let of_session = serde_json::from_str::<Params>(params).ok();
                if of_session.and_then(|of| of.session_id).as_deref() == Some(&wanted.agent_session) {
                    self.notification(method, params, place);
                }
            }
            Some(_) => {}
        }
    }

    fn notification(&mut self, method: &str, params: &str, place: Place) {
        self.bytes += params.len();
        self.truncated |= self.bytes > MAX_BYTES;
        if self.truncated {
            return;
        }
        let Ok(value) = serde_json::from_str::<Value>(params) else { return };
        let (kind, payload) = match method {
            "session/update" => (StoredEventKind::Update, value["update"].clone()),
            "_sandboxagent/session/ended" => match TerminationReport::from_session_ended(&value) {
                Some(report) => (StoredEventKind::Ended, json!(report.into_info())),
                None => return,
            },
            method => (StoredEventKind::Notification, json!({"method": method, "params": value})),
        };
        let mut entry = Entry::own(kind, payload);
        (entry.place, entry.weight) = (Some(place), params.len());
        self.entries.push(entry);
    }
}
