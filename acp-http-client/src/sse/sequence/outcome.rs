//! The result of passing an event to a numbered stream.

/// The output, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sequenced<T> {
    /// An event that was not delivered before.
    Item(T),
    /// An event without an identifying id, with the content of an event of an earlier opening: it may be new.
    Alike(T),
    /// An event of a gap that was reported before.
    Late(T),
    /// The open stream continues, and has not shown that the server is still the same one.
    Unproven,
    /// Numbers that the server no longer has, both ends included.
    Gap { from: u64, to: u64 },
    /// The numbering began again: this is another incarnation of the server.
    Restarted,
}

/// What the reader does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    /// Events are missing that another request may fetch: open the stream again from `resume_point`.
    Reopen,
}

/// What happened to an event.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::sse) enum Accepted<T> {
    Taken(Flow),
    /// The event contradicts the contract of a sequence; it is returned.
    NotASequence(T),
}
