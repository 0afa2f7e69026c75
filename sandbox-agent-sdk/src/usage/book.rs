//! The usage of all sessions of a client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::agents::Rules;
use super::budget::{Tracked, Used};
use super::meter::TurnEnd;
use super::{Budget, BudgetEvent, Meter, TurnUsage, UsageTotals};
use crate::Update;

/// The meters and budgets of a client's sessions. It outlives connections.
///
/// Sessions of other clients are not counted, so it grows only with the sessions that this client uses.
#[derive(Debug)]
pub(crate) struct UsageBook {
    /// Guards the meters; held for a count or a copy.
    state: Mutex<State>,
    /// Notifies the watchers of budgets about a change.
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<Arc<str>, Entry>,
    /// The rules of the connection's agent, for sessions without a known agent.
    rules: Rules,
    budget: Option<Tracked>,
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

impl UsageBook {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::default(), changed: watch::Sender::new(()) }
    }

    /// Sets the agent of the connection and the name that it reports.
    pub(crate) fn connected(&self, agent: &str, name: Option<&str>) {
        let by_name = name.map(Rules::of).unwrap_or_default();
        let rules = Some(Rules::of(agent)).filter(|rules| *rules != Rules::default()).unwrap_or(by_name);
        self.lock().rules = rules;
    }

    /// Sets the agent of a session.
    pub(crate) fn assign(&self, session: &str, agent: &str) {
        let rules = Rules::of(agent);
        if rules != Rules::default() {
            self.lock().entry(session).rules = Some(rules);
        }
    }

    /// This client has created the session, and counts all of it.
    pub(crate) fn created(&self, session: &str) {
        self.lock().entry(session).is_own = true;
    }

    /// This client has opened a session that was used before. `shared` says that others may use the agent's process.
    pub(crate) fn joined(&self, session: &str, shared: bool) {
        let mut state = self.lock();
        let rules = state.rules_of(session);
        let entry = state.entry(session);
        if !entry.is_own {
            entry.meter.join(rules, shared);
        }
    }

    /// Counts an agent's report in a session of this client.
    pub(crate) fn observe(&self, update: &Update) {
        let mut state = self.lock();
        let rules = state.rules_of(update.session_id());
        let counted = match state.sessions.get_mut(update.session_id()) {
            Some(entry) => entry.meter.observe(update, rules),
            None if is_count(update) => state.entry(update.session_id()).meter.observe(update, rules),
            None => false,
        };
        drop(state);
        if counted {
            self.changed.send_replace(());
        }
    }

    /// Records that the process behind a session has ended.
    pub(crate) fn end_process(&self, session: &str) {
        let mut state = self.lock();
        let rules = state.rules_of(session);
        if let Some(entry) = state.sessions.get_mut(session) {
            entry.meter.end_process(rules);
        }
    }

    pub(crate) fn begin_turn(&self, session: &str, now: Instant) {
        let mut state = self.lock();
        let entry = state.entry(session);
        entry.meter.begin_turn();
        entry.running = Some(now);
    }

    pub(crate) fn end_turn(&self, session: &str, end: &TurnEnd<'_>) -> TurnUsage {
        let mut state = self.lock();
        let rules = state.rules_of(session);
        let entry = state.entry(session);
        entry.running = None;
        let usage = entry.meter.end_turn(end, rules);
        drop(state);
        self.changed.send_replace(());
        usage
    }

    pub(crate) fn of_session(&self, session: &str) -> UsageTotals {
        self.lock()
            .sessions
            .get(session)
            .map_or_else(|| Meter::default().totals(), |entry| entry.meter.totals())
    }

    pub(crate) fn of_all(&self) -> UsageTotals {
        self.lock().totals()
    }

    /// Sets the budget of a session, or of the client.
    pub(crate) fn set_budget(&self, session: Option<&str>, budget: Option<Budget>) {
        let mut state = self.lock();
        let tracked = budget.map(Tracked::new);
        match session {
            Some(session) => state.entry(session).budget = tracked,
            None => state.budget = tracked,
        }
        drop(state);
        self.changed.send_replace(());
    }

    /// Returns a receiver that is notified about every change.
    pub(crate) fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns why a session's next prompt must not be sent, if so.
    pub(crate) fn refuses(&self, session: &str, now: Instant) -> Option<BudgetEvent> {
        let state = self.lock();
        let of_session = state.sessions.get(session).and_then(|entry| Some((entry, entry.budget.as_ref()?)));
        let refusal = of_session.and_then(|(entry, budget)| budget.refuses(Some(session), &entry.used(now)));
        refusal.or_else(|| state.budget.as_ref()?.refuses(None, &state.used(now)))
    }

    /// Returns why a session's running turn must be cancelled, if so.
    pub(crate) fn cancels(&self, session: &str, now: Instant) -> Option<BudgetEvent> {
        let state = self.lock();
        let of_session = state.sessions.get(session).and_then(|entry| Some((entry, entry.budget.as_ref()?)));
        let cancel = of_session.and_then(|(entry, budget)| budget.cancels(Some(session), &entry.used(now)));
        cancel.or_else(|| state.budget.as_ref()?.cancels(None, &state.used(now)))
    }

    /// Returns unpublished events of the budgets that apply to a session.
    pub(crate) fn news(&self, session: &str, now: Instant, after_turn: bool) -> Vec<BudgetEvent> {
        let mut state = self.lock();
        let mut news = Vec::new();
        if let Some(entry) = state.sessions.get_mut(session) {
            let used = entry.used(now);
            if let Some(budget) = &mut entry.budget {
                news = budget.news(Some(session), &used, after_turn);
            }
        }
        if state.budget.is_some() {
            let used = state.used(now);
            if let Some(budget) = &mut state.budget {
                news.extend(budget.news(None, &used, after_turn));
            }
        }
        news
    }

    /// Returns the time until a time limit is reached.
    pub(crate) fn next_moment(&self, session: &str, now: Instant) -> Option<Duration> {
        let state = self.lock();
        let entry = state.sessions.get(session);
        let of_session = entry.and_then(|entry| entry.budget.as_ref()?.next_moment(&entry.used(now)));
        let of_client = state.budget.as_ref().and_then(|budget| budget.next_moment(&state.used(now)));
        [of_session, of_client].into_iter().flatten().min()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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
