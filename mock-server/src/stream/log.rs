use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

/// One published message.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// The id that a client sees. Increases by one from 1, unless the sequence was reset.
    pub(crate) id: u64,
    /// The payload, without line endings.
    pub(crate) data: Bytes,
}

/// The result of reading the log.
#[derive(Debug)]
pub(crate) enum Read {
    /// Events in order, and the position to read from next.
    Events(Vec<Event>, Position),
    /// No new events; wait for a notification.
    Nothing,
    /// The streams of this log were ended.
    Closed,
}

/// The position of a reader. Only the log creates these, so a reader can be resumed but not forged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    /// The index of the last event read, counted from the creation of the log.
    index: u64,
    /// The generation of streams that this reader belongs to.
    generation: u64,
}

/// The sequence and the replay buffer of one event stream.
///
/// Readers pull by position, so replay and live delivery are one operation: no event is lost or duplicated
/// between a snapshot and a subscription. A reader that falls behind the replay buffer continues at its
/// oldest event, and the gap shows in the ids.
///
/// The lock is a leaf: nothing else is locked, called or awaited while it is held.
#[derive(Debug)]
pub(crate) struct Log {
    /// Guards sequence, replay buffer, hold and generation together, so that each read is consistent.
    state: Mutex<State>,
    /// Notifies readers about changes. The value only distinguishes changes.
    bell: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    /// How many messages the replay buffer holds.
    capacity: usize,
    /// The messages in the replay buffer. Their indexes are contiguous.
    buffer: VecDeque<Event>,
    /// The index of the newest message.
    index: u64,
    /// The id of the newest message.
    last_id: u64,
    /// While set, readers see nothing beyond this index.
    held_at: Option<u64>,
    /// Incremented when the open streams are ended.
    generation: u64,
    /// Set if nothing more will be published: readers end after the remaining events.
    finished: bool,
}

impl Log {
    /// Creates an empty log that keeps the last `capacity` messages.
    pub(crate) fn new(capacity: usize) -> Self {
        let state = State {
            capacity: capacity.max(1),
            buffer: VecDeque::new(),
            index: 0,
            last_id: 0,
            held_at: None,
            generation: 0,
            finished: false,
        };
        Self { state: Mutex::new(state), bell: watch::Sender::new(0) }
    }

    /// Publishes one message and returns its id.
    pub(crate) fn publish(&self, data: impl Into<Bytes>) -> u64 {
        let id = self.lock().push(data.into());
        self.ring_bell();
        id
    }

    /// Publishes many messages in one step, so that no reader sees only some of them.
    pub(crate) fn publish_all(&self, all: impl IntoIterator<Item = Bytes>) {
        let mut state = self.lock();
        for data in all {
            state.push(data);
        }
        drop(state);
        self.ring_bell();
    }

    /// Returns the id of the newest message; 0 before the first.
    pub(crate) fn last_id(&self) -> u64 {
        self.lock().last_id
    }

    /// Returns how many messages the replay buffer holds.
    pub(crate) fn capacity(&self) -> usize {
        self.lock().capacity
    }

    /// Returns the position of a reader that has seen everything up to the id `seen`.
    pub(crate) fn position_after(&self, seen: u64) -> Position {
        let state = self.lock();
        let missing = state.buffer.iter().rev().take_while(|event| event.id > seen).count() as u64;
        Position { index: state.index - missing, generation: state.generation }
    }

    /// Returns up to `limit` events after `position`.
    pub(crate) fn read(&self, position: Position, limit: usize) -> Read {
        let state = self.lock();
        if state.generation != position.generation {
            return Read::Closed;
        }
        let end = state.held_at.unwrap_or(state.index).min(state.index);
        let before_buffer = state.index - state.buffer.len() as u64;
        let start = position.index.max(before_buffer);
        if start >= end {
            return if state.finished && end == state.index { Read::Closed } else { Read::Nothing };
        }
        let skip = usize::try_from(start - before_buffer).unwrap_or(usize::MAX);
        let count = usize::try_from(end - start).unwrap_or(usize::MAX).min(limit);
        let events: Vec<Event> = state.buffer.iter().skip(skip).take(count).cloned().collect();
        let index = start + events.len() as u64;
        Read::Events(events, Position { index, ..position })
    }

    /// Returns a receiver that is notified about every change.
    pub(crate) fn bell(&self) -> watch::Receiver<u64> {
        self.bell.subscribe()
    }

    /// Hides new events from readers until [`Log::release`].
    pub(crate) fn hold(&self) {
        let mut state = self.lock();
        let index = state.index;
        state.held_at.get_or_insert(index);
    }

    /// Ends a hold.
    pub(crate) fn release(&self) {
        self.lock().held_at = None;
        self.ring_bell();
    }

    /// Ends every open stream. The replay buffer remains for the next one.
    pub(crate) fn end_streams(&self) {
        self.lock().generation += 1;
        self.ring_bell();
    }

    /// Ends every open stream and clears the replay buffer. Numbering continues.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.generation += 1;
        state.buffer.clear();
        drop(state);
        self.ring_bell();
    }

    /// Ends every stream after it has delivered the remaining events.
    pub(crate) fn finish(&self) {
        self.lock().finished = true;
        self.ring_bell();
    }

    /// Removes events up to `position`, for a log with one reader.
    pub(crate) fn consume(&self, position: Position) {
        let mut state = self.lock();
        let before_buffer = state.index - state.buffer.len() as u64;
        let count = usize::try_from(position.index.saturating_sub(before_buffer)).unwrap_or(usize::MAX);
        let count = count.min(state.buffer.len());
        state.buffer.drain(..count);
    }

    /// Clears the replay buffer and restarts ids at 1, while open streams stay open.
    pub(crate) fn reset_sequence(&self) {
        let mut state = self.lock();
        state.buffer.clear();
        state.last_id = 0;
    }

    fn ring_bell(&self) {
        self.bell.send_modify(|rings| *rings += 1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, data: Bytes) -> u64 {
        self.index += 1;
        self.last_id += 1;
        if self.buffer.len() >= self.capacity {
            self.buffer.pop_front();
        }
        self.buffer.push_back(Event { id: self.last_id, data });
        self.last_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(read: Read) -> Vec<u64> {
        match read {
            Read::Events(events, _) => events.iter().map(|event| event.id).collect(),
            Read::Nothing | Read::Closed => Vec::new(),
        }
    }

    fn filled(capacity: usize, count: u64) -> Log {
        let log = Log::new(capacity);
        for number in 1..=count {
            log.publish(number.to_string());
        }
        log
    }

    #[test]
    fn replay_starts_after_the_last_seen_id() {
        let log = filled(8, 5);
        for (seen, expected) in [(0, vec![1, 2, 3, 4, 5]), (3, vec![4, 5]), (5, vec![]), (99, vec![])] {
            assert_eq!(ids(log.read(log.position_after(seen), usize::MAX)), expected, "after {seen}");
        }
    }

    #[test]
    fn a_reader_behind_the_replay_buffer_continues_at_its_oldest_event() {
        let log = filled(3, 2);
        let start = log.position_after(0);
        for number in 3..=10 {
            log.publish(number.to_string());
        }
        assert_eq!(ids(log.read(start, usize::MAX)), [8, 9, 10]);
    }

    #[test]
    fn a_position_past_the_end_sees_what_comes_later() {
        let log = filled(8, 2);
        let position = log.position_after(99);
        log.publish("live");
        assert_eq!(ids(log.read(position, usize::MAX)), [3]);
    }

    #[test]
    fn reading_in_small_steps_gives_each_event_once() {
        let log = filled(64, 20);
        let mut position = log.position_after(0);
        let mut seen = Vec::new();
        while let Read::Events(events, next) = log.read(position, 3) {
            seen.extend(events.iter().map(|event| event.id));
            position = next;
        }
        assert_eq!(seen, (1..=20).collect::<Vec<_>>());
    }

    #[test]
    fn a_hold_hides_new_events_until_it_is_released() {
        let log = filled(8, 1);
        let position = log.position_after(1);
        log.hold();
        log.publish("2");
        assert!(matches!(log.read(position, 9), Read::Nothing));
        log.release();
        assert_eq!(ids(log.read(position, 9)), [2]);
    }

    #[test]
    fn closing_ends_readers_and_numbering_continues() {
        let log = filled(8, 3);
        let position = log.position_after(0);
        log.close();
        assert!(matches!(log.read(position, 9), Read::Closed));
        assert_eq!(log.publish("4"), 4);
        assert_eq!(ids(log.read(log.position_after(0), 9)), [4]);
    }

    #[test]
    fn a_finished_log_is_read_to_its_end() {
        let log = filled(8, 2);
        log.finish();
        let Read::Events(events, position) = log.read(log.position_after(0), 9) else { panic!("events") };
        assert_eq!(events.len(), 2);
        assert!(matches!(log.read(position, 9), Read::Closed));
    }

    #[test]
    fn consumed_events_are_not_read_again() {
        let log = filled(8, 4);
        let Read::Events(_, position) = log.read(log.position_after(0), 3) else { panic!("events") };
        log.consume(position);
        assert_eq!(ids(log.read(log.position_after(0), 9)), [4]);
    }

    #[test]
    fn a_reset_sequence_starts_at_one_for_readers_that_stay() {
        let log = filled(8, 3);
        let position = log.position_after(3);
        log.reset_sequence();
        log.publish("again");
        assert_eq!(ids(log.read(position, 9)), [1]);
    }
}
