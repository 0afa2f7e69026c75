//! Timeouts and limits.

use std::{collections::BTreeMap, time::Duration};

/// Timeouts for each phase. An open event stream has no total timeout.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Timeouts {
    /// The timeout for the TCP and TLS connection. Default 10 s. A custom [`reqwest::Client`] uses its own.
    pub connect: Duration,
    /// The timeout for the HTTP response to a notification or to a response of this client. It also limits how long a
    /// notification about a session waits to be sent. If responses arrive on the stream, it is also the timeout for
    /// the HTTP response to a request about a session. After this time, the next message is sent, and the response may
    /// still arrive on the stream. Default 30 s.
    pub headers: Duration,
    /// The timeout for the response to a request; `None` for no limit. Default 60 s.
    ///
    /// It applies to methods without their own timeout; see [`Timeouts::method`].
    pub request: Option<Duration>,
    /// The timeouts of single methods, see [`Timeouts::method`].
    methods: BTreeMap<String, Option<Duration>>,
    /// How long a request waits for a response that may be lost; `None` for no limit. Default 120 s.
    ///
    /// A response may be lost if the POST failed, or in a gap or a reopened stream. Each message of its session on
    /// the stream restarts this time.
    pub confirmation: Option<Duration>,
    /// How long a request waits in total for a response that may be lost; `None` for no limit. Default 1 h.
    ///
    /// It applies to streams whose event ids do not identify events. On such a stream, a server that replays its buffer
    /// at each opening would restart [`confirmation`](Self#structfield.confirmation) each time.
    pub confirmation_limit: Option<Duration>,
    /// How long a response from a body waits for its echo while its session is silent. Default 2 s.
    ///
    /// After this time it is returned as [`Order::Unverified`](crate::Order::Unverified). Conforming servers echo
    /// every response, so this timeout applies only to echoes that were lost, and to servers that do not conform. An
    /// event that is still arriving extends the wait.
    pub order: Duration,
    /// How long a response waits for its echo in total, if its session is never silent. Default 30 s.
    ///
    /// It is also the time without events after which the client no longer expects the echo of its first response.
    pub order_limit: Duration,
    /// How long a session must be silent before a response is returned. Default 250 ms.
    ///
    /// It applies to servers that do not echo responses, where nothing else orders the response after its updates.
    pub quiet: Duration,
    /// How long the first response waits for an echo, on a server of [unknown](crate::Barrier::Learn) behaviour.
    /// Default 500 ms.
    pub learn: Duration,
    /// How long the stream must be silent after the first response to end the backlog. Default 250 ms.
    ///
    /// It applies to servers that do not echo responses, where nothing else marks the end of the backlog. On other
    /// servers the first echoed response ends the backlog. With a connection id there is no backlog.
    pub backlog_quiet: Duration,
    /// How long after the first response the backlog ends, on a stream that is never silent. Default 3 s.
    pub backlog_limit: Duration,
    /// How long a prompt waits for the end of a cancelled turn. Default 10 s.
    pub cancel: Duration,
    /// The delay before a cancel is first repeated. It doubles each time. Default 250 ms.
    pub cancel_repeat: Duration,
    /// How long a request without a timeout is retried if the server refuses it without reading it, with `Retry-After`.
    /// There are at most three retries. Default 60 s.
    pub retry_after: Duration,
    /// The timeout for the response headers of the event stream. Default 30 s.
    pub stream_open: Duration,
    /// How long the server may respond with 404 for a stream that should exist. Default 3 s.
    ///
    /// Such a stream is one whose first POST was accepted, or the stream of a session. Some servers create the stream
    /// a moment after they accept the POST. After this time the connection ends, or the requests of the session fail.
    pub stream_missing: Duration,
    /// How long the event stream may be without a byte before it is reopened; `None` for no limit. Default 45 s.
    /// Comments count as bytes.
    pub stream_idle: Option<Duration>,
    /// The timeout for `close()`. Default 2 s.
    pub close: Duration,
    /// How long `close()` waits for the server's response after the request was handed to the HTTP connection. If
    /// `None`, only [`close`](Self#structfield.close) limits this time. Default `None`.
    pub close_response: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        let methods = [
            // The first call may install the agent.
            ("initialize", Some(Duration::from_secs(180))),
            ("session/new", Some(Duration::from_secs(120))),
            ("session/load", Some(Duration::from_secs(300))),
            // A turn has no time limit.
            ("session/prompt", None),
        ];
        Self {
            connect: Duration::from_secs(10),
            headers: Duration::from_secs(30),
            request: Some(Duration::from_secs(60)),
            methods: methods.into_iter().map(|(method, time)| (method.to_owned(), time)).collect(),
            confirmation: Some(Duration::from_secs(120)),
            confirmation_limit: Some(Duration::from_secs(3600)),
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
            stream_missing: Duration::from_secs(3),
            stream_idle: Some(Duration::from_secs(45)),
            close: Duration::from_secs(2),
            close_response: None,
        }
    }
}

impl Timeouts {
    /// Sets the timeout of one method; `None` for no limit.
    ///
    /// By default `initialize` has 180 s, `session/new` 120 s, `session/load` 300 s, and `session/prompt` no limit.
    #[must_use]
    pub fn method(mut self, method: impl Into<String>, time: impl Into<Option<Duration>>) -> Self {
        self.methods.insert(method.into(), time.into());
        self
    }

    /// Returns the timeout of a method.
    pub fn for_method(&self, method: &str) -> Option<Duration> {
        self.methods.get(method).copied().unwrap_or(self.request)
    }
}

/// Limits on what a server or an agent can make a connection store, parse or open.
///
/// Data that exceeds a limit is dropped and reported by an event or a typed error; nothing else is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest message in bytes, on the stream or in a response body. Default 64 MiB.
    /// Larger messages cause [`Error::MessageTooLarge`](crate::Error::MessageTooLarge).
    pub message: usize,
    /// How many bytes the queue of one subscriber may hold. Default 64 MiB.
    /// Further events are dropped and reported as [`Event::Lagged`](crate::Event::Lagged).
    ///
    /// The same limit applies to response bodies that are passed to a tap only after their echo on the stream. If they
    /// take more, the oldest are passed to the tap without waiting.
    pub subscriber: usize,
    /// The maximum length of an id or a method name, in bytes. Default 1 KiB.
    ///
    /// It applies to the id of an event, and to the id, the session id and the method of an agent request. Longer ones
    /// cause [`Event::Malformed`](crate::Event::Malformed). A longer connection id is ignored.
    pub id: usize,
    /// How much memory JSON text may take once parsed into a `serde_json::Value`. Default 64 MiB.
    /// The text itself is limited by `message`, but small text can take ten times its size in memory.
    pub decoded: usize,
    /// How many agent requests may be open at the same time. Default 1024.
    ///
    /// Requests whose response is being sent count as open. Further requests are refused with an error response.
    pub open_requests: usize,
    /// How many bytes the parameters of all open agent requests may take. Default 64 MiB.
    /// Further requests are refused with an error response.
    pub open_request_bytes: usize,
    /// How many responses to agent requests are posted at the same time. Default 32. Further responses wait.
    pub response_posts: usize,
    /// How many bytes the responses to agent requests may take until they are posted. Default 128 MiB.
    /// A response that exceeds it is replaced by an error response, and
    /// [`Event::ResponseLost`](crate::Event::ResponseLost) reports it.
    pub response_bytes: usize,
    /// How many refusals may wait to be posted. Default 1024.
    /// Further requests get no response, and [`Event::ResponseLost`](crate::Event::ResponseLost) reports them.
    pub refusals: usize,
    /// How many bytes of the body of a failed HTTP response are read. Default 64 KiB. The rest is dropped.
    pub error_body: usize,
    /// How many cookies are stored. Default 50. Further cookies replace the oldest.
    pub cookies: usize,
    /// How many bytes of messages are held while it is unknown whether they are backlog. Default 64 MiB.
    ///
    /// This is unknown shortly after the first response, on servers that do not echo responses. Further messages are
    /// delivered as [`Origin::Replayed`](crate::Origin::Replayed), and agent requests among them get no response.
    pub backlog: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message: 64 << 20,
            subscriber: 64 << 20,
            id: 1024,
            decoded: 64 << 20,
            open_requests: 1024,
            open_request_bytes: 64 << 20,
            response_posts: 32,
            response_bytes: 128 << 20,
            refusals: 1024,
            error_body: 64 << 10,
            cookies: 50,
            backlog: 64 << 20,
        }
    }
}

/// Gives each field a setter of the same name.
macro_rules! setters {
    ($options:ident { $($name:ident: $value:ty),* $(,)? }) => {
        impl $options {
            $(
                #[doc = concat!("Sets [`", stringify!($name), "`](Self#structfield.", stringify!($name), ").")]
                #[must_use]
                pub fn $name(mut self, $name: $value) -> Self {
                    self.$name = $name.into();
                    self
                }
            )*
        }
    };
}

setters!(Limits {
    message: usize,
    subscriber: usize,
    id: usize,
    decoded: usize,
    open_requests: usize,
    open_request_bytes: usize,
    response_posts: usize,
    response_bytes: usize,
    refusals: usize,
    error_body: usize,
    cookies: usize,
    backlog: usize,
});

setters!(Timeouts {
    connect: Duration,
    headers: Duration,
    request: impl Into<Option<Duration>>,
    confirmation: impl Into<Option<Duration>>,
    confirmation_limit: impl Into<Option<Duration>>,
    order: Duration,
    order_limit: Duration,
    quiet: Duration,
    learn: Duration,
    backlog_quiet: Duration,
    backlog_limit: Duration,
    cancel: Duration,
    cancel_repeat: Duration,
    retry_after: Duration,
    stream_open: Duration,
    stream_missing: Duration,
    stream_idle: impl Into<Option<Duration>>,
    close: Duration,
    close_response: impl Into<Option<Duration>>,
});
