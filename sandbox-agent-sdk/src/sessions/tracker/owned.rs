//! The state of a session that this process owns.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde_json::Value;
use tokio::time::Instant;

use super::OpenTurn;
use crate::client::SessionClaim;
use crate::sessions::feed::{Moment, Offers};
use crate::sessions::remote::RemoteTurn;
use crate::sessions::store::{Fence, SessionRecord};
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
    /// What the record says about the state of the session.
    pub(super) described: Described,
    /// When the end of the agent was stored, if nothing was restored since.
    pub(super) ended_at: Option<Instant>,
}

/// A turn whose response arrived without proof that all updates before it had arrived. Updates that precede its response
/// on the stream belong to it.
pub(super) struct Trailing {
    pub(super) turn_id: String,
    /// The JSON-RPC id of its prompt.
    pub(super) request: String,
}

/// What a record has of a session's settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Described {
    pub(super) options: Option<Value>,
    pub(super) mode: Option<String>,
    pub(super) model: Option<String>,
}

/// A turn of another program that is running.
pub(super) struct ForeignTurn {
    pub(super) turn: OpenTurn,
    /// The JSON-RPC ids with which its prompt was sent.
    pub(super) prompts: Vec<String>,
    /// Whether the agent has reported anything since its prompt.
    pub(super) is_heard: bool,
    /// Since when the response to its prompt may have been missed, and nothing was heard of it.
    pub(super) unconfirmed_since: Option<Instant>,
    pub(super) link: ForeignLink,
    /// Its agent requests, which are offered to the application until it ends.
    pub(super) _offers: Offers,
}

/// How a turn of another program is followed.
pub(super) enum ForeignLink {
    /// It runs on the endpoint of this client.
    Here {
        /// Its agent requests are addressed to this client meanwhile.
        _claim: SessionClaim,
        /// Its open requests are answered through this reader.
        _reader: Option<Mutex<StreamReader>>,
    },
    /// It runs on the endpoint of another process.
    Remote(RemoteTurn),
}

impl ForeignTurn {
    pub(super) fn remote(&self) -> Option<&RemoteTurn> {
        match &self.link {
            ForeignLink::Remote(remote) => Some(remote),
            ForeignLink::Here { .. } => None,
        }
    }
}

impl Owned {
    /// A session whose agent has not been asked for it yet.
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
        }
    }

    /// The id of the running turn, of this process or another program.
    pub(super) fn running(&self) -> Option<String> {
        let foreign = || self.foreign.as_ref().map(|foreign| foreign.turn.turn_id.clone());
        self.turn.clone().or_else(foreign)
    }

    /// Whether a turn of another program is followed on the endpoint of that program.
    pub(super) fn is_remote(&self) -> bool {
        self.foreign.as_ref().is_some_and(|foreign| foreign.remote().is_some())
    }
}

/// Whether the agent has to get the history as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replay {
    Done,
    Pending,
    /// It was sent; with whether the agent has reported anything since.
    Sent {
        is_heard: bool,
    },
}
