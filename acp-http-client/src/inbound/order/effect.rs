//! What goes into an ordered core and what comes out of it.

use std::sync::Arc;

use bytes::Bytes;

use super::Moment;
use crate::{
    EventId, Order, Origin,
    rpc::{Message, MessageError, RpcOutcome},
};

/// One message at its position.
#[derive(Debug)]
pub(crate) struct Ordered {
    pub(crate) event_id: Option<EventId>,
    pub(crate) origin: Origin,
    pub(crate) message: Message,
}

/// What the core decides, in the one order in which it happens.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A message for subscribers, handlers or another client.
    Message(Ordered),
    /// A response to a request of ours on the stream, also if its caller is gone.
    Echo {
        event_id: Option<EventId>,
        number: u64,
        raw: Bytes,
    },
    /// A request of ours is answered.
    Settle {
        number: u64,
        outcome: RpcOutcome,
        order: Order,
        from_stream: bool,
    },
    /// A request of ours is not going to be answered.
    Fail {
        number: u64,
        why: Lost,
    },
    /// An event that is not a message.
    Malformed {
        event_id: Option<EventId>,
        data: Bytes,
        error: MessageError,
    },
    Gap {
        from: u64,
        to: u64,
    },
    /// The echo of a deferred response may lie in a gap. The echo of a request that is made now stands behind it.
    Probe,
    /// Another incarnation of the server.
    Restarted {
        lost_at: Option<Moment>,
    },
}

/// Why a request is not going to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Another incarnation of the server is there.
    Restart,
    /// No event of its session arrived since it may have been lost.
    Silence,
    /// Its POST broke, and this server answers in bodies alone.
    Post,
}

/// What of a session is its history until a call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    Everything,
    /// The messages and tool calls. What the session offers now is live.
    Conversation,
}

/// A response that came in a body, or on another stream than its updates.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) number: u64,
    pub(crate) session: Option<Arc<str>>,
    pub(crate) outcome: RpcOutcome,
    /// The number that the next request will have: an echo of that one or a later one proves that ours has passed.
    pub(crate) next_number: u64,
    /// Whether it came on another stream, so that there is no echo on this one.
    pub(crate) elsewhere: bool,
}
