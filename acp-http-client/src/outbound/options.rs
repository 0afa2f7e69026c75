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
    /// As [`Timeouts`](crate::Timeouts) says for the method.
    #[default]
    ByMethod,
    After(Duration),
    Never,
}

impl RequestOptions {
    /// Options as the client's settings say.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fails the request if there is no response in this time.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.deadline = Deadline::After(time);
        self
    }

    /// Waits for the response without a limit.
    pub fn no_timeout(mut self) -> Self {
        self.deadline = Deadline::Never;
        self
    }

    /// Returns whether the request returns only after every update that the server sent before the response was delivered. On
    /// by default for every request about a session.
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = Some(ordered);
        self
    }

    /// Marks what the agent replays of the session's conversation before its response as
    /// [history](crate::Origin::History). `session/load` is always treated so, with everything else that comes of the
    /// session meanwhile. This is for `session/resume`, after which an agent should replay nothing and some do. Where
    /// other clients may have a turn running in the session, live updates would be marked as history.
    pub fn replays(mut self, replays: bool) -> Self {
        self.replays = replays;
        self
    }

    /// Returns whether the request is cancelled on the server when its future is dropped before its response.
    pub fn cancel_on_drop(mut self, cancel: bool) -> Self {
        self.cancel_on_drop = Some(cancel);
        self
    }
}
