//! The end of an agent, joined from every report of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};

use super::Pump;
use crate::convert::termination::TerminationReport;
use crate::{ConnectionState, Error, TerminationInfo};

/// How long the last words of an agent may come behind the notice of its end: servers write the two side by side.
const TRAILING: Duration = Duration::from_millis(50);

/// An end of the agent that is being put together.
#[derive(Debug, Default)]
pub(in crate::client) struct Exit {
    report: Option<TerminationReport>,
    /// Whether the notice has come on the stream, behind what the agent said before its end.
    noticed: bool,
    /// Whether a call that was waiting has failed with it.
    answered: bool,
    pub(super) deadline: Option<Instant>,
    waiting: Vec<oneshot::Sender<TerminationInfo>>,
    /// The sessions that ended with it, once that is published.
    published: Option<Vec<Arc<str>>>,
    /// Whether everything that was worth waiting for is known.
    is_finished: bool,
}

impl Pump {
    /// Takes note of a sign that the agent has ended. The first one that is certain is published at once.
    pub(super) fn report(
        &mut self,
        report: TerminationReport,
        told: Option<oneshot::Sender<TerminationInfo>>,
    ) {
        if let (true, Some(info)) = (self.exit.is_finished, self.shared.ended()) {
            if let Some(told) = told {
                // A caller that went away needs no answer.
                let _ = told.send(info);
            }
            return;
        }
        // The notice with the exit code follows a failed write.
        let is_certain = !report.is_failed_write();
        match told {
            Some(told) => {
                self.exit.answered = true;
                self.exit.waiting.push(told);
            }
            None => self.exit.noticed = true,
        }
        let requested = self.shared.stop_requested.load(Ordering::Acquire);
        let report = if requested { report.merge(TerminationReport::requested()) } else { report };
        let report = match self.exit.report.take() {
            Some(before) => before.merge(report),
            None => report,
        };
        // The code comes with the notice, what the agent wrote to stderr with the failure of a call that waits.
        let waits = self.shared.in_flight.load(Ordering::Acquire) > 0;
        let complete = self.exit.noticed && (report.has_stderr() || self.exit.answered || !waits);
        self.exit.report = Some(report);
        let patience = if complete || requested { TRAILING } else { self.patience };
        let deadline = Instant::now() + patience;
        self.exit.deadline = Some(self.exit.deadline.map_or(deadline, |before| before.min(deadline)));
        if is_certain {
            self.publish_exit();
        }
    }

    /// Publishes that the agent has ended, with what is known of it by now.
    fn publish_exit(&mut self) {
        let Some(report) = self.exit.report.clone().filter(|_| self.exit.published.is_none()) else { return };
        let info = report.clone().into_info();
        self.shared.set_ended(info.clone());
        self.exit.published = Some(self.hub.end_all(&report));
        if !self.shared.stop_requested.load(Ordering::Acquire) {
            self.hub.connection(ConnectionState::AgentEnded(Box::new(info)));
        }
    }

    /// What is known about the end of the agent is all there will be: the connection ends.
    pub(super) fn finish_exit(&mut self) {
        self.publish_exit();
        let finished = Exit { is_finished: self.exit.report.is_some(), ..Exit::default() };
        let Exit { report, waiting, published, .. } = std::mem::replace(&mut self.exit, finished);
        let Some(report) = report else { return };
        let info = report.clone().into_info();
        self.shared.set_ended(info.clone());
        self.hub.complete_ends(&published.unwrap_or_default(), &report);
        for told in waiting {
            // A caller that went away needs no answer.
            let _ = told.send(info.clone());
        }
        self.wire.control().end(Error::ended(None, info, true));
    }
}
