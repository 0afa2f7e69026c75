//! What a numbered stream makes of an event.

/// What comes out, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sequenced<T> {
    /// An event never given before.
    Item(T),
    /// An event that nothing identifies, with the content of one that an earlier opening brought: it may be new.
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
    /// Something is missing that another request may bring: open the stream again from `resume_point`.
    Reopen,
}

/// What became of an event.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::sse) enum Accepted<T> {
    Taken(Flow),
    /// The event contradicts the contract of a sequence; it is given back.
    NotASequence(T),
}
