//! Bounds on everything that a server or an agent can send.

use crate::Error;
use crate::convert::decoded::decoded_size;

/// Limits on the data that a client accepts from a server.
///
/// Every limit has a default that fits real agents. Data that exceeds a limit causes a typed error or an event; it
/// never exhausts the memory of the program.
///
/// Body sizes are measured as text. Decoded JSON takes more memory: a body may take up to
/// [`expansion`](Self::expansion) times its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest response to a health check, in bytes. Default 64 KiB.
    pub health: usize,
    /// The largest JSON response of any other control call, in bytes. Default 64 MiB.
    pub control: usize,
    /// How many bytes of the body of a failed HTTP response are read. Default 64 KiB. The rest is dropped.
    pub error_body: usize,
    /// The largest file that is read into memory as a whole, in bytes. Default 256 MiB. Use
    /// [`Files::open`](crate::control::Files::open) for larger files.
    pub file: usize,
    /// The largest screenshot of a desktop, in bytes. Default 64 MiB.
    pub screenshot: usize,
    /// The largest message of a connection, in bytes: a response, an update or a request. Default 64 MiB.
    pub message: usize,
    /// The largest turn that is collected as a whole, in bytes. Default 256 MiB. Further updates are dropped and
    /// listed as missing. A stream of updates has no such limit.
    pub turn: usize,
    /// The largest [snapshot](crate::session::SessionSnapshot) of a session, in bytes once decoded. Default 16 MiB. A
    /// part that would exceed it is ignored and keeps its earlier value.
    pub snapshot: usize,
    /// The maximum total size of all unused sessions, in bytes. Default 128 MiB. A session is unused if it has no
    /// handle, subscriber, turn or pending call. Beyond the limit, snapshots and unread events of unused sessions are
    /// dropped, those of ended sessions first.
    pub unused_session_bytes: usize,
    /// The maximum number of stored sessions that this client has neither created nor referred to by id. Default
    /// 1,024. Beyond the limit, the events of the oldest are dropped. One is always stored.
    pub unnamed_sessions: usize,
    /// The maximum total size of all such sessions, in bytes. Default 64 MiB. Their size is measured whenever a
    /// quarter of that has arrived.
    pub unnamed_session_bytes: usize,
    /// The largest page in a listing of sessions, in bytes. Default 16 MiB.
    pub session_page: usize,
    /// The largest listing of sessions, all pages together, in bytes. Default 64 MiB.
    pub session_list: usize,
    /// The maximum number of pages in a listing of sessions. Default 1,000.
    pub list_pages: usize,
    /// The maximum ratio of decoded size to body limit. Default 8.
    pub expansion: usize,
    /// How many agent requests may be open at the same time. Further requests get an error response. Default 1,024.
    pub open_requests: usize,
    /// How many bytes all open agent requests together may take once decoded. Further requests get an error response.
    /// Default 64 MiB.
    pub open_request_bytes: usize,
    /// How many responses to agent requests are sent at the same time. Further responses wait. Default 32.
    pub response_posts: usize,
    /// How many bytes all responses to agent requests together may take until they are sent. A response that exceeds it
    /// is replaced by an error response. Default 128 MiB.
    pub response_bytes: usize,
    /// How many refusals of agent requests may wait to be sent. Further requests get no response. Default 1,024.
    pub refusals: usize,
    /// How many [unclaimed requests](crate::requests::UnclaimedRequest) can be claimed at the same time. When another
    /// one arrives, the oldest can no longer be claimed. Default 64.
    pub unclaimed_requests: usize,
    /// The longest session id, in bytes. Default 1 KiB.
    pub session_id: usize,
    /// The longest id of an event, an agent request or a connection, and the longest name of a method, in bytes. It also
    /// applies to the session id in an agent request. Default 1 KiB.
    pub id: usize,
    /// How many cookies of the server are stored. Further ones replace the oldest. Default 50.
    pub cookies: usize,
    /// How many bytes of received messages may wait for a connection's event loop. Further ones are dropped and reported
    /// as [`Event::Lagged`](crate::Event::Lagged). Default 64 MiB.
    pub subscriber: usize,
    /// How many bytes of messages are held while it is unknown whether they are older than the connection. Further ones
    /// count as older. Default 64 MiB.
    pub backlog: usize,
    /// The longest id of a process in the first message of its terminal, in bytes. Default 1 KiB.
    pub process_id: usize,
    /// The largest message of a process's terminal, in bytes. Default 4 MiB.
    pub terminal_message: usize,
    /// The largest event in the log stream of a process, in bytes. Its field names count too. Default 4 MiB.
    pub log_event: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            health: 64 << 10,
            control: 64 << 20,
            error_body: 64 << 10,
            file: 256 << 20,
            screenshot: 64 << 20,
            message: 64 << 20,
            turn: 256 << 20,
            snapshot: 16 << 20,
            unused_session_bytes: 128 << 20,
            unnamed_sessions: 1_024,
            unnamed_session_bytes: 64 << 20,
            session_page: 16 << 20,
            session_list: 64 << 20,
            list_pages: 1_000,
            expansion: 8,
            open_requests: 1_024,
            open_request_bytes: 64 << 20,
            response_posts: 32,
            response_bytes: 128 << 20,
            refusals: 1_024,
            unclaimed_requests: 64,
            session_id: 1 << 10,
            id: 1 << 10,
            cookies: 50,
            subscriber: 64 << 20,
            backlog: 64 << 20,
            process_id: 1 << 10,
            terminal_message: 4 << 20,
            log_event: 4 << 20,
        }
    }
}

/// Gives each limit a setter of the same name.
macro_rules! setters {
    ($($name:ident: $what:literal,)*) => {
        impl Limits {
            $(
                #[doc = concat!("Sets ", $what, ".")]
                #[must_use]
                pub fn $name(mut self, bound: usize) -> Self {
                    self.$name = bound;
                    self
                }
            )*
        }
    };
}

setters! {
    health: "the largest response to a health check, in bytes",
    control: "the largest JSON response of any other control call, in bytes",
    error_body: "how many bytes of the body of a failed HTTP response are read",
    file: "the largest file that is read into memory as a whole, in bytes",
    screenshot: "the largest screenshot of a desktop, in bytes",
    message: "the largest message of a connection, in bytes",
    turn: "the largest turn that is collected as a whole, in bytes",
    snapshot: "the largest snapshot of a session, in bytes once decoded",
    unused_session_bytes: "the maximum total size of all unused sessions, in bytes",
    unnamed_sessions: "the maximum number of stored sessions that this client has neither created nor referred to by id",
    unnamed_session_bytes: "the maximum total size of all sessions that this client has neither created nor referred to by id, in bytes",
    session_page: "the largest page in a listing of sessions, in bytes",
    session_list: "the largest listing of sessions, all pages together, in bytes",
    list_pages: "the maximum number of pages in a listing of sessions",
    expansion: "the maximum ratio of decoded size to body limit",
    open_requests: "how many agent requests may be open at the same time",
    open_request_bytes: "how many bytes all open agent requests together may take once decoded",
    response_posts: "how many responses to agent requests are sent at the same time",
    response_bytes: "how many bytes all responses to agent requests together may take until they are sent",
    refusals: "how many refusals of agent requests may wait to be sent",
    unclaimed_requests: "how many unclaimed requests can be claimed at the same time",
    session_id: "the longest session id, in bytes",
    id: "the longest id of an event, an agent request or a connection, and the longest name of a method, in bytes",
    cookies: "how many cookies of the server are stored",
    subscriber: "how many bytes of received messages may wait for a connection's event loop",
    backlog: "how many bytes of messages are held while it is unknown whether they are older than the connection",
    process_id: "the longest id of a process in the first message of its terminal, in bytes",
    terminal_message: "the largest message of a process's terminal, in bytes",
    log_event: "the largest event in the log stream of a process, in bytes",
}

/// The kinds of bodies with separate limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyKind {
    Health,
    Control,
    Message,
    SessionPage,
}

impl Limits {
    /// The largest text of a kind.
    pub(crate) fn text(&self, kind: BodyKind) -> usize {
        match kind {
            BodyKind::Health => self.health,
            BodyKind::Control => self.control,
            BodyKind::Message => self.message,
            BodyKind::SessionPage => self.session_page,
        }
    }

    /// Checks the size of a body as text and once decoded. Returns the decoded size.
    pub(crate) fn check(&self, kind: BodyKind, what: &str, text: &[u8]) -> Result<usize, Error> {
        let limit = self.text(kind);
        if text.len() > limit {
            return Err(Error::MessageTooLarge { limit, seen: text.len(), event_id: None });
        }
        let limit = limit.saturating_mul(self.expansion);
        let size = decoded_size(text);
        if size > limit {
            return Err(Error::DecodedTooLarge { what: what.to_owned(), limit, size });
        }
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::{BodyKind, Limits};
    use crate::Error;
    use crate::convert::decoded::decoded_size;

    #[test]
    fn a_body_is_accepted_up_to_its_bounds_and_not_above() {
        let text = br#"{"a":[0,0,0,0],"b":"text"}"#;
        let decoded = decoded_size(text);
        assert!(decoded > text.len());
        type Set = fn(Limits, usize) -> Limits;
        let kinds: [(BodyKind, Set); 4] = [
            (BodyKind::Health, Limits::health),
            (BodyKind::Control, Limits::control),
            (BodyKind::Message, Limits::message),
            (BodyKind::SessionPage, Limits::session_page),
        ];
        for (kind, set) in kinds {
            for (bound, fits) in [(text.len() - 1, false), (text.len(), true), (text.len() + 1, true)] {
                let limits = set(Limits::default().expansion(1_000), bound);
                match limits.check(kind, "test", text) {
                    Ok(size) => assert!(fits && size == decoded, "{kind:?} {bound}"),
                    Err(Error::MessageTooLarge { limit, seen, .. }) => {
                        assert!(!fits && limit == bound && seen == text.len());
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
            for (bound, fits) in [(decoded - 1, false), (decoded, true), (decoded + 1, true)] {
                let limits = set(Limits::default().expansion(1), bound);
                match limits.check(kind, "test", text) {
                    Ok(size) => assert!(fits && size == decoded, "{kind:?} {bound}"),
                    Err(Error::DecodedTooLarge { limit, size, .. }) => {
                        assert!(!fits && limit == bound && size == decoded);
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
    }
}
