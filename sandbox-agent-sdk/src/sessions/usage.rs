//! The usage of stored sessions.

use std::time::Duration;

use serde_json::{Value, json};

use super::session::StoredSession;
use super::store::{EventQuery, StoredEvent, StoredEventKind, raw_update};
use crate::event::Origin;
use crate::session::Timestamp;
use crate::usage::agents::Rules;
use crate::usage::{Meter, TurnEnd, UsageTotals};
use crate::{Error, Update};

impl StoredSession {
    /// Returns the usage of the session since it was created, over all processes and restarts.
    ///
    /// It is computed from the stored events. Each event is stored once, so nothing counts twice.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn usage(&self) -> Result<UsageTotals, Error> {
        self.client().flush_session(self.id()).await;
        let agent = self.record().await?.agent;
        let mut count = Count::new(&agent);
        let visit = |event: StoredEvent| {
            count.take(&event);
            None::<()>
        };
        self.client().shared.find_event(EventQuery::of(self.id()), visit).await?;
        Ok(count.meter.totals())
    }
}

/// Counts stored events in their order.
struct Count {
    meter: Meter,
    rules: Rules,
    /// When the open turn began.
    began: Option<Timestamp>,
    agent_session: Option<String>,
}

impl Count {
    fn new(agent: &str) -> Self {
        Self { meter: Meter::default(), rules: Rules::of(agent), began: None, agent_session: None }
    }

    fn take(&mut self, event: &StoredEvent) {
        let payload = &event.payload;
        match event.kind {
            StoredEventKind::Prompt => {
                self.end_turn(event.recorded_at, None, true);
                self.meter.begin_turn();
                self.began = Some(event.recorded_at);
            }
            StoredEventKind::Update => {
                let update = Update::read(json!({ "update": raw_update(payload) }), Origin::Live, 0);
                self.meter.observe(&update, self.rules);
            }
            StoredEventKind::TurnEnded => {
                let executed = payload.get("executed").and_then(Value::as_bool).unwrap_or(true);
                self.end_turn(event.recorded_at, payload.get("answer"), executed);
            }
            StoredEventKind::Ended => self.meter.end_process(self.rules),
            StoredEventKind::Restored => {
                let session = payload.get("agentSessionId").and_then(Value::as_str).map(str::to_owned);
                if session.is_some() && self.agent_session.is_some() && session != self.agent_session {
                    self.meter.end_session();
                }
                self.agent_session = session.or(self.agent_session.take());
            }
            _ => {}
        }
    }

    fn end_turn(&mut self, now: Timestamp, response: Option<&Value>, executed: bool) {
        let Some(began) = self.began.take() else { return };
        let elapsed = Duration::from_millis(now.as_millis().saturating_sub(began.as_millis()));
        let stop = response.and_then(|response| response.get("stopReason")).and_then(Value::as_str);
        let end = TurnEnd { response, elapsed, cancelled: stop == Some("cancelled"), executed };
        self.meter.end_turn(&end, self.rules);
    }
}
