//! The state of a session that this process owns.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::OpenTurn;
use crate::client::SessionClaim;
use crate::client::deadline::deadline_after;
use crate::sessions::entry::Entry;
use crate::sessions::feed::{Moment, Offers};
use crate::sessions::remote::RemoteTurn;
use crate::sessions::store::{Fence, SessionRecord, StoredEventKind};
use crate::stream::StreamReader;

/// A session that this process owns.
pub(super) struct Owned {
    pub(super) fence: Fence,
    pub(super) agent_session: Option<String>,
    /// Whether the agent has the session.
    pub(super) is_live: bool,
    /// Whether what the session reported was stored since this process acquired or created it, as far as this process
    /// could read it.
    pub(super) is_followed: bool,
    pub(super) incarnation: u64,
    /// Messages up to this offset of this stream were read when the session was acquired.
    pub(super) scanned: Option<(Moment, u64)>,
    /// The endpoint that the agent's session is on.
    pub(super) endpoint: String,
    /// Whether other processes can read the stream of that endpoint.
    pub(super) is_numbered: bool,
    /// The running turn of this process.
    pub(super) turn: Option<String>,
    /// Turns of this process that have ended, while updates of them may still arrive. The updates are of the first one
    /// until its response arrives.
    pub(super) trailing: VecDeque<Trailing>,
    pub(super) foreign: Option<ForeignTurn>,
    pub(super) replay: Replay,
    /// The state of the session according to the record.
    pub(super) described: Described,
    /// When the end of the agent was stored, if nothing was restored since.
    pub(super) ended_at: Option<Instant>,
    /// Since when the agent has not had the session, for any reason, while no turn runs.
    pub(super) gone_since: Option<Instant>,
    pub(super) unfollowing: Unfollowing,
}

/// Whether the record says that this process no longer follows the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfollowing {
    /// It does not say so, and need not.
    No,
    /// It does not say so, because the store failed.
    Pending,
    Stored,
}

/// A turn whose response arrived without proof that all updates before it had arrived. Updates that precede its response
/// on the stream belong to it.
pub(super) struct Trailing {
    pub(super) turn_id: String,
    /// The JSON-RPC id of its prompt.
    pub(super) request: String,
}

/// The session settings in a record.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Described {
    pub(super) options: Option<Value>,
    pub(super) mode: Option<String>,
    pub(super) model: Option<String>,
}

/// A running turn of another process.
pub(super) struct ForeignTurn {
    pub(super) turn: OpenTurn,
    /// The JSON-RPC ids with which its prompt was sent.
    pub(super) prompts: Vec<String>,
    /// Whether the agent has reported anything since its prompt.
    pub(super) is_heard: bool,
    /// Whether the response to its prompt may have been missed.
    pub(super) unconfirmed: Option<Unconfirmed>,
    pub(super) link: ForeignLink,
    /// Its agent requests, which are offered to the application until it ends.
    pub(super) _offers: Offers,
}

/// A turn whose response may have been missed. It ends when nothing was heard of it for some time: first it is cancelled,
/// because it may still run, and then it is stored as interrupted.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    /// When the timeout expires.
    pub(super) until: Instant,
    pub(super) is_cancelled: bool,
    /// How many of its agent requests wait for a decision. The agent waits for it, too.
    pub(super) undecided: usize,
}

impl Unconfirmed {
    pub(super) fn new(silence: Duration, undecided: usize) -> Self {
        Self { until: deadline_after(silence), is_cancelled: false, undecided }
    }

    /// Records a report of the turn. The report may be late, so the response may still have been missed.
    pub(super) fn hear(&mut self, silence: Duration) {
        *self = Self::new(silence, self.undecided);
    }

    /// When to cancel the turn or give it up.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        (self.undecided == 0).then_some(self.until)
    }
}

/// How a turn of another process is followed.
pub(super) enum ForeignLink {
    /// It runs on the endpoint of this client.
    Here {
        /// Its agent requests are addressed to this client meanwhile.
        _claim: SessionClaim,
        /// Responses to its open requests are sent through this reader.
        _reader: Option<Mutex<StreamReader>>,
    },
    /// It runs on the endpoint of another process.
    Remote(RemoteTurn),
}

impl ForeignTurn {
    /// Updates the turn from an entry of the session.
    pub(super) fn hear(&mut self, entry: &Entry, silence: Duration) {
        match (&entry.kind, &mut self.unconfirmed) {
            _ if entry.is_loss() => {
                let undecided = self.unconfirmed.as_ref().map_or(0, |unconfirmed| unconfirmed.undecided);
                (self.is_heard, self.unconfirmed) = (false, Some(Unconfirmed::new(silence, undecided)));
            }
            // An agent sends no requests after its response.
            (StoredEventKind::Permission | StoredEventKind::Question, _) => {
                (self.is_heard, self.unconfirmed) = (true, None);
            }
            (StoredEventKind::Answered, Some(unconfirmed)) => {
                unconfirmed.undecided = unconfirmed.undecided.saturating_sub(1);
                unconfirmed.hear(silence);
            }
            _ if entry.is_of_a_turn() => {
                self.is_heard = true;
                self.unconfirmed.iter_mut().for_each(|unconfirmed| unconfirmed.hear(silence));
            }
            _ => {}
        }
    }

    pub(super) fn remote(&self) -> Option<&RemoteTurn> {
        match &self.link {
            ForeignLink::Remote(remote) => Some(remote),
            ForeignLink::Here { .. } => None,
        }
    }
}

impl Owned {
    /// Creates the state of a session that was not restored in the agent yet.
    pub(super) fn new(record: &SessionRecord, endpoint: String, is_numbered: bool) -> Self {
        Self {
            fence: record.fence(),
            agent_session: record.agent_session.as_ref().map(|session| session.id.clone()),
            is_live: false,
            is_followed: false,
            incarnation: record.position.map_or(1, |position| position.incarnation),
            scanned: None,
            endpoint,
            is_numbered,
            turn: None,
            trailing: VecDeque::new(),
            foreign: None,
            replay: if record.details.replay_pending { Replay::Pending } else { Replay::Done },
            described: Described::default(),
            ended_at: None,
            gone_since: None,
            unfollowing: Unfollowing::No,
        }
    }

    /// The id of the running turn, of this process or another one.
    pub(super) fn running(&self) -> Option<String> {
        let foreign = || self.foreign.as_ref().map(|foreign| foreign.turn.turn_id.clone());
        self.turn.clone().or_else(foreign)
    }

    /// Whether a turn of another process is followed on that process's endpoint.
    pub(super) fn is_remote(&self) -> bool {
        self.foreign.as_ref().is_some_and(|foreign| foreign.remote().is_some())
    }
}

/// Whether the agent must receive the history as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replay {
    Done,
    Pending,
    /// It was sent; with whether the agent has reported anything since.
    Sent {
        is_heard: bool,
    },
}
