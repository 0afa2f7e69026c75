use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::kind::Fault;
use super::rule::{Rule, RuleId};

/// One request, as far as it is known when the engine is consulted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'a> {
    /// The HTTP method.
    pub(crate) verb: &'a str,
    /// The path without its query.
    pub(crate) path: &'a str,
    /// The JSON-RPC method, once the body was read.
    pub(crate) method: Option<&'a str>,
}

/// What happens to one event on one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventFate {
    /// It is sent.
    Once,
    /// It is skipped.
    Never,
    /// It is sent twice.
    Twice,
}

/// The active rules and how often each fault fired.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Guards rules and counts; held only to scan a short list.
    state: Mutex<State>,
    /// The number of rules, so that a server without faults pays one atomic load per event.
    armed: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Armed>,
    next_id: u64,
    fired: BTreeMap<&'static str, usize>,
}

#[derive(Debug)]
struct Armed {
    id: u64,
    rule: Rule,
    skip: usize,
    left: Option<usize>,
    since: Instant,
}

impl Faults {
    /// Activates a rule.
    pub(crate) fn arm(&self, rule: Rule) -> RuleId {
        let mut state = self.lock();
        state.next_id += 1;
        let id = state.next_id;
        let (skip, left) = rule.budget();
        state.rules.push(Armed { id, rule, skip, left, since: Instant::now() });
        self.armed.store(state.rules.len(), Ordering::SeqCst);
        RuleId(id)
    }

    /// Deactivates one rule.
    pub(crate) fn lift(&self, id: RuleId) {
        let mut state = self.lock();
        state.rules.retain(|armed| armed.id != id.0);
        self.armed.store(state.rules.len(), Ordering::SeqCst);
    }

    /// Deactivates all rules. The counts remain.
    pub(crate) fn clear(&self) {
        let mut state = self.lock();
        state.rules.clear();
        self.armed.store(0, Ordering::SeqCst);
    }

    /// Returns how often each fault fired.
    pub(crate) fn fired(&self) -> BTreeMap<&'static str, usize> {
        self.lock().fired.clone()
    }

    /// Counts a fault that fires outside the rules.
    pub(crate) fn count(&self, fault: &Fault) {
        *self.lock().fired.entry(fault.name()).or_default() += 1;
    }

    /// Fires the first active rule that matches `moment` and that `pick` accepts.
    pub(crate) fn strike<T>(&self, moment: &Moment<'_>, pick: impl Fn(&Fault) -> Option<T>) -> Option<T> {
        self.strike_since(moment, |fault, _| pick(fault))
    }

    /// Like [`Faults::strike`]; `pick` also receives the time when the rule was activated.
    pub(crate) fn strike_since<T>(
        &self,
        moment: &Moment<'_>,
        pick: impl Fn(&Fault, Instant) -> Option<T>,
    ) -> Option<T> {
        self.scan(|armed| {
            let fits = armed.rule.fits(moment.verb, moment.path, moment.method);
            fits.then(|| pick(armed.rule.fault(), armed.since)).flatten()
        })
    }

    /// Like [`Faults::strike`], only for rules without a JSON-RPC method, because the body was not read yet.
    pub(crate) fn strike_unread<T>(
        &self,
        moment: &Moment<'_>,
        pick: impl Fn(&Fault) -> Option<T>,
    ) -> Option<T> {
        self.scan(|armed| {
            let fits = !armed.rule.needs_method() && armed.rule.fits(moment.verb, moment.path, None);
            fits.then(|| pick(armed.rule.fault())).flatten()
        })
    }

    /// Like [`Faults::strike`], without counting.
    pub(crate) fn peek<T>(&self, moment: &Moment<'_>, pick: impl Fn(&Fault) -> Option<T>) -> Option<T> {
        if self.armed.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let state = self.lock();
        let mut fitting = state.rules.iter().filter(|armed| armed.left != Some(0)).filter(|armed| {
            !armed.rule.needs_method() && armed.rule.fits(moment.verb, moment.path, moment.method)
        });
        fitting.find_map(|armed| pick(armed.rule.fault()))
    }

    /// Returns what happens to the event with this id.
    pub(crate) fn event_fate(&self, id: u64) -> EventFate {
        self.scan(|armed| match armed.rule.fault() {
            Fault::Hole { id: hole } if *hole == id => Some(EventFate::Never),
            Fault::Repeat { id: again } if *again == id => Some(EventFate::Twice),
            _ => None,
        })
        .unwrap_or(EventFate::Once)
    }

    fn scan<T>(&self, mut pick: impl FnMut(&Armed) -> Option<T>) -> Option<T> {
        if self.armed.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut state = self.lock();
        let State { rules, fired, .. } = &mut *state;
        for armed in rules {
            if armed.left == Some(0) {
                continue;
            }
            let Some(taken) = pick(armed) else { continue };
            if armed.skip > 0 {
                armed.skip -= 1;
                continue;
            }
            if let Some(left) = &mut armed.left {
                *left -= 1;
            }
            *fired.entry(armed.rule.fault().name()).or_default() += 1;
            return Some(taken);
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(method: &'static str) -> Moment<'static> {
        Moment { verb: "POST", path: "/v1/rpc", method: Some(method) }
    }

    fn hangs(faults: &Faults, method: &'static str) -> bool {
        faults.strike(&post(method), |fault| (*fault == Fault::PostHangs).then_some(())).is_some()
    }

    #[tokio::test]
    async fn a_rule_fires_after_its_skips_and_only_as_often_as_allowed() {
        let faults = Faults::default();
        faults.arm(Fault::PostHangs.on_method("session/prompt").skip(1).times(2));
        let struck: Vec<bool> =
            ["session/new", "session/prompt", "session/prompt", "session/prompt", "session/prompt"]
                .into_iter()
                .map(|method| hangs(&faults, method))
                .collect();
        assert_eq!(struck, [false, false, true, true, false]);
        assert_eq!(faults.fired()["PostHangs"], 2);
    }

    #[tokio::test]
    async fn a_deactivated_rule_does_not_fire() {
        let faults = Faults::default();
        let id = faults.arm(Fault::PostHangs.into());
        assert!(hangs(&faults, "x"));
        faults.lift(id);
        assert!(!hangs(&faults, "x"));
    }

    #[tokio::test]
    async fn a_rule_about_a_method_is_not_evaluated_before_the_body_was_read() {
        let faults = Faults::default();
        faults.arm(Fault::PostResetBeforeRead.on_method("a"));
        let unread = Moment { verb: "POST", path: "/v1/rpc", method: None };
        assert!(faults.strike_unread(&unread, |_| Some(())).is_none());
        assert!(faults.strike(&post("a"), |_| Some(())).is_some());
    }
}
