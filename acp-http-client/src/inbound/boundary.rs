//! Where a ring's past ends and this client's time begins.

use tokio::time::{Duration, Instant};

use crate::{Origin, rpc::Message};

/// After so much quiet behind the first answer, a server is taken to copy no answers to its stream.
const QUIET: Duration = Duration::from_millis(250);
/// How long messages are kept back while no answer comes at all.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many messages are kept back; a ring holds fewer.
const HELD: usize = 4096;

/// A message with the id of its event and what it was found to be.
pub(super) type Dated = (Option<String>, Message, Origin);

/// Keeps back what the first stream of a client brings until it is known whether it is old.
///
/// A stream that is opened for the first time replays the server's ring, and nothing marks where that ends.
/// The copy of our first answer does: what came before it is older than this client, and a request of the agent
/// among it must not be answered again.
#[derive(Debug)]
pub(super) struct Boundary {
    held: Vec<(Option<String>, Message)>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing has been kept back yet.
    Waiting,
    Holding {
        since: Instant,
    },
    /// Waiting took too long: messages pass as old ones until the first answer.
    Past,
    Closed,
}

impl Boundary {
    /// `needed` is false where a stream can hold nothing old.
    pub(super) fn new(needed: bool) -> Self {
        Self { held: Vec::new(), state: if needed { State::Waiting } else { State::Closed } }
    }

    /// Takes one message and gives what may go on, in order. `ours` says that it is an answer to this client.
    pub(super) fn pass(
        &mut self,
        id: Option<String>,
        message: Message,
        ours: bool,
        now: Instant,
        out: &mut Vec<Dated>,
    ) {
        match self.state {
            State::Closed => out.push((id, message, Origin::Live)),
            _ if ours => {
                self.release(Origin::Replayed, State::Closed, out);
                out.push((id, message, Origin::Live));
            }
            State::Past => out.push((id, message, Origin::Replayed)),
            State::Waiting | State::Holding { .. } => {
                self.held.push((id, message));
                if self.state == State::Waiting {
                    self.state = State::Holding { since: now };
                }
                if self.held.len() > HELD {
                    self.release(Origin::Replayed, State::Past, out);
                }
            }
        }
    }

    /// When `expire` is due. `answered` is when the first answer came in a body, `quiet` since when the stream
    /// has brought nothing.
    pub(super) fn deadline(&self, answered: Option<Instant>, quiet: Instant) -> Option<Instant> {
        match (self.state, answered) {
            (State::Closed, _) | (State::Waiting | State::Past, None) => None,
            (_, Some(answered)) => Some(answered.max(quiet) + QUIET),
            (State::Holding { since }, None) => Some(since + PATIENCE),
        }
    }

    /// Time is up: without a copy of the first answer, what is held is as new as anything; without any answer,
    /// it is taken for old.
    pub(super) fn expire(&mut self, answered: bool, out: &mut Vec<Dated>) {
        if answered {
            self.release(Origin::Live, State::Closed, out);
        } else {
            self.release(Origin::Replayed, State::Past, out);
        }
    }

    fn release(&mut self, origin: Origin, next: State, out: &mut Vec<Dated>) {
        self.state = next;
        out.extend(self.held.drain(..).map(|(id, message)| (id, message, origin)));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn message() -> Message {
        Message::parse(Bytes::from_static(br#"{"method":"x"}"#)).unwrap()
    }

    fn origins(out: &mut Vec<Dated>) -> Vec<Origin> {
        out.drain(..).map(|(_, _, origin)| origin).collect()
    }

    #[tokio::test]
    async fn what_comes_before_the_copy_of_our_first_answer_is_old() {
        let (mut boundary, mut out, now) = (Boundary::new(true), Vec::new(), Instant::now());
        boundary.pass(None, message(), false, now, &mut out);
        assert!(out.is_empty());
        boundary.pass(None, message(), true, now, &mut out);
        boundary.pass(None, message(), false, now, &mut out);
        assert_eq!(origins(&mut out), [Origin::Replayed, Origin::Live, Origin::Live]);
        assert_eq!(boundary.deadline(Some(now), now), None);
    }

    #[tokio::test]
    async fn without_a_copy_everything_is_new() {
        let (mut boundary, mut out, now) = (Boundary::new(true), Vec::new(), Instant::now());
        boundary.pass(None, message(), false, now, &mut out);
        assert_eq!(boundary.deadline(Some(now), now), Some(now + QUIET));
        boundary.expire(true, &mut out);
        assert_eq!(origins(&mut out), [Origin::Live]);
    }

    #[tokio::test]
    async fn without_any_answer_messages_pass_as_old_ones_until_one_comes() {
        let (mut boundary, mut out, now) = (Boundary::new(true), Vec::new(), Instant::now());
        boundary.pass(None, message(), false, now, &mut out);
        assert_eq!(boundary.deadline(None, now), Some(now + PATIENCE));
        boundary.expire(false, &mut out);
        boundary.pass(None, message(), false, now, &mut out);
        boundary.pass(None, message(), true, now, &mut out);
        assert_eq!(origins(&mut out), [Origin::Replayed, Origin::Replayed, Origin::Live]);
    }

    #[test]
    fn where_nothing_can_be_old_everything_passes() {
        assert_eq!(Boundary::new(false).state, State::Closed);
    }
}
