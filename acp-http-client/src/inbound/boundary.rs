//! Where a ring's past ends and this client's time begins.

use tokio::time::{Duration, Instant};

use crate::{EventId, Origin, rpc::Message};

/// A ring is replayed at once when a stream opens: after so much quiet, its past is over.
const QUIET: Duration = Duration::from_millis(250);
/// How long messages are kept back at most, on a stream that is never quiet.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many messages are kept back; a ring holds fewer.
const HELD: usize = 4096;
/// How many bytes are kept back.
const HELD_BYTES: usize = 64 << 20;

/// A message with the id of its event and what it was found to be.
pub(super) type Dated = (Option<EventId>, Message, Origin);

/// Keeps back what the first stream of a client brings until it is known whether it is old.
///
/// A stream that is opened for the first time replays the server's ring, and nothing marks where that ends.
/// The copy of our first answer does: what came before it is older than this client, and a request of the agent
/// among it must not be answered again.
#[derive(Debug)]
pub(super) struct Boundary {
    held: Vec<(Option<EventId>, Message)>,
    bytes: usize,
    open: bool,
}

impl Boundary {
    /// `needed` is false where a stream can hold nothing old.
    pub(super) fn new(needed: bool) -> Self {
        Self { held: Vec::new(), bytes: 0, open: needed }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Whether messages are being kept back.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes one message and gives what may go on, in order. `ours` says that it is an answer to this client.
    pub(super) fn pass(&mut self, id: Option<EventId>, message: Message, ours: bool, out: &mut Vec<Dated>) {
        if !self.open {
            return out.push((id, message, Origin::Live));
        }
        if ours {
            self.close(Origin::Replayed, out);
            return out.push((id, message, Origin::Live));
        }
        self.bytes += message.raw.len();
        self.held.push((id, message));
        if self.held.len() > HELD || self.bytes > HELD_BYTES {
            self.close(Origin::Replayed, out);
        }
    }

    /// When `expire` is due, on a stream that opened at `opened` and brought its last message at `last_message`.
    pub(super) fn deadline(&self, opened: Instant, last_message: Option<Instant>) -> Option<Instant> {
        let quiet = last_message.map_or(opened, |at| at.max(opened)) + QUIET;
        self.open.then(|| quiet.min(opened + PATIENCE))
    }

    /// Time is up. If an answer has come in a body and not on the stream, there are no copies to go by, and what is
    /// held is as new as anything; without any answer it is the ring's past.
    pub(super) fn expire(&mut self, answered: bool, out: &mut Vec<Dated>) {
        self.close(if answered { Origin::Live } else { Origin::Replayed }, out);
    }

    fn close(&mut self, origin: Origin, out: &mut Vec<Dated>) {
        self.open = false;
        self.bytes = 0;
        out.extend(std::mem::take(&mut self.held).into_iter().map(|(id, message)| (id, message, origin)));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn message() -> Message {
        Message::parse(Bytes::from_static(br#"{"method":"x"}"#), &crate::Limits::default()).unwrap()
    }

    fn origins(out: &mut Vec<Dated>) -> Vec<Origin> {
        out.drain(..).map(|(_, _, origin)| origin).collect()
    }

    #[tokio::test]
    async fn what_comes_before_the_copy_of_our_first_answer_is_old() {
        let (mut boundary, mut out) = (Boundary::new(true), Vec::new());
        boundary.pass(None, message(), false, &mut out);
        assert!(out.is_empty() && boundary.is_holding());
        boundary.pass(None, message(), true, &mut out);
        boundary.pass(None, message(), false, &mut out);
        assert_eq!(origins(&mut out), [Origin::Replayed, Origin::Live, Origin::Live]);
        assert_eq!(boundary.deadline(Instant::now(), None), None);
    }

    #[tokio::test]
    async fn without_a_copy_everything_is_new_and_without_an_answer_it_is_old() {
        for (answered, origin) in [(true, Origin::Live), (false, Origin::Replayed)] {
            let (mut boundary, mut out) = (Boundary::new(true), Vec::new());
            boundary.pass(None, message(), false, &mut out);
            boundary.expire(answered, &mut out);
            boundary.pass(None, message(), false, &mut out);
            assert_eq!(origins(&mut out), [origin, Origin::Live]);
        }
    }

    #[tokio::test]
    async fn a_quiet_moment_ends_the_past_and_so_does_a_stream_that_never_is_quiet() {
        let (boundary, opened) = (Boundary::new(true), Instant::now());
        assert_eq!(boundary.deadline(opened, None), Some(opened + QUIET));
        let later = opened + Duration::from_secs(1);
        assert_eq!(boundary.deadline(opened, Some(later)), Some(later + QUIET));
        assert_eq!(boundary.deadline(opened, Some(opened + PATIENCE)), Some(opened + PATIENCE));
        assert_eq!(Boundary::new(false).deadline(opened, None), None);
    }
}
