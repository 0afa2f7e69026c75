//! The settings of an ordered core.

use std::time::Duration;

use crate::{Barrier, EventId, EventIds, Limits};

/// The settings of an ordered core.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) barrier: Barrier,
    pub(crate) event_ids: EventIds,
    pub(crate) limits: Limits,
    /// Whether the first opening may replay messages from before this client.
    pub(crate) backlog: bool,
    pub(crate) resume_from: Option<EventId>,
    /// How long a response from a body is deferred for its echo while its session is silent.
    pub(crate) order: Duration,
    /// How long it is deferred in total.
    pub(crate) order_limit: Duration,
    /// The silence that replaces a barrier on servers without one.
    pub(crate) quiet: Duration,
    /// How long the first response waits for an echo before the client assumes that the server sends none.
    pub(crate) learn: Duration,
    /// How long a request that may be lost waits for an event of its session.
    pub(crate) unconfirmed: Option<Duration>,
    /// How long it waits in total if events cannot be identified.
    pub(crate) unconfirmed_limit: Option<Duration>,
    /// The silence, and the total time, after which the backlog of the first opening ends.
    pub(crate) backlog_quiet: Duration,
    pub(crate) backlog_limit: Duration,
}
