//! The inputs and outputs of an ordered core.

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

/// The decisions of the core, in order.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A message for subscribers, handlers or another client.
    Message(Ordered),
    /// A response on the stream to a request of this client, even if its caller is gone.
    Echo {
        event_id: Option<EventId>,
        number: u64,
        raw: Bytes,
    },
    /// A request of this client has its response.
    Settle {
        number: u64,
        outcome: RpcOutcome,
        order: Order,
        from_stream: bool,
    },
    /// A request of this client will get no response.
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
    /// The echo of a deferred response may lie in a gap. The echo of a new request follows it.
    Probe,
    /// Another incarnation of the server.
    Restarted {
        lost_at: Option<Moment>,
    },
}

/// Why a request will get no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Another incarnation of the server is running.
    Restart,
    /// No event of its session arrived since it may have been lost.
    Silence,
    /// Its POST failed, and this server responds only in bodies.
    Post,
}

/// Which updates of a session are history until a call has its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    Everything,
    /// The messages, tool calls and plans. Other updates, such as the session's commands and modes, are live.
    Conversation,
}

/// A response that arrived in a body, or on another stream than its updates.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) number: u64,
    pub(crate) session: Option<Arc<str>>,
    pub(crate) outcome: RpcOutcome,
    /// The number of the next request: an echo of that request or a later one proves that this response was sent
    /// before.
    pub(crate) next_number: u64,
    /// Whether it arrived on another stream, so that there is no echo on this one.
    pub(crate) elsewhere: bool,
}
