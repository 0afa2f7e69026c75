//! The usage of all sessions of a client.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::agents::Rules;
use super::budget::{Tracked, Used};
use super::meter::TurnEnd;
use super::{Budget, BudgetEvent, Meter, TurnUsage, UsageTotals};
use crate::Update;

/// The meters and budgets of a client's sessions. It outlives connections and the state of sessions.
///
/// Sessions of other clients are not counted, so it grows only with the sessions that this client uses.
#[derive(Debug, Default)]
pub(crate) struct UsageTable {
    sessions: HashMap<Arc<str>, Entry>,
    /// The rules of the connection's agent, for sessions without a known agent.
    rules: Rules,
    budget: Option<Tracked>,
    /// Notifies the watchers of budgets about a change.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Entry {
    meter: Meter,
    rules: Option<Rules>,
    budget: Option<Tracked>,
    /// When the running turn began.
    running: Option<Instant>,
    /// Whether this client has created the session.
    is_own: bool,
}

impl UsageTable {
    /// Sets the agent of the connection and the name that it reports.
    pub(crate) fn connected(&mut self, agent: &str, name: Option<&str>) {
        let by_name = name.map(Rules::of).unwrap_or_default();
        let rules = Some(Rules::of(agent)).filter(|rules| *rules != Rules::default()).unwrap_or(by_name);
        self.rules = rules;
    }

    /// Sets the agent of a session.
    pub(crate) fn assign(&mut self, session: &str, agent: &str) {
        let rules = Rules::of(agent);
        if rules != Rules::default() {
            self.entry(session).rules = Some(rules);
        }
    }

    /// This client has created the session, and counts all of it.
    pub(crate) fn created(&mut self, session: &str) {
        self.entry(session).is_own = true;
    }

    /// This client has opened a session that was used before. `shared`: other clients may use the agent's process.
    pub(crate) fn joined(&mut self, session: &str, shared: bool) {
        let rules = self.rules_of(session);
        let entry = self.entry(session);
        if !entry.is_own {
            entry.meter.join(rules, shared);
        }
    }

    /// Counts an agent's report in a session of this client.
    pub(crate) fn observe(&mut self, update: &Update) {
        if !is_count(update) {
            return;
        }
        let rules = self.rules_of(update.session_id());
        let counted = self.entry(update.session_id()).meter.observe(update, rules);
        if counted {
            self.changed.send_replace(());
        }
    }

    /// Records that the process behind a session has ended.
    pub(crate) fn end_process(&mut self, session: &str) {
        let rules = self.rules_of(session);
        if let Some(entry) = self.sessions.get_mut(session) {
            entry.meter.end_process(rules);
        }
    }

    pub(crate) fn begin_turn(&mut self, session: &str, now: Instant) {
        let entry = self.entry(session);
        entry.meter.begin_turn();
        entry.running = Some(now);
    }

    pub(crate) fn end_turn(&mut self, session: &str, end: &TurnEnd<'_>) -> TurnUsage {
        let rules = self.rules_of(session);
        let entry = self.entry(session);
        entry.running = None;
        let usage = entry.meter.end_turn(end, rules);
        self.changed.send_replace(());
        usage
    }

    pub(crate) fn of_session(&self, session: &str) -> UsageTotals {
        self.sessions.get(session).map_or_else(|| Meter::default().totals(), |entry| entry.meter.totals())
    }

    pub(crate) fn of_all(&self) -> UsageTotals {
        self.totals()
    }

    /// Sets the budget of a session, or of the client.
    pub(crate) fn set_budget(&mut self, session: Option<&str>, budget: Option<Budget>) {
        let tracked = budget.map(Tracked::new);
        match session {
            Some(session) => self.entry(session).budget = tracked,
            None => self.budget = tracked,
        }
        self.changed.send_replace(());
    }

    /// Returns a receiver that is notified about every change.
    pub(crate) fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns why a session's next prompt must not be sent, if so.
    pub(crate) fn refuses(&self, session: &str, now: Instant) -> Option<BudgetEvent> {
        let of_session = self.sessions.get(session).and_then(|entry| Some((entry, entry.budget.as_ref()?)));
        let refusal = of_session.and_then(|(entry, budget)| budget.refuses(Some(session), &entry.used(now)));
        refusal.or_else(|| self.budget.as_ref()?.refuses(None, &self.used(now)))
    }

    /// Returns why a session's running turn must be cancelled, if so.
    pub(crate) fn cancels(&self, session: &str, now: Instant) -> Option<BudgetEvent> {
        let of_session = self.sessions.get(session).and_then(|entry| Some((entry, entry.budget.as_ref()?)));
        let cancel = of_session.and_then(|(entry, budget)| budget.cancels(Some(session), &entry.used(now)));
        cancel.or_else(|| self.budget.as_ref()?.cancels(None, &self.used(now)))
    }

    /// Returns unpublished events of the budgets that apply to a session.
    pub(crate) fn news(&mut self, session: &str, now: Instant, after_turn: bool) -> Vec<BudgetEvent> {
        let mut news = Vec::new();
        if let Some(entry) = self.sessions.get_mut(session) {
            let used = entry.used(now);
            if let Some(budget) = &mut entry.budget {
                news = budget.news(Some(session), &used, after_turn);
            }
        }
        if self.budget.is_some() {
            let used = self.used(now);
            if let Some(budget) = &mut self.budget {
                news.extend(budget.news(None, &used, after_turn));
            }
        }
        news
    }

    /// Returns the time until a time limit is reached.
    pub(crate) fn next_moment(&self, session: &str, now: Instant) -> Option<Duration> {
        let entry = self.sessions.get(session);
        let of_session = entry.and_then(|entry| entry.budget.as_ref()?.next_moment(&entry.used(now)));
        let of_client = self.budget.as_ref().and_then(|budget| budget.next_moment(&self.used(now)));
        [of_session, of_client].into_iter().flatten().min()
    }

    fn entry(&mut self, session: &str) -> &mut Entry {
        self.sessions.entry(session.into()).or_default()
    }

    fn rules_of(&self, session: &str) -> Rules {
        self.sessions.get(session).and_then(|entry| entry.rules).unwrap_or(self.rules)
    }

    fn totals(&self) -> UsageTotals {
        let mut totals = Meter::default().totals();
        self.sessions.values().for_each(|entry| totals.add(&entry.meter.totals()));
        totals
    }

    fn used(&self, now: Instant) -> Used {
        let running = self.sessions.values().filter_map(|entry| entry.running);
        let (running, running_for) = running.fold((0, Duration::ZERO), |(count, time), since| {
            (count + 1, time.saturating_add(now.saturating_duration_since(since)))
        });
        Used { totals: self.totals(), running, running_for }
    }
}

impl Entry {
    fn used(&self, now: Instant) -> Used {
        let running_for = self.running.map(|since| now.saturating_duration_since(since));
        Used {
            totals: self.meter.totals(),
            running: u64::from(running_for.is_some()),
            running_for: running_for.unwrap_or_default(),
        }
    }
}

/// Whether a report may contain usage.
fn is_count(update: &Update) -> bool {
    match update.kind() {
        crate::UpdateKind::Usage(_) => true,
        crate::UpdateKind::Message(chunk) => chunk.meta.is_some(),
        _ => false,
    }
}
