//! Reads a part of the server's stream again.

use std::fmt;
use std::sync::Arc;

use acp_http_client as wire;
use futures::future::BoxFuture;
use serde_json::Value;

use self::opened::Opened;
use self::records::id_of_text;
pub(super) use self::records::{id_text, request_record, response_record};
use super::lifecycle::Inner;
use super::stream::{LogEntry, LogRecord, StreamPosition};
use crate::event::{Gap, Origin};
use crate::{Error, Event};

mod opened;
mod records;

/// Reads the server's stream after a position, over a separate HTTP stream.
///
/// It returns everything that the server's replay buffer has after the position: updates, agent requests and responses
/// of all sessions and clients. If the position belongs to another incarnation of the server,
/// [`Event::ServerRestarted`] comes first, and the entries start at the beginning of the replay buffer. If the server
/// no longer has some events, it returns a [`LogRecord::Missing`] instead.
#[must_use = "nothing is read before the first call of `next`"]
pub struct StreamReader {
    state: State,
    from: StreamPosition,
    to: Option<u64>,
    /// Whether the event at the start position was checked.
    is_verified: bool,
    /// Whether that event is the expected one.
    is_same: Option<bool>,
}

enum State {
    Opening(BoxFuture<'static, Result<Opened, Error>>),
    Reading(Box<Opened>),
    /// Everything was read. The stream stays open for the agent requests that were read from it.
    Read(Box<Opened>),
    Failed,
}

impl StreamReader {
    /// Reads the endpoint of the connection, or the one at `path` of the same server.
    pub(crate) fn new(
        inner: Arc<Inner>,
        path: Option<String>,
        from: StreamPosition,
        to: Option<u64>,
    ) -> Self {
        let opening = async move {
            let connection = inner.connection().await?;
            Opened::new(connection, path, from)
        };
        Self {
            state: State::Opening(Box::pin(opening)),
            from,
            to,
            is_verified: from.offset == 0,
            is_same: None,
        }
    }

    /// Returns the next entry, or `None` at the end. The end is the event with the number `to`, or the last event that
    /// the server had when reading started.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server does not number its events. [`Error::NotConnected`] without a connection.
    /// After an error, it returns `None`.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn next(&mut self) -> Option<Result<LogEntry, Error>> {
        loop {
            match &mut self.state {
                State::Opening(opening) => match opening.await {
                    Ok(opened) => self.state = State::Reading(Box::new(opened)),
                    Err(error) => {
                        self.state = State::Failed;
                        return Some(Err(error));
                    }
                },
                State::Reading(opened) => {
                    let entry = match opened.next().await {
                        Ok(Some(entry)) => entry,
                        // The same server has the event at the position, or a later one, or reports a gap.
                        Ok(None) if !self.is_verified && opened.is_read_to_probe() => {
                            return Some(Ok(self.restarted()));
                        }
                        Ok(None) => {
                            self.finish();
                            return None;
                        }
                        Err(error) => {
                            self.state = State::Failed;
                            return Some(Err(error));
                        }
                    };
                    if let Some(entry) = self.checked(entry) {
                        return Some(Ok(entry));
                    }
                }
                State::Read(_) | State::Failed => return None,
            }
        }
    }

    /// Returns whether the event at the start position is unchanged.
    ///
    /// If it is, the server has not restarted since it sent that event. Returns `None` until the event was read, and
    /// if the server no longer has it.
    #[must_use]
    pub fn is_same_stream(&self) -> Option<bool> {
        self.is_same
    }

    /// Passes an agent request that this reader has read to this client's handlers. Returns `false` if it has not read
    /// the request.
    ///
    /// Use it for a session whose owner has exited. The reader must stay alive until the request has a response.
    pub async fn offer(&mut self, request_id: &str) -> bool {
        let Some(opened) = self.opened() else { return false };
        let Some((request, responder)) = opened.take_request(request_id) else { return false };
        let connection = Arc::clone(&opened.connection);
        connection.serve(request, responder).await;
        true
    }

    /// Adds an agent request that another client received, and that the server no longer replays, as if this reader had
    /// read it. Returns `false` if nothing was read yet.
    ///
    /// Use it for an open agent request that an earlier process has stored. If the agent no longer waits for the
    /// response, the response has no effect.
    pub fn add_request(&mut self, request_id: &str, method: &str, params: &Value) -> bool {
        let (Some(opened), Some(id)) = (self.opened(), id_of_text(request_id)) else { return false };
        opened.wire.control().serve_agent_request(id, method, params);
        true
    }

    /// Responds to an agent request that this reader has read. Returns `false` if it has not read the request, or if
    /// the request already has a response.
    pub fn respond(&mut self, request_id: &str, result: &Value) -> bool {
        let request = self.opened().and_then(|opened| opened.take_request(request_id));
        request.is_some_and(|(_, responder)| responder.respond(result))
    }

    /// Waits for the next entry after [`next`](Self::next) has reached the end. Returns `None` if `next` has not
    /// reached the end, or if the stream has ended.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn follow(&mut self) -> Option<LogEntry> {
        let State::Read(opened) = &mut self.state else { return None };
        loop {
            let event = opened.events.recv().await?;
            opened.keep_requests();
            if let Some(entry) = opened.read(event) {
                return Some(entry);
            }
        }
    }

    /// Cancels an agent request that this reader has read: the agent receives the response "cancelled".
    pub fn cancel_request(&mut self, request_id: &str) {
        // Dropping the responder cancels the request.
        drop(self.opened().and_then(|opened| opened.take_request(request_id)));
    }

    /// Cancels the turn of a session on the endpoint that is read.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if nothing was read yet or reading failed. Otherwise the error of sending the
    /// notification.
    pub async fn cancel_turn(&mut self, session: &str) -> Result<(), Error> {
        let Some(opened) = self.opened() else { return Err(Error::NotConnected) };
        let notification = wire::schema::v1::CancelNotification::new(session.to_owned());
        opened.wire.cancel(notification).await.map_err(Error::from_wire)
    }

    fn opened(&mut self) -> Option<&mut Opened> {
        match &mut self.state {
            State::Reading(opened) | State::Read(opened) => Some(opened),
            State::Opening(_) | State::Failed => None,
        }
    }

    fn finish(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Failed) {
            State::Reading(opened) => State::Read(opened),
            state => state,
        };
    }

    /// The server is another one: everything that it has is read.
    fn restarted(&mut self) -> LogEntry {
        (self.is_verified, self.is_same) = (true, Some(false));
        if let State::Reading(opened) = &self.state {
            let reopened = opened.reopened();
            self.state = State::Opening(Box::pin(std::future::ready(reopened)));
        }
        LogEntry::of_event(&Event::ServerRestarted, None)
    }

    /// Checks that the stream is the expected one, and ends after the last position.
    fn checked(&mut self, entry: LogEntry) -> Option<LogEntry> {
        let entry = match (&entry.record, entry.position) {
            (LogRecord::Missing(gap), _) if !self.is_verified => {
                // The event at the position is gone too, and whether it was the same cannot be known.
                self.is_verified = true;
                let from = gap.from.max(self.from.offset.saturating_add(1));
                let missing = LogRecord::Missing(Gap { from, to: gap.to });
                (from <= gap.to).then(|| LogEntry::new(missing, None, Origin::Replayed))?
            }
            (LogRecord::Event(Event::ServerRestarted), _) => {
                (self.is_verified, self.is_same) = (true, Some(false));
                entry
            }
            (_, Some(position)) if !self.is_verified => {
                self.is_verified = true;
                if position.is_same_event(&self.from) {
                    self.is_same = Some(true);
                    return None;
                }
                if position.offset > self.from.offset {
                    // The server sends the events after the position, as requested.
                    entry
                } else {
                    return Some(self.restarted());
                }
            }
            _ => entry,
        };
        if let (LogRecord::Missing(gap), Some(to)) = (&entry.record, self.to)
            && gap.to >= to
        {
            self.finish();
            let missing = LogRecord::Missing(Gap { from: gap.from, to });
            return (gap.from <= to).then(|| LogEntry::new(missing, None, Origin::Replayed));
        }
        let offset = entry.position.map(|position| position.offset);
        match (offset, self.to) {
            (Some(offset), Some(to)) if offset > to => {
                self.finish();
                None
            }
            (Some(offset), Some(to)) if offset == to => {
                self.finish();
                Some(entry)
            }
            _ => Some(entry),
        }
    }
}

impl fmt::Debug for StreamReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamReader").field("from", &self.from).field("to", &self.to).finish_non_exhaustive()
    }
}
