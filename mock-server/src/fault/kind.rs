use std::time::Duration;

use super::rule::Rule;

/// One thing that goes wrong.
///
/// A fault by itself applies to every request or stream it fits, until [`crate::MockServer::clear_faults`].
/// [`Fault::times`], [`Fault::skip`], [`Fault::on_method`], [`Fault::on_verb`] and [`Fault::on_path`] narrow
/// it down:
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
    /// A POST is answered with this status, whatever the server would have said.
    PostStatus {
        /// The HTTP status.
        status: u16,
        /// Whether the message reaches the server all the same.
        execute: bool,
        /// Body, content type and headers; an empty body when absent.
        reply: Option<Reply>,
    },
    /// A POST is executed and never answered.
    PostHangs,
    /// The connection is reset before the server reads the body; the message is not executed.
    ///
    /// With a method filter the server has to read the body to know the method; it is not executed either way.
    PostResetBeforeRead,
    /// The connection is reset after the body was read.
    PostResetAfterRead {
        /// Whether the message is executed.
        execute: bool,
    },
    /// A POST is executed and answered with 202 at once; the response comes on the stream only.
    AnswerOnStreamOnly,
    /// The response comes in the body only, not on the stream.
    AnswerInBodyOnly,
    /// Nothing new passes on any stream until the body of this POST was sent, and for `delay` longer.
    BodyBeforeUpdates {
        /// How long the streams stay held after the body was handed over.
        delay: Duration,
    },
    /// A POST is executed and answered with 200 and a page of HTML.
    HtmlBody,
    /// A stream ends after this many bytes of its body.
    StreamCutAt {
        /// How many bytes of the body are sent.
        byte: u64,
        /// How the stream ends there.
        cut: Cut,
    },
    /// Opening a stream is answered with this status and an empty body.
    StreamRefused {
        /// The HTTP status.
        status: u16,
    },
    /// A stream is accepted with its headers and ends cleanly without a byte.
    StreamAcceptThenClose,
    /// A stream is accepted and never sends a byte, not even a heartbeat.
    StreamStall,
    /// A stream goes silent after this many bytes, heartbeats included, and stays open.
    StreamStallAt {
        /// How many bytes of the body are sent.
        byte: u64,
    },
    /// The event with this id is not sent.
    Hole {
        /// The id that is left out.
        id: u64,
    },
    /// The event with this id is sent twice in a row.
    Repeat {
        /// The id that is doubled.
        id: u64,
    },
    /// At once: ids count from 1 again and the ring is forgotten, while open streams stay open.
    SequenceReset,
    /// At once: so many messages are published in one step that the ring loses all it held before.
    RingOverflow,
    /// At once: the ring is filled with old responses whose ids are 0 to `count`, and with an old
    /// permission request that was answered long ago.
    StaleRing {
        /// The highest id among the old responses.
        count: u64,
    },
    /// At once: one notification whose text has this many bytes.
    OversizeEvent {
        /// The size of the text.
        bytes: usize,
    },
    /// A stream starts with a `data:` line of this many bytes that never ends, and nothing else.
    UnterminatedEvent {
        /// The size of the line so far.
        bytes: usize,
    },
    /// Line ends of a stream.
    LineEnding(LineEnding),
    /// A stream starts with a byte order mark.
    Bom,
    /// A stream is sent in chunks of this many bytes, each flushed by itself.
    ChunkSize(usize),
    /// A stream starts with a `retry:` field of this many milliseconds.
    Retry(u64),
    /// Opening a stream is answered with 200 and a page of HTML.
    HtmlStream,
    /// At once: an event whose data is this JSON text, which need not be an object.
    NonObjectEvent(String),
    /// At once: an event whose data is this text, which need not be JSON.
    MalformedEvent(String),
    /// At once: an event whose data holds a byte that is not UTF-8 inside a JSON string.
    InvalidUtf8Event,
    /// Any request is answered with 307 to this place.
    Redirect {
        /// The `Location` header.
        to: String,
    },
    /// The token is refused after this many requests were let in with it.
    ///
    /// [`crate::MockServer::accept_token`] names the token that is valid from then on.
    TokenExpiresAfter {
        /// How many requests still pass.
        requests: usize,
    },
    /// No request is looked at until this time has passed since the fault was injected.
    SlowStart {
        /// How long the server takes to be ready.
        delay: Duration,
    },
    /// A DELETE is executed and never answered.
    DeleteHangs,
    /// The scripted agent asks for a permission and ends its turn only by a cancel.
    PermissionWaitsForCancel,
    /// The scripted agent uses an unknown session update, content block, notification, permission option
    /// kind and stop reason in one turn.
    UnknownVariants,
}

impl Fault {
    /// Answers a POST with `status`, without executing it.
    pub fn post_status(status: u16) -> Self {
        Self::PostStatus { status, execute: false, reply: None }
    }

    /// Answers a POST with `status`, after executing it.
    pub fn post_status_executed(status: u16) -> Self {
        Self::PostStatus { status, execute: true, reply: None }
    }

    /// Limits the fault to the first `count` requests or streams it fits.
    pub fn times(self, count: usize) -> Rule {
        Rule::new(self).times(count)
    }

    /// Lets the first `count` requests or streams pass.
    pub fn skip(self, count: usize) -> Rule {
        Rule::new(self).skip(count)
    }

    /// Limits the fault to messages with this JSON-RPC method.
    pub fn on_method(self, method: impl Into<String>) -> Rule {
        Rule::new(self).on_method(method)
    }

    /// Limits the fault to requests with this HTTP verb.
    pub fn on_verb(self, verb: impl Into<String>) -> Rule {
        Rule::new(self).on_verb(verb)
    }

    /// Limits the fault to requests whose path starts with `prefix`.
    pub fn on_path(self, prefix: impl Into<String>) -> Rule {
        Rule::new(self).on_path(prefix)
    }

    /// The name of the variant, as [`crate::MockServer::faults_fired`] counts it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::PostStatus { .. } => "PostStatus",
            Self::PostHangs => "PostHangs",
            Self::PostResetBeforeRead => "PostResetBeforeRead",
            Self::PostResetAfterRead { .. } => "PostResetAfterRead",
            Self::AnswerOnStreamOnly => "AnswerOnStreamOnly",
            Self::AnswerInBodyOnly => "AnswerInBodyOnly",
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
            Self::RingOverflow => "RingOverflow",
            Self::StaleRing { .. } => "StaleRing",
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

    /// Whether the fault acts at the moment it is injected, on the logs that exist then.
    pub(crate) fn acts_at_once(&self) -> bool {
        matches!(
            self,
            Self::SequenceReset
                | Self::RingOverflow
                | Self::StaleRing { .. }
                | Self::OversizeEvent { .. }
                | Self::NonObjectEvent(_)
                | Self::MalformedEvent(_)
                | Self::InvalidUtf8Event
        )
    }
}

/// What a forced status says besides its number.
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
    /// The connection closes without the final chunk, as when a proxy dies.
    #[default]
    Dropped,
    /// The body ends as if it were complete.
    Clean,
    /// The connection is reset.
    Reset,
}

/// Line ends of an event stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LineEnding {
    /// A line feed.
    #[default]
    Lf,
    /// Carriage return and line feed.
    CrLf,
    /// A carriage return.
    Cr,
    /// The three kinds in turn.
    Mixed,
}
