//! What a record has to say anew, because something happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::change::change;
use crate::sessions::{SessionRecord, SessionStore, StoreError};
use crate::store::deadline_after;
use crate::{Error, TerminationInfo};

/// How long changes are gathered before they are written, so that many of them are one write.
const GATHERING: Duration = Duration::from_millis(100);
/// How long to wait before records that could not be written are tried again, at first and at most.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LAST_WAIT: Duration = Duration::from_secs(2);
/// How long a store is given at least to take a record.
const SHORTEST: Duration = Duration::from_millis(100);

/// What a record has to say anew. What is not mentioned stays as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Amendment {
    pub(super) config_options: Option<Value>,
    pub(super) modes: Option<Value>,
    pub(super) mode: Option<String>,
    pub(super) termination: Option<TerminationInfo>,
    /// The agent was told the history.
    pub(super) told: bool,
}

impl Amendment {
    /// What an answer tells that made a session, or took it up.
    pub(super) fn of_answer(answer: &Value) -> Self {
        let member = |name: &str| answer.get(name).filter(|value| !value.is_null()).cloned();
        Self { config_options: member("configOptions"), modes: member("modes"), ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Takes in what is newer.
    fn merge(&mut self, newer: Self) {
        let Self { config_options, modes, mode, termination, told } = newer;
        self.config_options = config_options.or(self.config_options.take());
        self.modes = modes.or(self.modes.take());
        self.mode = mode.or(self.mode.take());
        self.termination = termination.or(self.termination.take());
        self.told |= told;
    }

    /// Writes it into a record.
    pub(super) fn apply(&self, record: &mut SessionRecord) {
        if let Some(options) = &self.config_options {
            record.config_options = Some(options.clone());
        }
        if let Some(modes) = &self.modes {
            record.modes = Some(modes.clone());
        }
        if let Some(mode) = &self.mode {
            match record.modes.as_mut().and_then(Value::as_object_mut) {
                Some(modes) => drop(modes.insert("currentModeId".to_owned(), mode.as_str().into())),
                None => record.modes = Some(json!({ "currentModeId": mode })),
            }
            // Agents that have an option for their mode mean the same by it.
            let options = record.config_options.as_mut().and_then(Value::as_array_mut);
            for option in options.into_iter().flatten().filter(|option| option["category"] == "mode") {
                option["currentValue"] = mode.as_str().into();
            }
        }
        if let Some(termination) = &self.termination {
            record.termination = Some(termination.clone());
        }
        record.replay_pending &= !self.told;
    }
}

/// Writes amendments behind everybody's back: many of them become one write, and nobody waits for it.
#[derive(Debug)]
pub(super) struct Amender {
    shared: Arc<Shared>,
    /// Owns the one task that writes, which ends with this.
    _writer: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<dyn SessionStore>,
    /// How long a store that fails is tried again.
    patience: Duration,
    /// Guards what waits; held to add something or to take it all.
    state: Mutex<State>,
    filled: Notify,
    /// Somebody waits, so that there is no time to gather.
    hurry: Notify,
    /// How many amendments were written, or given up.
    settled: watch::Sender<u64>,
}

/// What waits for each session, and the time it belongs to.
type Waiting = BTreeMap<String, (u64, Amendment)>;

#[derive(Debug, Default)]
struct State {
    waiting: Waiting,
    taken: u64,
    failure: Option<StoreError>,
}

impl Amender {
    /// Starts to write; a store that fails is tried again for so long.
    pub(super) fn start(store: Arc<dyn SessionStore>, patience: Duration) -> Self {
        let shared = Arc::new(Shared {
            store,
            patience,
            state: Mutex::default(),
            filled: Notify::new(),
            hurry: Notify::new(),
            settled: watch::Sender::new(0),
        });
        let mut writer = JoinSet::new();
        writer.spawn(Arc::clone(&shared).run());
        Self { shared, _writer: writer }
    }

    /// Has a record amended, if nobody else has taken the session up until then.
    pub(super) fn amend(&self, id: &str, epoch: u64, amendment: Amendment) {
        {
            let mut state = self.shared.lock();
            state.taken += 1;
            match state.waiting.get_mut(id) {
                Some((of, waiting)) if *of == epoch => waiting.merge(amendment),
                _ => drop(state.waiting.insert(id.to_owned(), (epoch, amendment))),
            }
        }
        self.shared.filled.notify_one();
    }

    /// Waits until every amendment so far is written.
    pub(super) async fn flush(&self) -> Result<(), StoreError> {
        self.settle().await?;
        self.shared.lock().failure.take().map_or(Ok(()), Err)
    }

    /// Waits until every amendment so far is written, or was given up.
    pub(super) async fn settle(&self) -> Result<(), StoreError> {
        let goal = self.shared.lock().taken;
        self.shared.hurry.notify_one();
        let mut settled = self.shared.settled.subscribe();
        settled.wait_for(|settled| *settled >= goal).await.map(drop).map_err(|_| StoreError::Closed)
    }
}

impl Shared {
    async fn run(self: Arc<Self>) {
        loop {
            let (waiting, goal) = {
                let mut state = self.lock();
                (std::mem::take(&mut state.waiting), state.taken)
            };
            self.write_all(waiting).await;
            self.settled.send_replace(goal);
            self.filled.notified().await;
            tokio::select! {
                () = tokio::time::sleep(GATHERING) => {}
                () = self.hurry.notified() => {}
            }
        }
    }

    /// Writes amendments, or gives up those that the store does not take for too long. One that it does not take does not
    /// keep the others from it.
    async fn write_all(&self, mut waiting: Waiting) {
        let deadline = deadline_after(self.patience);
        let mut wait = FIRST_WAIT;
        loop {
            let mut left = Waiting::new();
            for (id, (epoch, amendment)) in waiting {
                let Err(error) = self.write(&id, epoch, &amendment, deadline).await else { continue };
                let may_succeed = error.is_retryable() || matches!(error, StoreError::Database(_));
                if may_succeed && Instant::now() < deadline {
                    tracing::debug!(%error, session = id, "a record is written once more");
                    left.insert(id, (epoch, amendment));
                } else {
                    tracing::warn!(%error, session = id, "the record of a session could not be brought up to date");
                    self.lock().failure = Some(error);
                }
            }
            if left.is_empty() {
                return;
            }
            tokio::time::sleep(wait).await;
            (waiting, wait) = (left, (wait * 2).min(LAST_WAIT));
        }
    }

    /// Writes an amendment, if the store takes it in time. One that stands still may take it later all the same.
    async fn write(
        &self,
        id: &str,
        epoch: u64,
        amendment: &Amendment,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let taken_over = |epoch| StoreError::TakenOver { id: id.to_owned(), epoch };
        let changing = change(&*self.store, id, |record| {
            if record.epoch != epoch {
                return Err(taken_over(record.epoch).into());
            }
            amendment.apply(record);
            Ok(())
        });
        let deadline = deadline.max(Instant::now() + SHORTEST);
        match tokio::time::timeout_at(deadline, changing).await {
            Err(_) => Err(StoreError::late("the store stands still")),
            // Whoever has it now, if anybody, knows better.
            Ok(Ok(_) | Err(Error::Store(StoreError::TakenOver { .. } | StoreError::NotFound { .. }))) => {
                Ok(())
            }
            Ok(Err(Error::Store(error))) => Err(error),
            // Changing a record fails with what the store says only.
            Ok(Err(error)) => Err(StoreError::Invalid(error.to_string())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Amendment;
    use crate::session::Timestamp;
    use crate::sessions::SessionRecord;

    #[test]
    fn the_newest_counts_and_what_is_not_mentioned_stays() {
        let mut record = SessionRecord::new("s", "mock", Timestamp::from_millis(1));
        record.modes = Some(json!({"currentModeId": "ask", "availableModes": [{"id": "ask"}]}));
        record.config_options = Some(json!([{"id": "m", "category": "mode", "currentValue": "ask"}]));
        record.replay_pending = true;
        let mut amendment = Amendment { mode: Some("code".to_owned()), ..Amendment::default() };
        amendment.merge(Amendment { mode: Some("plan".to_owned()), told: true, ..Amendment::default() });
        amendment.merge(Amendment::default());
        amendment.apply(&mut record);
        let modes = json!({"currentModeId": "plan", "availableModes": [{"id": "ask"}]});
        assert_eq!(record.modes, Some(modes));
        assert_eq!(record.config_options.unwrap()[0]["currentValue"], "plan");
        assert!(!record.replay_pending && record.termination.is_none());
    }
}
