//! What a request waits for before it is sent.

use tokio::time::Instant;

use super::{Exchange, sleep_until};
use crate::{Error, Phase, outbound::outbox::Slot};

impl Exchange {
    /// On dialects with a stream for each session, the stream comes before the first message about it.
    pub(super) async fn open_session_stream(&mut self) -> Result<(), Error> {
        if self.using.is_none() {
            return Ok(());
        }
        self.core.check_alive()?;
        let until = self.started + self.core.options.timeouts.headers;
        let until = self.deadline.map_or(until, |deadline| deadline.min(until));
        tokio::select! {
            biased;
            outcome = &mut self.ticket.receiver => {
                return Err(self.link.failure().unwrap_or_else(|| self.not_sent(outcome.ok())));
            }
            () = self.link.opened() => {}
            // The message is sent even without its stream: the server buffers the events.
            () = tokio::time::sleep_until(until) => {}
        }
        match self.link.failure() {
            Some(error) => {
                self.ticket.forget();
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Waits for the turn to send about the session, and before a prompt for the end of a turn that was cancelled.
    pub(super) async fn enter_outbox(&mut self, is_turn: bool) -> Result<Option<Slot>, Error> {
        let Some(session) = self.session.clone() else { return Ok(None) };
        let core = self.core.clone();
        let until = Instant::now().checked_add(core.options.timeouts.cancel);
        let number = self.ticket.number();
        let entering = async {
            if is_turn && !core.outbox.settled(&session, until).await {
                core.end_abandoned_turns(Some(&session));
                return Err(Error::TurnStillRunning { session: session.clone().into() });
            }
            Ok(core.outbox.enter(&session).await)
        };
        let slot = tokio::select! {
            biased;
            outcome = &mut self.ticket.receiver => return Err(self.not_sent(outcome.ok())),
            slot = entering => slot,
            () = sleep_until(self.deadline) => return Err(self.timeout(Phase::Outbox)),
        };
        if slot.is_err() {
            self.ticket.forget();
        } else if is_turn && !core.outbox.start_turn(&session, number) {
            return Err(Error::Withdrawn { method: self.method.to_string() });
        }
        slot.map(Some)
    }
}
