//! Whether a session's turn makes progress, and whether a report of its state has ended it.

use std::sync::Arc;

use serde_json::Value;
use tokio::time::Instant;

use crate::event::Origin;
use crate::{Event, Update, UpdateKind};

/// The update that reports what a session is doing, in the draft of version 2 of the protocol.
const STATE_UPDATE: &str = "state_update";

/// Whether the agent reports the ends of interrupted runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum EndReports {
    /// This client has not requested it.
    #[default]
    NotRequested,
    /// It was requested.
    Requested,
    /// It was requested, and the agent has not reported an end in time.
    Silent,
    /// The agent has reported one.
    Reported,
}

/// The progress of a session's turn.
#[derive(Debug, Clone, Default)]
pub(in crate::client) struct Progress {
    /// Whether a watcher measures how long the session is silent, so that every update is a change.
    pub(in crate::client) timed: bool,
    /// How many agent requests wait for a response of this client.
    pub(in crate::client) open_requests: usize,
    /// Since when an agent request has waited in a turn that was not read yet. The turn may never be read.
    pub(in crate::client) unread_since: Option<Instant>,
    /// Whether the agent reported that it is working, and has not reported the end.
    working: bool,
    /// Whether a turn of this client runs. Outside turns no report is stored.
    in_turn: bool,
    /// The report that ended the work, since the turn began.
    pub(in crate::client) ended_by: Option<Arc<Value>>,
    /// Whether the agent reports the ends of interrupted runs.
    end_reports: EndReports,
    /// Whether it has reported the end of a run since the turn began. Reports of earlier runs do not count.
    run_ended: bool,
    /// How many earlier runs may have a report that has not arrived.
    overdue: usize,
    /// Whether a report of the turn may be lost.
    pub(in crate::client) uncertain: bool,
    /// Whether the server restarted since the turn began.
    pub(in crate::client) restarted: bool,
}

impl Progress {
    /// A turn begins. The prompt may join work that the agent reported before.
    pub(super) fn begin(&mut self) {
        (self.in_turn, self.ended_by, self.unread_since) = (true, None, None);
        (self.run_ended, self.uncertain, self.restarted) = (false, false, false);
    }

    /// The turn has ended, and with it the use of the report that ended it.
    pub(super) fn end(&mut self) {
        (self.in_turn, self.ended_by) = (false, None);
    }

    /// Whether text of the turn may follow the response to its cancelled prompt.
    pub(in crate::client) fn may_continue(&self) -> bool {
        let is_reported = matches!(self.end_reports, EndReports::Requested | EndReports::Reported);
        is_reported && !self.run_ended && !self.uncertain && !self.restarted
    }

    /// The session was opened, with or without a request to report the ends of interrupted runs.
    pub(super) fn open(&mut self, requested: bool) {
        self.end_reports = if requested { EndReports::Requested } else { EndReports::NotRequested };
        self.overdue = 0;
    }

    /// The agent reports the end of an interrupted run; `false` if this client has not requested that. The agent runs
    /// one prompt at a time, so that the reports are in the order of the runs.
    pub(super) fn end_run(&mut self) -> bool {
        if self.end_reports == EndReports::NotRequested {
            return false;
        }
        self.end_reports = EndReports::Reported;
        match self.overdue.checked_sub(1) {
            Some(fewer) => self.overdue = fewer,
            None => self.run_ended = true,
        }
        true
    }

    /// The wait for the end of a cancelled run is over. `is_late`: the report did not arrive in time, and the run was
    /// certainly interrupted.
    pub(super) fn stop_waiting(&mut self, is_late: bool) {
        if !self.run_ended {
            self.overdue += 1;
        }
        if is_late && self.end_reports == EndReports::Requested {
            self.end_reports = EndReports::Silent;
        }
    }

    /// A prompt has run to its end. Reports of earlier runs would have arrived.
    pub(super) fn complete(&mut self) {
        self.overdue = 0;
    }

    /// Applies an event of the session or the connection. Returns whether watchers must be notified.
    pub(super) fn observe(&mut self, event: &Event) -> bool {
        match event {
            Event::Update(update) => self.read_state(update) || self.timed || self.uncertain,
            Event::Gap(_) | Event::Lagged(_) | Event::Reconnected { checked: false } => {
                self.uncertain = true;
                true
            }
            Event::ServerRestarted => {
                (self.working, self.restarted) = (false, true);
                true
            }
            _ => false,
        }
    }

    /// An agent request is served from now on.
    pub(in crate::client) fn request(&mut self) {
        self.open_requests += 1;
    }

    /// An agent request waits in a turn that was not read yet.
    pub(super) fn unread(&mut self) {
        self.unread_since.get_or_insert_with(Instant::now);
    }

    /// The turn is read, or its requests were rejected.
    pub(super) fn read(&mut self) {
        self.unread_since = None;
    }

    /// Whether the agent waits for a response of this client, and the request is not in an unread turn.
    pub(in crate::client) fn is_being_decided(&self) -> bool {
        self.open_requests > 0 && self.unread_since.is_none()
    }

    /// An agent request has its response, or no longer needs one.
    pub(in crate::client) fn responded(&mut self) {
        self.open_requests = self.open_requests.saturating_sub(1);
    }

    /// Parses a report of the state; `false` if the update is not one. A repeated report ends nothing: only reported
    /// work can end.
    fn read_state(&mut self, update: &Update) -> bool {
        let is_state = matches!(update.kind(), UpdateKind::Other { kind } if kind == STATE_UPDATE);
        if !is_state || update.origin() != Origin::Live {
            return false;
        }
        match update.raw().get("state").and_then(Value::as_str) {
            Some("running" | "requires_action") => (self.working, self.ended_by) = (true, None),
            Some("idle") if self.working => {
                self.working = false;
                self.ended_by = self.in_turn.then(|| Arc::new(update.raw().clone()));
            }
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Progress;
    use crate::event::Origin;
    use crate::{Event, Update};

    fn state(state: &str, origin: Origin) -> Event {
        let update = json!({"sessionUpdate": "state_update", "state": state, "stopReason": "end_turn"});
        Event::Update(Update::read(json!({"sessionId": "s", "update": update}), origin, 10))
    }

    #[test]
    fn only_work_that_was_reported_ends_and_only_by_a_live_report() {
        use Origin::{History, Live, Replayed};
        // Reports in a turn, and whether they end it.
        let table: [(&[(&str, Origin)], bool); 8] = [
            (&[("running", Live), ("idle", Live)], true),
            (&[("requires_action", Live), ("idle", Live)], true),
            (&[("idle", Live)], false),
            (&[("running", Live), ("idle", History)], false),
            (&[("running", Replayed), ("idle", Live)], false),
            (&[("running", Live), ("idle", Live), ("running", Live)], false),
            (&[("running", Live), ("_paused", Live)], false),
            (&[("running", Live), ("idle", Live), ("idle", Live)], true),
        ];
        for (reports, ends) in table {
            let mut progress = Progress::default();
            progress.begin();
            for (name, origin) in reports {
                progress.observe(&state(name, *origin));
            }
            assert_eq!(progress.ended_by.is_some(), ends, "{reports:?}");
        }
    }

    #[test]
    fn a_turn_does_not_end_by_the_report_that_ended_the_one_before() {
        let mut progress = Progress::default();
        progress.begin();
        progress.observe(&state("running", Origin::Live));
        progress.observe(&state("idle", Origin::Live));
        progress.begin();
        progress.observe(&state("idle", Origin::Live));
        assert!(progress.ended_by.is_none());
    }

    #[test]
    fn every_report_ends_the_wait_for_its_own_run_only() {
        let mut progress = Progress::default();
        progress.begin();
        assert!(!progress.end_run(), "it was not requested");
        progress.open(true);
        // No run is reported in time.
        for is_waited_for in [true, false] {
            progress.begin();
            assert_eq!(progress.may_continue(), is_waited_for);
            progress.stop_waiting(true);
        }
        progress.begin();
        for _ in 0..2 {
            assert!(progress.end_run());
            assert!(progress.may_continue(), "it is the report of an earlier run");
        }
        assert!(progress.end_run());
        assert!(!progress.may_continue());
        progress.stop_waiting(false);
        // The agent reports the ends of its runs, so that all are waited for.
        for _ in 0..2 {
            progress.begin();
            assert!(progress.may_continue());
            progress.stop_waiting(true);
        }
        progress.complete();
        progress.begin();
        progress.end_run();
        assert!(!progress.may_continue(), "earlier runs will not be reported");
    }

    #[test]
    fn a_prompt_that_joins_work_ends_with_it() {
        let mut progress = Progress::default();
        progress.observe(&state("running", Origin::Live));
        progress.begin();
        progress.observe(&state("idle", Origin::Live));
        assert!(progress.ended_by.is_some());
    }
}
