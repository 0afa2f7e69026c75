//! Opening a stream, and verifying the server's incarnation.

use std::sync::atomic::Ordering;

use tokio::time::{Duration, Instant};

use super::{LinkState, Reader, Stop};
use crate::{
    ConnectionState, Event, Phase,
    client::probe,
    printable::OneLine,
    transport::{EventStream, StreamFailure, Trouble},
};

/// How long a resumed stream may take to send an event that it is known to have. Silence proves nothing: it triggers
/// a read of the whole buffer, and then a probe.
const PROOF_TIMEOUT: Duration = Duration::from_secs(1);

/// The proof that an open stream must deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    None,
    /// It begins with an event that was seen before, or the server is another one.
    Overlap(Instant),
    /// It may be silent: the event before it is too large to be fetched again, or the whole buffer was requested. A
    /// probe shows whether the server is the same one.
    Probe(Instant),
}

impl Reader {
    pub(super) async fn open(&mut self) -> Result<EventStream, StreamFailure> {
        if self.core.options.dialect.bootstrap {
            let core = self.core.clone();
            self.serve(core.gate.used(), None).await;
        }
        let (point, overlaps, numbered) = {
            let core = self.link.core();
            let identity = core.identity();
            (
                identity.resume_point(),
                identity.overlaps(),
                identity.last_number().is_some_and(|last| last > 0),
            )
        };
        let point = point.filter(|_| !self.from_beginning);
        let (core, session) = (self.core.clone(), self.link.session().cloned());
        let opening = async move { core.transport.open_stream(session.as_deref(), point.as_deref()).await };
        let started = Instant::now();
        let until = started.checked_add(self.core.options.timeouts.stream_open);
        let stream = self.serve(opening, until).await.unwrap_or_else(|| {
            Err(StreamFailure { trouble: Trouble::Passing, error: self.timeout(Phase::StreamOpen, started) })
        })?;
        let until = Instant::now() + PROOF_TIMEOUT;
        self.proof = match std::mem::take(&mut self.from_beginning) {
            false if overlaps => Proof::Overlap(until),
            _ if numbered => Proof::Probe(until),
            _ => Proof::None,
        };
        if self.core.options.dialect.bootstrap {
            // The stream exists, so the POST that makes it was accepted.
            self.core.gate.open();
        }
        self.not_yet = 0;
        self.missing_since = None;
        let continuity = self.link.input(|core, now| core.opened(now));
        self.link.set_state(LinkState::Live);
        if let Some(continuity) = continuity {
            self.core.stats.reconnects.fetch_add(1, Ordering::AcqRel);
            self.core.publish(Event::Reconnected { stream: self.link.source().clone(), continuity });
        }
        self.opened_once = true;
        if self.is_connection() {
            self.core.set_state(ConnectionState::Live);
        }
        Ok(stream)
    }

    /// The open stream did not show in time that the server is the same one.
    pub(super) fn unproven(&mut self) -> Option<Stop> {
        match std::mem::replace(&mut self.proof, Proof::None) {
            Proof::None => None,
            Proof::Overlap(_) => {
                self.from_beginning = true;
                Some(Stop::Reopen)
            }
            Proof::Probe(_) => {
                tracing::debug!(stream = %OneLine(self.link.source()), "the stream is silent: probing the server");
                probe(&self.core);
                None
            }
        }
    }
}
