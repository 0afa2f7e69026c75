//! The streams of the model server and their replay buffers.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::time::Instant;

use super::{Headers, Server};
use crate::sim::{
    ledger::{Emitted, StreamKey},
    plan::{EventIds, Model, Unknown},
};

/// Where a reader of a stream stands.
#[derive(Debug)]
pub(in crate::sim) struct Cursor {
    pub(in crate::sim) stream: StreamKey,
    pub(super) incarnation: u32,
    pub(super) position: u64,
    pub(super) reader: u64,
    /// Whether it has brought an event.
    pub(super) sent: bool,
}

/// What a reader of a stream finds.
#[derive(Debug)]
pub(in crate::sim) enum Next {
    Event {
        index: usize,
        bytes: Bytes,
    },
    Nothing,
    /// The server is gone, or another client reads.
    Gone,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) index: usize,
    pub(super) id: Option<String>,
    pub(super) bytes: Bytes,
}

#[derive(Debug, Default)]
pub(super) struct Channel {
    pub(super) last: u64,
    pub(super) buffer: VecDeque<Entry>,
    /// The reader of a stream that has one at most, and when it gave up the stream.
    pub(super) reader: Option<u64>,
}

impl Server {
    pub(super) fn stream_of(&self, session: Option<&str>) -> StreamKey {
        session.filter(|_| self.world.plan.model == Model::Official).map(str::to_owned)
    }

    pub(super) fn emit(
        &self,
        stream: StreamKey,
        session: Option<String>,
        history: Option<u64>,
        what: &str,
        text: impl FnOnce(usize) -> String,
    ) -> usize {
        let plan = &self.world.plan;
        let mut state = self.state();
        let mut ledger = self.world.ledger();
        let (index, generation) = (ledger.emitted.len(), ledger.generation);
        let text = text(index);
        let channel = state.channels.entry(stream.clone()).or_default();
        channel.last += 1;
        let number = channel.last;
        let id = match plan.ids {
            EventIds::Sequence => Some(number.to_string()),
            EventIds::Zero => Some("0".to_owned()),
            EventIds::Constant => Some("x".to_owned()),
            EventIds::TimeStamps => Some((1_700_000_000_000 + self.world.now().as_millis()).to_string()),
            EventIds::Descending => Some(1_000_000_u64.saturating_sub(number).to_string()),
            EventIds::Absent => None,
        };
        let line = id.as_ref().map(|id| format!("id: {id}\n")).unwrap_or_default();
        let bytes = Bytes::from(format!("event: message\n{line}data: {text}\n\n"));
        channel.buffer.push_back(Entry { number, index, id, bytes });
        if plan.model != Model::Official && channel.buffer.len() > plan.buffer {
            channel.buffer.pop_front();
        }
        ledger.emitted.push(Emitted {
            stream,
            number,
            generation,
            session,
            history,
            turn: None,
            at: Instant::now(),
            brought: None,
            delivered: 0,
            reported: false,
        });
        drop((state, ledger));
        self.world.note(|| format!("server: event {number} (u{index}): {what}"));
        self.changed.notify_waiters();
        index
    }

    /// Opens a stream for reading; the status if that is refused, 0 if there is no server.
    pub(in crate::sim) fn open(
        &self,
        stream: StreamKey,
        last_event_id: Option<&str>,
        headers: &Headers,
        repeat: u64,
    ) -> Result<Cursor, u16> {
        let plan = &self.world.plan;
        let mut state = self.state();
        if !state.up {
            return Err(0);
        }
        let mut ledger = self.world.ledger();
        match plan.model {
            Model::Early | Model::Official if !state.knows(headers) => return Err(404),
            Model::Released if !state.bootstrapped => return Err(404),
            _ => {}
        }
        state.next_reader += 1;
        let (incarnation, reader) = (state.incarnation, state.next_reader);
        let channel = state.channels.entry(stream.clone()).or_default();
        if plan.model == Model::Official {
            if channel.reader.is_some() {
                return Err(409);
            }
            channel.reader = Some(reader);
            ledger.floors.insert(stream.clone(), 0);
            return Ok(Cursor { stream, incarnation, position: 0, reader, sent: false });
        }
        let generation = ledger.generation;
        if ledger.opened_in.insert(stream.clone(), generation).is_some_and(|before| before != generation)
            && !plan.is_numbered()
        {
            // The ids may be those of other events now.
            ledger.excuse(&stream);
        }
        if !plan.is_numbered() && ledger.brought_in.get(&stream).is_some_and(|before| *before != generation) {
            // The client continues behind an event of the old incarnation.
            ledger.excuse(&stream);
        }
        let first = channel.buffer.front().map_or(channel.last + 1, |entry| entry.number);
        let mut position = match last_event_id {
            None => first,
            Some(id) if plan.ids == EventIds::Sequence => {
                let asked = id.parse::<u64>().map_or(first, |last| last + 1);
                let position = asked.clamp(first, channel.last + 1);
                if asked != position && !plan.is_numbered() {
                    ledger.excuse(&stream);
                } else if asked < position {
                    ledger.opened_ahead(&stream, position);
                }
                position
            }
            Some(id) => {
                let mut found = channel.buffer.iter().filter(|entry| entry.id.as_deref() == Some(id));
                let behind = found.next().map(|entry| entry.number + 1);
                if behind.is_none() || found.next().is_some() {
                    ledger.excuse(&stream);
                }
                behind.unwrap_or(match plan.unknown {
                    Unknown::Everything => first,
                    Unknown::Nothing => channel.last + 1,
                })
            }
        };
        if last_event_id.is_some() {
            position = position.saturating_sub(repeat).max(first);
            if plan.ids == EventIds::TimeStamps {
                // Events of one millisecond have one id, which identifies none of them.
                ledger.excuse(&stream);
            }
            ledger.begun.insert(stream.clone());
        } else if !ledger.begun.contains(&stream) {
            let floor = channel.buffer.front().map_or(ledger.emitted.len(), |entry| entry.index);
            ledger.floors.insert(stream.clone(), floor);
        }
        Ok(Cursor { stream, incarnation, position, reader, sent: false })
    }

    /// The next event for a reader.
    pub(in crate::sim) fn next(&self, cursor: &mut Cursor) -> Next {
        let mut state = self.state();
        if !state.up || state.incarnation != cursor.incarnation {
            return Next::Gone;
        }
        let Some(channel) = state.channels.get_mut(&cursor.stream) else { return Next::Gone };
        if self.world.plan.model == Model::Official {
            if channel.reader != Some(cursor.reader) {
                return Next::Gone;
            }
            return match channel.buffer.pop_front() {
                Some(entry) => Next::Event { index: entry.index, bytes: entry.bytes },
                None => Next::Nothing,
            };
        }
        let Some(first) = channel.buffer.front().map(|entry| entry.number) else { return Next::Nothing };
        if first > cursor.position {
            // The reader was too slow.
            self.world.disturb();
            if !self.world.plan.is_numbered() && cursor.sent {
                // Without numbers a loss within an open stream could not be seen; servers cut such a reader off.
                return Next::Gone;
            }
            cursor.position = first;
            let mut ledger = self.world.ledger();
            if !cursor.sent && !ledger.begun.contains(&cursor.stream) {
                let floor = channel.buffer.front().map_or(0, |entry| entry.index);
                ledger.floors.insert(cursor.stream.clone(), floor);
            }
            if !self.world.plan.is_numbered() {
                ledger.excuse(&cursor.stream);
            }
        }
        let place = usize::try_from(cursor.position - first).unwrap_or(usize::MAX);
        let Some(entry) = channel.buffer.get(place) else { return Next::Nothing };
        cursor.position += 1;
        cursor.sent = true;
        Next::Event { index: entry.index, bytes: entry.bytes.clone() }
    }

    /// Whether the client has seen events of this reader: a swap among the first ones cannot be recognised.
    pub(in crate::sim) fn has_begun(&self, cursor: &Cursor) -> bool {
        cursor.sent && self.world.ledger().begun.contains(&cursor.stream)
    }

    /// The reader of a stream is gone.
    pub(in crate::sim) fn leave(&self, cursor: &Cursor) {
        let mut state = self.state();
        if let Some(channel) = state.channels.get_mut(&cursor.stream)
            && channel.reader == Some(cursor.reader)
        {
            channel.reader = None;
        }
    }
}
