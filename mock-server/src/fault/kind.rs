use std::time::Duration;

use super::rule::Rule;

/// A fault that the server injects.
///
/// By default a fault applies to every matching request or stream, until [`crate::MockServer::clear_faults`].
/// [`Fault::times`], [`Fault::skip`], [`Fault::on_method`], [`Fault::on_verb`] and [`Fault::on_path`]
/// restrict it:
///
/// ```
/// use mock_server::Fault;
///
/// let rule = Fault::PostHangs.on_method("session/prompt").skip(1).times(1);
/// assert_eq!(rule.fault().name(), "PostHangs");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// Responds to a POST with this status instead of the normal response.
    PostStatus {
        /// The HTTP status.
        status: u16,
        /// Whether the message is executed anyway.
        execute: bool,
        /// Body, content type and headers; an empty body if absent.
        reply: Option<Reply>,
    },
    /// Executes a POST and never responds.
    PostHangs,
    /// Resets the connection before the server reads the body. The message is not executed.
    ///
    /// With a JSON-RPC method filter, the server must read the body to know the method. The message is not
    /// executed in this case either.
    PostResetBeforeRead,
    /// Resets the connection after the body was read.
    PostResetAfterRead {
        /// Whether the message is executed.
        execute: bool,
    },
    /// Executes a POST and responds with 202 immediately. The JSON-RPC response arrives only on the stream.
    ResponseOnStreamOnly,
    /// Sends the JSON-RPC response only in the body, not on the stream.
    ResponseInBodyOnly,
    /// Holds back all streams until `delay` after the body of this POST was sent.
    BodyBeforeUpdates {
        /// How long the streams are held back after the body was sent.
        delay: Duration,
    },
    /// Executes a POST and responds with 200 and an HTML page.
    HtmlBody,
    /// Ends a stream after this many bytes of its body.
    StreamCutAt {
        /// How many bytes of the body are sent.
        byte: u64,
        /// How the stream ends there.
        cut: Cut,
    },
    /// Responds with this status and an empty body when a stream is opened.
    StreamRefused {
        /// The HTTP status.
        status: u16,
    },
    /// Accepts a stream and closes it cleanly without sending a byte.
    StreamAcceptThenClose,
    /// Accepts a stream and never sends a byte, not even a heartbeat.
    StreamStall,
    /// Sends nothing more on a stream after this many bytes, and keeps it open.
    StreamStallAt {
        /// How many bytes of the body are sent.
        byte: u64,
    },
    /// Skips the event with this id.
    Hole {
        /// The id to skip.
        id: u64,
    },
    /// Sends the event with this id twice in a row.
    Repeat {
        /// The id to repeat.
        id: u64,
    },
    /// Clears the replay buffer and restarts event ids at 1, immediately. Open streams stay open.
    SequenceReset,
    /// Publishes more messages than the replay buffer holds, immediately, so that it drops all earlier ones.
    ReplayBufferOverflow,
    /// Fills the replay buffer with old messages, immediately.
    ///
    /// The messages are responses with the ids 0 to `count`, and a permission request that got its response long ago.
    StaleReplayBuffer {
        /// The highest id among the old responses.
        count: u64,
    },
    /// Publishes one notification whose text has this many bytes, immediately.
    OversizeEvent {
        /// The size of the text in bytes.
        bytes: usize,
    },
    /// Sends only an unterminated `data:` line of this many bytes on a stream.
    UnterminatedEvent {
        /// The size of the incomplete line in bytes.
        bytes: usize,
    },
    /// Sets the line endings of a stream.
    LineEnding(LineEnding),
    /// Starts a stream with a byte order mark.
    Bom,
    /// Sends a stream in chunks of this many bytes, each flushed separately.
    ChunkSize(usize),
    /// Starts a stream with a `retry:` field of this many milliseconds.
    Retry(u64),
    /// Responds with 200 and an HTML page when a stream is opened.
    HtmlStream,
    /// Publishes an event with this JSON text, immediately. The text need not be an object.
    NonObjectEvent(String),
    /// Publishes an event whose data is this text, immediately. The text need not be JSON.
    MalformedEvent(String),
    /// Publishes an event with invalid UTF-8 inside a JSON string, immediately.
    InvalidUtf8Event,
    /// Responds to any request with a 307 redirect to this URL.
    Redirect {
        /// The `Location` header.
        to: String,
    },
    /// Rejects the token after it was accepted for this many requests.
    ///
    /// [`crate::MockServer::accept_token`] sets the token that is valid from then on.
    TokenExpiresAfter {
        /// How many requests are still accepted.
        requests: usize,
    },
    /// Handles no request until this time has passed since the injection.
    SlowStart {
        /// How long the server takes to become ready.
        delay: Duration,
    },
    /// Executes a DELETE and never responds.
    DeleteHangs,
    /// The scripted agent requests a permission and ends its turn only when cancelled.
    PermissionWaitsForCancel,
    /// The scripted agent uses unknown protocol values in one turn.
    ///
    /// These are a session update, a content block, a notification, a kind of permission option and a stop reason.
    UnknownVariants,
}

impl Fault {
    /// Responds to a POST with `status` without executing it.
    pub fn post_status(status: u16) -> Self {
        Self::PostStatus { status, execute: false, reply: None }
    }

    /// Executes a POST and responds with `status`.
    pub fn post_status_executed(status: u16) -> Self {
        Self::PostStatus { status, execute: true, reply: None }
    }

    /// Restricts the fault to the first `count` matching requests or streams.
    pub fn times(self, count: usize) -> Rule {
        Rule::new(self).times(count)
    }

    /// Skips the first `count` matching requests or streams.
    pub fn skip(self, count: usize) -> Rule {
        Rule::new(self).skip(count)
    }

    /// Restricts the fault to messages with this JSON-RPC method.
    pub fn on_method(self, method: impl Into<String>) -> Rule {
        Rule::new(self).on_method(method)
    }

    /// Restricts the fault to requests with this HTTP method.
    pub fn on_verb(self, verb: impl Into<String>) -> Rule {
        Rule::new(self).on_verb(verb)
    }

    /// Restricts the fault to requests whose path starts with `prefix`.
    pub fn on_path(self, prefix: impl Into<String>) -> Rule {
        Rule::new(self).on_path(prefix)
    }

    /// Returns the name of the variant, as counted by [`crate::MockServer::faults_fired`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::PostStatus { .. } => "PostStatus",
            Self::PostHangs => "PostHangs",
            Self::PostResetBeforeRead => "PostResetBeforeRead",
            Self::PostResetAfterRead { .. } => "PostResetAfterRead",
            Self::ResponseOnStreamOnly => "ResponseOnStreamOnly",
            Self::ResponseInBodyOnly => "ResponseInBodyOnly",
            Self::BodyBeforeUpdates { .. } => "BodyBeforeUpdates",
            Self::HtmlBody => "HtmlBody",
            Self::StreamCutAt { .. } => "StreamCutAt",
            Self::StreamRefused { .. } => "StreamRefused",
            Self::StreamAcceptThenClose => "StreamAcceptThenClose",
            Self::StreamStall => "StreamStall",
            Self::StreamStallAt { .. } => "StreamStallAt",
            Self::Hole { .. } => "Hole",
            Self::Repeat { .. } => "Repeat",
            Self::SequenceReset => "SequenceReset",
            Self::ReplayBufferOverflow => "ReplayBufferOverflow",
            Self::StaleReplayBuffer { .. } => "StaleReplayBuffer",
            Self::OversizeEvent { .. } => "OversizeEvent",
            Self::UnterminatedEvent { .. } => "UnterminatedEvent",
            Self::LineEnding(_) => "LineEnding",
            Self::Bom => "Bom",
            Self::ChunkSize(_) => "ChunkSize",
            Self::Retry(_) => "Retry",
            Self::HtmlStream => "HtmlStream",
            Self::NonObjectEvent(_) => "NonObjectEvent",
            Self::MalformedEvent(_) => "MalformedEvent",
            Self::InvalidUtf8Event => "InvalidUtf8Event",
            Self::Redirect { .. } => "Redirect",
            Self::TokenExpiresAfter { .. } => "TokenExpiresAfter",
            Self::SlowStart { .. } => "SlowStart",
            Self::DeleteHangs => "DeleteHangs",
            Self::PermissionWaitsForCancel => "PermissionWaitsForCancel",
            Self::UnknownVariants => "UnknownVariants",
        }
    }

    /// Whether the fault acts immediately on injection, on the logs that exist then.
    pub(crate) fn acts_at_once(&self) -> bool {
        matches!(
            self,
            Self::SequenceReset
                | Self::ReplayBufferOverflow
                | Self::StaleReplayBuffer { .. }
                | Self::OversizeEvent { .. }
                | Self::NonObjectEvent(_)
                | Self::MalformedEvent(_)
                | Self::InvalidUtf8Event
        )
    }
}

/// The body and headers of a forced status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    /// The body; empty by default.
    pub body: String,
    /// The content type; none by default.
    pub content_type: Option<String>,
    /// Further headers, such as `retry-after`.
    pub headers: Vec<(String, String)>,
}

/// How a stream is cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cut {
    /// The connection closes without the final chunk, as if a proxy crashed.
    #[default]
    Dropped,
    /// The body ends as if it were complete.
    Clean,
    /// The connection is reset.
    Reset,
}

/// The line endings of an event stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LineEnding {
    /// A line feed.
    #[default]
    Lf,
    /// Carriage return and line feed.
    CrLf,
    /// A carriage return.
    Cr,
    /// All three kinds in turn.
    Mixed,
}
