//! Options of a request.

use std::time::Duration;

/// Options of a single request.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct RequestOptions {
    pub(super) deadline: Deadline,
    pub(super) ordered: Option<bool>,
    pub(super) cancel_on_drop: Option<bool>,
    pub(super) replays: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Deadline {
    /// The timeout of the method in [`Timeouts`](crate::Timeouts).
    #[default]
    ByMethod,
    After(Duration),
    Never,
}

impl RequestOptions {
    /// Creates options that use the client's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the timeout of the response.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.deadline = Deadline::After(time);
        self
    }

    /// Waits for the response without a timeout.
    pub fn no_timeout(mut self) -> Self {
        self.deadline = Deadline::Never;
        self
    }

    /// Sets whether the request returns after all updates that the server sent before the response.
    ///
    /// If on, the request returns only after these updates were delivered. On by default for every request about a
    /// session.
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = Some(ordered);
        self
    }

    /// Sets whether updates that the agent replays before its response are marked as history.
    ///
    /// They then have [`Origin::History`](crate::Origin::History). Only the conversation is marked. Use it for
    /// `session/resume`: agents should not replay anything there, but some do. For `session/load` it is always on and
    /// covers all updates of the session before the response. Do not use it if other clients may have a running turn in
    /// the session: their live updates would be marked as history.
    pub fn replays(mut self, replays: bool) -> Self {
        self.replays = replays;
        self
    }

    /// Sets whether dropping the request before its response cancels it on the server.
    pub fn cancel_on_drop(mut self, cancel: bool) -> Self {
        self.cancel_on_drop = Some(cancel);
        self
    }
}
