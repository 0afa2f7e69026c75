//! What all parts of a run share.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use tokio::time::{Duration, Instant};

use super::{ledger::Ledger, plan::Plan, random::Random};

/// The plan, the ledger and the trace of one run.
#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: Plan,
    started: Instant,
    ledger: Mutex<Ledger>,
    /// How often each label has drawn.
    draws: Mutex<BTreeMap<String, u32>>,
    trace: Option<Mutex<Vec<String>>>,
    violations: Mutex<Vec<String>>,
    /// Whether faults are over, so that everything can settle.
    over: AtomicBool,
    /// The last moment at which something disturbed the connection.
    disturbed: Mutex<Instant>,
    /// How many streams are open and silent.
    silent: AtomicU32,
    /// The last moment at which an event reached the client for the first time.
    progress: Mutex<Instant>,
}

impl World {
    pub(super) fn new(plan: Plan, traced: bool) -> Self {
        let started = Instant::now();
        Self {
            plan,
            started,
            ledger: Mutex::default(),
            draws: Mutex::default(),
            trace: traced.then(Mutex::default),
            violations: Mutex::default(),
            silent: AtomicU32::new(0),
            over: AtomicBool::new(false),
            disturbed: Mutex::new(started),
            progress: Mutex::new(started),
        }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Randomness for one thing that happens. What it draws does not depend on the order in which things happen.
    pub(super) fn random(&self, label: &str) -> Random {
        let mut draws = self.draws.lock().unwrap();
        let count = draws.entry(label.to_owned()).or_default();
        *count += 1;
        Random::labelled(self.plan.seed, &format!("{label}#{count}"))
    }

    pub(super) fn note(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            let line = format!("{:>9.3} {}", self.now().as_secs_f64(), line());
            trace.lock().unwrap().push(line);
        }
    }

    /// Reports that an invariant does not hold.
    pub(super) fn fail(&self, what: impl Into<String>) {
        let what = what.into();
        self.note(|| format!("VIOLATION {what}"));
        self.violations.lock().unwrap().push(what);
    }

    /// Something disturbs the connection now.
    pub(super) fn disturb(&self) {
        *self.disturbed.lock().unwrap() = Instant::now();
    }

    /// The last moment at which something disturbed the connection.
    pub(super) fn disturbed(&self) -> Instant {
        if self.silent.load(Ordering::Relaxed) > 0 {
            return Instant::now();
        }
        *self.disturbed.lock().unwrap()
    }

    /// An event reaches the client whole.
    pub(super) fn bring(&self, index: usize) {
        let mut ledger = self.ledger();
        let Some(event) = ledger.emitted.get_mut(index) else { return };
        if event.brought.is_none() {
            event.brought = Some(Instant::now());
            *self.progress.lock().unwrap() = Instant::now();
        }
        let (stream, generation) = (event.stream.clone(), event.generation);
        ledger.brought_in.insert(stream, generation);
    }

    /// The last moment at which an event reached the client for the first time.
    pub(super) fn progress(&self) -> Instant {
        *self.progress.lock().unwrap()
    }

    /// A stream is silent until the guard is dropped.
    pub(super) fn silence(&self) -> Silence<'_> {
        self.silent.fetch_add(1, Ordering::Relaxed);
        Silence(self)
    }

    pub(super) fn end_faults(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap().clone()
    }

    pub(super) fn take_trace(&self) -> Vec<String> {
        self.trace.as_ref().map(|trace| std::mem::take(&mut *trace.lock().unwrap())).unwrap_or_default()
    }
}

/// A time in which a stream brings nothing.
#[derive(Debug)]
pub(super) struct Silence<'a>(&'a World);

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        self.0.silent.fetch_sub(1, Ordering::Relaxed);
        self.0.disturb();
    }
}
