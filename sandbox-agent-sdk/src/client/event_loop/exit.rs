//! The end of an agent, merged from all reports of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use acp_http_client as wire;
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};

use super::{EventLoop, Shared};
use crate::client::deadline::deadline_after;
use crate::client::hub::{Hub, SessionEnd};
use crate::convert::termination::TerminationReport;
use crate::{ConnectionState, Error, TerminationInfo};

/// The end of the agent, while its reports are merged.
#[derive(Debug, Default)]
pub(in crate::client) struct Exit {
    report: Option<TerminationReport>,
    /// Whether the notification has arrived on the stream, after the updates before the end.
    noticed: bool,
    /// Whether a pending call has failed with it.
    answered: bool,
    pub(super) deadline: Option<Instant>,
    waiting: Vec<oneshot::Sender<TerminationInfo>>,
    /// The ends of the sessions that ended with it, once they are published.
    published: Option<Vec<SessionEnd>>,
    /// Whether all details are known, or no longer awaited.
    is_finished: bool,
}

impl EventLoop {
    /// Adds a sign that the agent has ended. The first certain one is published at once.
    pub(super) fn report(
        &mut self,
        report: TerminationReport,
        reply: Option<oneshot::Sender<TerminationInfo>>,
    ) {
        if let (true, Some(info)) = (self.exit.is_finished, self.shared.ended()) {
            if let Some(reply) = reply {
                // The caller may be gone.
                let _ = reply.send(info);
            }
            return;
        }
        // After a failed write, the notification with the exit code follows.
        let is_certain = !report.is_failed_write();
        match reply {
            Some(reply) => {
                self.exit.answered = true;
                self.exit.waiting.push(reply);
            }
            None => self.exit.noticed = true,
        }
        let requested = self.shared.stop_requested.load(Ordering::Acquire);
        let report = if requested { report.merge(TerminationReport::requested()) } else { report };
        let report = match self.exit.report.take() {
            Some(before) => before.merge(report),
            None => report,
        };
        // The notification contains the exit code; the failure of a pending call contains the agent's stderr output.
        let waits = self.shared.in_flight.load(Ordering::Acquire) > 0;
        let complete = self.exit.noticed && (report.has_stderr() || self.exit.answered || !waits);
        self.exit.report = Some(report);
        let timeout = if complete || requested { self.trailing } else { self.termination_timeout };
        let deadline = deadline_after(timeout);
        self.exit.deadline = Some(self.exit.deadline.map_or(deadline, |before| before.min(deadline)));
        if is_certain {
            self.publish_exit();
        }
    }

    /// Publishes that the agent has ended, with the details so far.
    fn publish_exit(&mut self) {
        let Some(report) = self.exit.report.clone().filter(|_| self.exit.published.is_none()) else { return };
        let info = report.clone().into_info();
        self.shared.set_ended(info.clone());
        self.exit.published = Some(self.hub.end_all(&report));
        if !self.shared.stop_requested.load(Ordering::Acquire) {
            self.hub.connection(ConnectionState::AgentEnded(Box::new(info)));
        }
    }

    /// Ends the connection: no further details about the end of the agent are awaited.
    pub(super) fn finish_exit(&mut self) {
        self.publish_exit();
        let finished = Exit { is_finished: self.exit.report.is_some(), ..Exit::default() };
        let Exit { report, waiting, published, .. } = std::mem::replace(&mut self.exit, finished);
        let Some(report) = report else { return };
        let info = report.clone().into_info();
        self.shared.set_ended(info.clone());
        let ends = published.unwrap_or_default();
        self.hub.complete_ends(&ends, &report);
        for reply in waiting {
            // The caller may be gone.
            let _ = reply.send(info.clone());
        }
        // The pending calls fail with the end of the connection. Other threads may have finished them after it.
        let waits = self.shared.in_flight.load(Ordering::Acquire) > 0;
        let posts = self.wire.control().end_keeping_posts(Error::ended(None, info, true));
        if !report.has_stderr() && waits {
            let (hub, shared) = (Arc::clone(&self.hub), Arc::clone(&self.shared));
            let late = LateDetails { hub, shared, ends, report, timeout: self.late_details };
            self.late.spawn(late.read(posts));
        }
    }
}

/// The details of an agent's end that a server reports after the pending calls have failed.
struct LateDetails {
    hub: Arc<Hub>,
    shared: Arc<Shared>,
    ends: Vec<SessionEnd>,
    report: TerminationReport,
    timeout: Duration,
}

impl LateDetails {
    /// Waits for the first report with stderr output, and publishes it.
    async fn read(self, mut posts: wire::OpenPosts) {
        let report = async {
            loop {
                let (_, error) = posts.next_failure().await;
                let report = TerminationReport::from_wire_error(&error);
                if let Some(report) = report.filter(TerminationReport::has_stderr) {
                    return report;
                }
            }
        };
        let Ok(late) = tokio::time::timeout_at(deadline_after(self.timeout), report).await else { return };
        let report = self.report.merge(late);
        self.shared.set_ended(report.clone().into_info());
        self.hub.complete_ends(&self.ends, &report);
    }
}
