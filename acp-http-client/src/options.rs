//! Timeouts and limits.

use std::{collections::HashMap, time::Duration};

/// How long to wait, phase by phase. Nothing here ever applies to the body of an open event stream.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Timeouts {
    /// For TCP and TLS to connect. A [`reqwest::Client`] of your own brings its own.
    pub connect: Duration,
    /// For the headers of a notification's or an answer's response.
    pub headers: Duration,
    /// For the answer to a request of a method without a time of its own; `None` waits for ever.
    pub request: Option<Duration>,
    /// For the answers of single methods, see [`Timeouts::method`].
    methods: HashMap<String, Option<Duration>>,
    /// For a request whose POST failed in a way that leaves open whether it ran: how long the stream may bring
    /// no message of its session before the request fails.
    pub confirmation: Option<Duration>,
    /// How long a response from a body is deferred for its echo on the event stream while its session is silent there.
    /// An event that is arriving then is waited for as long as its bytes come. Servers that keep their contract echo
    /// every response; this ends the wait on those that do not.
    pub order: Duration,
    /// How long a response is deferred in all, on a session that is never silent.
    pub order_limit: Duration,
    /// The silence of a session after which all updates before a response are taken to have come, on servers that do
    /// not echo responses: nothing else orders the two there.
    pub quiet: Duration,
    /// How long the first response of a server of [unknown](crate::Barrier::Learn) behaviour may wait for an echo.
    pub learn: Duration,
    /// The silence that ends the backlog of the first opening, where no response of this client ends it.
    pub backlog_quiet: Duration,
    /// The same on a stream that is never silent.
    pub backlog_limit: Duration,
    /// How long a prompt waits for the end of a turn that was cancelled.
    pub cancel: Duration,
    /// The pause before the first repetition of a cancel; it doubles from there.
    pub cancel_repeat: Duration,
    /// The longest `Retry-After` that a request without a time limit waits for.
    pub retry_after: Duration,
    /// For the headers of the event stream.
    pub stream_open: Duration,
    /// How long the event stream may be without a byte (comments count) before it is opened again; `None` never.
    pub stream_idle: Option<Duration>,
    /// For the server to confirm `close()`.
    pub close: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let methods = [
            // The first call may install the agent.
            ("initialize", Some(Duration::from_secs(180))),
            ("session/new", Some(Duration::from_secs(120))),
            ("session/load", Some(Duration::from_secs(300))),
            // A turn takes as long as it takes.
            ("session/prompt", None),
        ];
        Self {
            connect: Duration::from_secs(10),
            headers: Duration::from_secs(30),
            request: Some(Duration::from_secs(60)),
            methods: methods.into_iter().map(|(method, time)| (method.to_owned(), time)).collect(),
            confirmation: Some(Duration::from_secs(120)),
            order: Duration::from_secs(2),
            order_limit: Duration::from_secs(30),
            quiet: Duration::from_millis(250),
            learn: Duration::from_millis(500),
            backlog_quiet: Duration::from_millis(250),
            backlog_limit: Duration::from_secs(3),
            cancel: Duration::from_secs(10),
            cancel_repeat: Duration::from_millis(250),
            retry_after: Duration::from_secs(60),
            stream_open: Duration::from_secs(30),
            stream_idle: Some(Duration::from_secs(45)),
            close: Duration::from_secs(2),
        }
    }
}

impl Timeouts {
    /// Sets the time for one method; `None` waits for ever.
    #[must_use]
    pub fn method(mut self, method: impl Into<String>, time: impl Into<Option<Duration>>) -> Self {
        self.methods.insert(method.into(), time.into());
        self
    }

    /// Sets the time for methods without one of their own; `None` waits for ever.
    #[must_use]
    pub fn request(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.request = time.into();
        self
    }

    /// The time for the answer to this method.
    pub fn for_method(&self, method: &str) -> Option<Duration> {
        self.methods.get(method).copied().unwrap_or(self.request)
    }
}

/// How much memory a connection may take.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest message taken from the server, on the stream or in a body. Default 64 MiB.
    pub message: usize,
    /// How many bytes may wait for one subscriber before events are dropped and counted. Default 64 MiB.
    pub subscriber: usize,
    /// How many requests of the agent may be open at once. Default 1024.
    pub open_requests: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { message: 64 << 20, subscriber: 64 << 20, open_requests: 1024 }
    }
}
