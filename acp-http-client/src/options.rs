//! Timeouts and limits.

use std::{collections::BTreeMap, time::Duration};

/// Timeouts of each phase. None applies to the body of an open event stream as a whole.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Timeouts {
    /// The timeout of connecting TCP and TLS. A [`reqwest::Client`] of your own has its own timeout.
    pub connect: Duration,
    /// The timeout of the HTTP response to a notification or to a response of ours, and of the wait until a notification
    /// about a session may be sent. Where responses come on the stream, also that of the HTTP response to a request about
    /// a session: then the next message is sent, and the stream may still bring the response.
    pub headers: Duration,
    /// The timeout of the response to a request, for methods without a timeout of their own; `None` for no limit.
    pub request: Option<Duration>,
    /// The timeouts of single methods, see [`Timeouts::method`].
    methods: BTreeMap<String, Option<Duration>>,
    /// How long a request may wait for a response that may be lost: its POST broke, or a gap or a reopening may have
    /// lost the response. Each message of its session on the stream starts this time again.
    pub confirmation: Option<Duration>,
    /// How long such a request waits in all on a stream whose event ids identify nothing. There, a server that replays
    /// its buffer with each opening would start [`confirmation`](Self#structfield.confirmation) again each time. `None`
    /// for no limit.
    pub confirmation_limit: Option<Duration>,
    /// How long a response from a body waits for its echo on the event stream while its session is silent there. Then it
    /// is returned as [`Order::Unverified`](crate::Order::Unverified). Conforming servers echo every
    /// response. This timeout covers an echo that was lost in a gap, and servers that do not conform. An event whose
    /// bytes are still arriving extends the wait.
    pub order: Duration,
    /// How long a response waits for its echo in all, on a session that is never silent. Also the time without events
    /// after which the client stops to expect the echo of its first response.
    pub order_limit: Duration,
    /// The silence of a session after which a response is returned, on servers that do not echo responses. Nothing else
    /// orders the response behind its updates there.
    pub quiet: Duration,
    /// How long the first response of a server of [unknown](crate::Barrier::Learn) behaviour may wait for an echo.
    pub learn: Duration,
    /// The silence behind the first response that ends the backlog, on servers that do not echo responses: nothing
    /// else marks its end there. On other servers the first echoed response ends the backlog. With a connection id there
    /// is no backlog.
    pub backlog_quiet: Duration,
    /// The time behind the first response that ends the backlog on a stream that is never silent.
    pub backlog_limit: Duration,
    /// How long a prompt waits for the end of a turn that was cancelled.
    pub cancel: Duration,
    /// The pause before the first repetition of a cancel; it doubles from there.
    pub cancel_repeat: Duration,
    /// How long a request without a time limit is sent again in all when the server refuses it unread with
    /// `Retry-After`, at most three times.
    pub retry_after: Duration,
    /// The timeout of the headers of the event stream.
    pub stream_open: Duration,
    /// How long the server may answer 404 for a stream that should exist: one whose first POST was accepted, or that of
    /// a session. Some servers make the stream a moment after they accept the POST. Then the connection ends, or the
    /// requests of the session fail.
    pub stream_missing: Duration,
    /// How long the event stream may be without a byte (comments count) before it is reopened; `None` for no limit.
    pub stream_idle: Option<Duration>,
    /// The timeout of the server's response to `close()`.
    pub close: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let methods = [
            // The first call may install the agent.
            ("initialize", Some(Duration::from_secs(180))),
            ("session/new", Some(Duration::from_secs(120))),
            ("session/load", Some(Duration::from_secs(300))),
            // A turn has no bound.
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
        }
    }
}

impl Timeouts {
    /// Sets the timeout of one method; `None` for no limit.
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

/// Bounds on what a server or an agent can make a connection store, parse or open.
///
/// What is beyond a limit is reported by an event or a typed error, and nothing else is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest message in bytes, on the stream or in a response body. Default 64 MiB.
    /// Beyond it: [`Error::MessageTooLarge`](crate::Error::MessageTooLarge).
    pub message: usize,
    /// How many bytes the queue of one subscriber may hold. Default 64 MiB.
    /// Beyond it: [`Event::Lagged`](crate::Event::Lagged).
    pub subscriber: usize,
    /// The longest id in bytes: of an event, of an agent request, of its session, and the name of its method.
    /// Default 1 KiB. Beyond it: [`Event::Malformed`](crate::Event::Malformed).
    pub id: usize,
    /// How much memory JSON text may take once it is read into a `serde_json::Value`. Default 64 MiB.
    /// The text itself is bounded by `message`, but small text can take ten times its size.
    pub decoded: usize,
    /// How many agent requests may be open at once, those whose response is being sent included. Default 1024.
    /// Beyond it a request is refused with an error response.
    pub open_requests: usize,
    /// How many bytes the parameters of all open agent requests may take. Default 64 MiB.
    /// Beyond it a request is refused with an error response.
    pub open_request_bytes: usize,
    /// How many responses to agent requests are posted at once. Default 32. The others wait.
    pub response_posts: usize,
    /// How many refusals may wait to be posted. Default 1024.
    /// Beyond it a request gets no response, and [`Event::ResponseLost`](crate::Event::ResponseLost) reports it.
    pub refusals: usize,
    /// How many cookies are stored. Default 50. Beyond it the oldest is removed.
    pub cookies: usize,
    /// How many bytes of messages are held while it is unknown whether they are backlog: for a moment behind the first
    /// response, on servers that do not echo responses. Default 64 MiB. Beyond it they are delivered as
    /// [`Origin::Replayed`](crate::Origin::Replayed), and agent requests among them get no response.
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
            refusals: 1024,
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
    refusals: usize,
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
});
