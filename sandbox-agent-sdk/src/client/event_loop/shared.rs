//! What the event loop of a connection shares with the calls over it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::TerminationInfo;
use crate::client::limits::Limits;
use crate::client::router::{OwnedSessions, UnclaimedTable};
use crate::client::supports::Learned;
use crate::convert::gemini::is_gemini;
use crate::requests::Admission;

/// How many unparsed lines are stored, and how much of each.
const OUTPUT_LINES: usize = 16;
pub(super) const OUTPUT_CHARS: usize = 1024;

/// What the event loop of a connection shares with the calls over it.
#[derive(Debug)]
pub(in crate::client) struct Shared {
    /// Whether other clients use the same endpoint and see the same stream.
    pub(in crate::client) is_shared: bool,
    /// Whether a notice of an agent's exit refers to the only agent of the endpoint.
    exit_notices_trusted: AtomicBool,
    /// Whether the agent of the connection is gemini-cli, which reports modes as text.
    is_gemini: AtomicBool,
    /// How many calls are pending.
    pub(in crate::client) in_flight: AtomicUsize,
    /// Guards how the agent ended, once it has and the connection with it; held for a copy. Details may follow.
    ended: Mutex<Option<TerminationInfo>>,
    /// Whether this client has begun to end the agent.
    pub(in crate::client) stop_requested: AtomicBool,
    /// Agent requests that probably belong to other clients.
    pub(in crate::client) unclaimed: UnclaimedTable,
    /// The sessions with agent requests that this client serves.
    pub(in crate::client) owned: Arc<OwnedSessions>,
    /// The memory of the open agent requests that are addressed to this client.
    pub(in crate::client) admission: Arc<Admission>,
    /// The memory of the unclaimed ones. It is separate: other clients must not use up that of this client.
    pub(in crate::client) unclaimed_admission: Arc<Admission>,
    /// How many agent requests that this client serves are open.
    pub(in crate::client) slots: Arc<Admission>,
    pub(in crate::client) limits: Limits,
    /// Which optional methods exist, as calls have shown.
    pub(in crate::client) learned: Learned,
    /// Guards the last unparsed lines of the agent; held for a push or a copy.
    output: Mutex<VecDeque<String>>,
}

impl Shared {
    pub(in crate::client) fn new(is_shared: bool, limits: &Limits) -> Self {
        Self {
            is_shared,
            exit_notices_trusted: AtomicBool::new(!is_shared),
            is_gemini: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            ended: Mutex::default(),
            stop_requested: AtomicBool::new(false),
            unclaimed: UnclaimedTable::new(limits.unclaimed_requests),
            owned: Arc::default(),
            admission: Arc::new(Admission::new(limits.open_request_bytes)),
            unclaimed_admission: Arc::new(Admission::new(limits.open_request_bytes)),
            slots: Arc::new(Admission::new(limits.open_requests)),
            limits: limits.clone(),
            learned: Learned::default(),
            output: Mutex::default(),
        }
    }

    /// A shared endpoint may have several agents, and any of them can print such a notification. Servers with several
    /// agents advertise extensions and report ends by session; the adapter has one agent and advertises none.
    pub(in crate::client) fn trust_exit_notices(&self, trusted: bool) {
        self.exit_notices_trusted.store(trusted, Ordering::Release);
    }

    /// Whether a notice of an agent's exit refers to the only agent of the endpoint.
    pub(in crate::client) fn exit_notices_trusted(&self) -> bool {
        self.exit_notices_trusted.load(Ordering::Acquire)
    }

    /// Sets the names of the connection's agent.
    pub(in crate::client) fn set_agent<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        self.is_gemini.store(is_gemini(names), Ordering::Release);
    }

    pub(super) fn is_gemini(&self) -> bool {
        self.is_gemini.load(Ordering::Acquire)
    }

    /// How the agent ended, if it has.
    pub(in crate::client) fn ended(&self) -> Option<TerminationInfo> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_ended(&self, info: TerminationInfo) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(info);
    }

    pub(super) fn printed(&self, line: &str) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if output.len() == OUTPUT_LINES {
            output.pop_front();
        }
        output.push_back(line.chars().take(OUTPUT_CHARS).collect());
    }

    /// Returns the last unparsed lines of the agent.
    pub(in crate::client) fn output(&self) -> Vec<String> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
