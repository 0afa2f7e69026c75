//! Storing events.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Answer, Described, EndedTurn, Replay, Tracker, Trailing};
use crate::client::deadline::deadline_after;
use crate::error::is_unknown_session;
use crate::event::EventsLost;
use crate::sessions::calls::LAST_WAIT;
use crate::sessions::entry::Entry;
use crate::sessions::holder::Holder;
use crate::sessions::store::{
    Append, Change, EventKey, NewEvent, RecordPatch, ScannedTo, SessionRecord, StoreError, StoredEventKind,
    TurnEnd,
};
use crate::{Error, TurnOutcome};

impl Tracker {
    /// Stores events of the session, if this process owns it.
    pub(super) async fn store_entries(&mut self, mut entries: Vec<Entry>) {
        let mut held: Vec<_> = entries.iter().filter_map(Entry::held_at).collect();
        if let Some(owned) = &self.owned {
            // Events that were read during the acquire are already stored.
            let is_stored = |entry: &Entry| match (owned.scanned, entry.position) {
                (Some((moment, to)), Some(position)) => {
                    entry.stream == moment.stream && position.offset <= to
                }
                _ => false,
            };
            entries.iter().filter(|entry| is_stored(entry)).for_each(Entry::release);
            entries.retain(|entry| !is_stored(entry));
        }
        self.notice(&mut entries);
        if self.owned.is_some() {
            // If the store rejects them, no event from the first one on counts as stored until the loss is stored.
            if !held.is_empty() {
                let first = held.remove(0);
                self.hold_lost(first);
            }
            if !entries.is_empty() {
                self.is_active_now();
                let mut patch = RecordPatch::default();
                self.patch_settings(&mut patch);
                entries.iter().for_each(|entry| entry.patch(&mut patch));
                self.complete_end(&entries, &mut patch);
                self.write(entries, patch, None).await;
            }
        }
        self.shared.feed.settle(held);
        if self.lost == 0 {
            self.shared.feed.settle(self.lost_at.take());
        }
        self.show();
    }

    /// Later details of the end of the agent complete the record, unless the session was opened again since.
    fn complete_end(&self, entries: &[Entry], patch: &mut RecordPatch) {
        let mut newest = entries.iter().rev();
        let details = newest.find(|entry| entry.kind == StoredEventKind::TerminationDetails);
        let details = details.and_then(|details| serde_json::from_value(details.payload.clone()).ok());
        let id = self.owned.as_ref().and_then(|owned| owned.agent_session.as_deref());
        if let (Some(details), Some(id)) = (details, id)
            && self.shared.hub.ended(id).as_ref() == Some(&details)
        {
            patch.termination_info = Change::Set(details);
        }
    }

    /// No later event counts as stored until the loss is recorded in the store.
    pub(super) fn hold_lost(&mut self, at: (u64, u64)) {
        match self.lost_at {
            Some((stream, _)) if stream == at.0 => self.shared.feed.settle([at]),
            _ => self.lost_at = Some(at),
        }
    }

    /// Updates the state of the session from entries.
    fn notice(&mut self, entries: &mut Vec<Entry>) {
        let Some(owned) = &mut self.owned else { return };
        let silence = self.shared.options.unconfirmed_timeout;
        for entry in entries.iter() {
            if entry.is_loss() {
                // The awaited response may be among the missing events.
                owned.trailing.clear();
            }
            if let Some(foreign) = &mut owned.foreign {
                foreign.hear(entry, silence);
            }
            if let (StoredEventKind::Update, Replay::Sent { is_heard }) = (&entry.kind, &mut owned.replay) {
                *is_heard = true;
            }
        }
        if let Some(ended) = entries.iter().rev().find(|entry| entry.kind == StoredEventKind::Ended) {
            (owned.is_live, owned.ended_at) = (false, Some(Instant::now()));
            if let Some(foreign) = owned.foreign.take() {
                let mut end = super::interrupted();
                end.termination_info = serde_json::from_value(ended.payload.clone()).ok();
                entries.push(Entry { turn_id: Some(foreign.turn.turn_id), ..Entry::turn_ended(&end) });
            }
        }
    }

    /// Stores events and a patch. A store that fails is tried again for a while; what it does not take is reported.
    /// Returns whether it was stored.
    pub(super) async fn write(
        &mut self,
        mut entries: Vec<Entry>,
        patch: RecordPatch,
        turn: Option<&str>,
    ) -> bool {
        let Some(owned) = &self.owned else { return false };
        let holders: Vec<_> = entries.iter_mut().map(|entry| entry.holder.take()).collect();
        // An event of a turn of this process names that turn.
        let turn = turn.or_else(|| owned.foreign.as_ref().map(|foreign| foreign.turn.turn_id.as_str()));
        let last = entries.iter().rev().find_map(|entry| entry.position);
        // Events that did not fit were reported when they arrived.
        let is_mark = |entry: &&Entry| entry.kind == StoredEventKind::Lost;
        let marked: u64 =
            entries.iter().filter(is_mark).filter_map(|mark| mark.payload["count"].as_u64()).sum();
        let is_end = |kind: &StoredEventKind| *kind == StoredEventKind::TurnEnded;
        let is_answer = |kind: &StoredEventKind| *kind == StoredEventKind::Answered;
        let is_lost = |entry: &&Entry| !is_mark(entry) && !is_end(&entry.kind);
        let count = entries.iter().filter(is_lost).count() as u64;
        let into_event = |mut entry: Entry| {
            if let Some(trailing) = owned.trailing.front()
                && entry.position.is_some()
                && entry.is_of_a_turn()
            {
                entry.turn_id = Some(trailing.turn_id.clone());
            }
            entry.into_event(owned.incarnation, turn)
        };
        let position = last.filter(|_| owned.is_numbered);
        let position = position.map(|position| self.shared.position(owned.incarnation, position));
        let events: Vec<NewEvent> = entries.into_iter().map(into_event).collect();
        let mut append = Append::to(&self.id).fence(owned.fence).patch(patch);
        append.position = position;
        append.scanned_to = self.scanned_to();
        let before = self.lost;
        append.events.extend(self.lost_mark());
        append.events.extend(self.unstored());
        // The turns and requests that they close stay open until a later append stores them.
        let ends: Vec<_> = events.iter().filter(|event| is_end(&event.kind)).cloned().collect();
        let answers: Vec<_> = events.iter().filter(|event| is_answer(&event.kind)).cloned().collect();
        let held: Vec<_> = events.iter().map(|event| event.key.clone()).zip(holders).collect();
        append.events.extend(events);
        let mut appended = self.append(append.clone()).await;
        if is_suspended(&appended, &mut append) {
            appended = self.append(append.clone()).await;
        }
        let is_final = append.patch.status.is_some();
        match appended {
            Ok(refused) => {
                self.lost -= before;
                self.stored_all(&refused);
                let stored = held.iter().filter(|(key, _)| !refused.contains(key));
                stored.filter_map(|(_, holder)| holder.as_ref()).for_each(|holder| holder.release());
                if is_final {
                    // The session does not continue, and the store has ended the ownership.
                    self.disown();
                }
                true
            }
            Err(error) => {
                self.lost += marked;
                if !error.may_be_done() {
                    self.give_up(count, error);
                    // The store does not take the responses, if this process still owns the session.
                    self.unstored_answers.drain(..).for_each(|answer| answer.settle(false));
                    return false;
                }
                let count = count - answers.len() as u64;
                self.unstored_ends.extend(ends);
                let answers = answers.into_iter().map(|event| Answer { event, stored: None });
                self.unstored_answers.extend(answers);
                self.answers_due = (!self.unstored_answers.is_empty()).then(|| deadline_after(LAST_WAIT));
                self.give_up(count, error);
                false
            }
        }
    }

    /// Stores the ends and responses that could not be stored before: no other process knows them.
    pub(in crate::sessions) async fn store_ends(&mut self) {
        if self.has_unstored() {
            self.write(Vec::new(), RecordPatch::default(), None).await;
        }
    }

    /// Appends responses again that the store did not take: agents wait for them.
    pub(super) async fn retry_answers(&mut self) {
        if self.answers_due.take_if(|due| *due <= Instant::now()).is_some() {
            self.store_ends().await;
        }
    }

    /// The responses and ends that are not stored yet. A response precedes the end of its turn.
    pub(super) fn unstored(&self) -> impl Iterator<Item = NewEvent> + '_ {
        let answers = self.unstored_answers.iter().map(|answer| &answer.event);
        answers.chain(&self.unstored_ends).cloned()
    }

    /// An append stored the responses and ends that waited for it, except those with these keys.
    pub(super) fn stored_all(&mut self, refused: &[EventKey]) {
        self.unstored_ends.clear();
        self.answers_due = None;
        for answer in self.unstored_answers.drain(..) {
            let is_stored = !refused.contains(&answer.event.key);
            answer.settle(is_stored);
        }
    }

    /// The event that reports the earlier losses.
    pub(super) fn lost_mark(&self) -> Option<NewEvent> {
        let owned = self.owned.as_ref().filter(|_| self.lost > 0)?;
        let lost = Entry::own(StoredEventKind::Lost, json!({ "count": self.lost }));
        Some(lost.into_event(owned.incarnation, None))
    }

    fn scanned_to(&self) -> Option<ScannedTo> {
        self.owned.as_ref().filter(|owned| owned.is_numbered)?;
        self.shared.scanned_to()
    }

    /// Appends, and retries a failing store until its timeout. If the store refuses single events, only these are
    /// dropped; their keys are returned.
    async fn append(&mut self, append: Append) -> Result<Vec<EventKey>, StoreError> {
        // A store that failed for its whole time is tried once, so that `flush` does not wait for each append.
        let time = if self.is_failing { Duration::ZERO } else { self.shared.options.retry_for };
        let deadline = deadline_after(time);
        let appended = self.shared.append_until(append.clone(), deadline).await;
        self.is_failing = appended.as_ref().is_err_and(StoreError::may_be_done);
        match appended {
            Err(StoreError::Invalid(_)) if append.events.len() > 1 => {
                self.append_alone(append, deadline).await
            }
            result => result.map(|()| Vec::new()),
        }
    }

    /// Appends each event alone, and then what applies after the last one: the position, and the patch, which may end the
    /// ownership. Returns the keys of the events that the store refused.
    async fn append_alone(
        &mut self,
        mut append: Append,
        deadline: Instant,
    ) -> Result<Vec<EventKey>, StoreError> {
        let mut refused = Vec::new();
        for event in std::mem::take(&mut append.events) {
            let key = event.key.clone();
            let alone = Append { fence: append.fence, ..Append::to(&self.id) }.events([event]);
            match self.shared.append_until(alone, deadline).await {
                Err(error @ StoreError::Invalid(_)) => {
                    self.give_up(1, error);
                    refused.push(key);
                }
                result => result?,
            }
        }
        match self.shared.append_until(append, deadline).await {
            Err(error @ StoreError::Invalid(_)) => self.give_up(0, error),
            result => result?,
        }
        Ok(refused)
    }

    /// Reports events that could not be stored.
    fn give_up(&mut self, count: u64, error: StoreError) {
        let is_deleted = matches!(error, StoreError::NotFound { .. }) && self.inbox.is_deleting();
        if self.inbox.is_closed() || is_deleted {
            // This process deleted the session, so nothing is lost.
            return;
        }
        self.not_stored = Some(error.clone());
        match &error {
            StoreError::OwnershipLost { .. } => return self.lose_ownership(),
            StoreError::NotFound { .. } => {
                // Another process deleted it.
                self.disown();
                self.show();
            }
            _ => {}
        }
        tracing::warn!(error = %crate::convert::text::OneLine(&error), session = self.id, count, "events could not be stored");
        if count > 0 {
            // The next event that is stored counts them.
            self.lost += if matches!(error, StoreError::NotFound { .. }) { 0 } else { count };
            self.shared.lost(EventsLost { session_id: self.id.clone(), count, error: Some(Arc::new(error)) });
        } else {
            self.shared.failed(error);
        }
    }

    /// Stores the response to an agent request. It is sent then; the end of the turn shows that it was delivered. If the
    /// store fails, the response waits for a later append.
    pub(super) async fn answered(&mut self, answer: Entry, stored: oneshot::Sender<bool>) {
        let mut answer = vec![answer];
        self.notice(&mut answer);
        let Some(owned) = &self.owned else { return };
        let turn = owned.foreign.as_ref().map(|foreign| foreign.turn.turn_id.as_str());
        let events = answer.into_iter().map(|answer| answer.into_event(owned.incarnation, turn));
        let stored = Some(stored);
        self.unstored_answers.extend(events.zip([stored]).map(|(event, stored)| Answer { event, stored }));
        self.is_active_now();
        self.store_ends().await;
    }

    /// Stores what has changed in the settings of the session.
    pub(in crate::sessions) async fn describe(&mut self) {
        let mut patch = RecordPatch::default();
        self.patch_settings(&mut patch);
        if !patch.is_empty() {
            self.write(Vec::new(), patch, None).await;
        }
    }

    fn patch_settings(&mut self, patch: &mut RecordPatch) {
        let Some(owned) = &mut self.owned else { return };
        let (Some(id), Ok(client)) = (&owned.agent_session, self.client.upgrade()) else { return };
        let snapshot = client.session(id).snapshot();
        let options = serde_json::to_value(&snapshot.config_options).ok();
        let now = Described {
            options: options.filter(|_| !snapshot.config_options.is_empty()),
            mode: snapshot.current_mode.clone(),
            model: snapshot.models.current.clone(),
        };
        if now.options.is_some() && now.options != owned.described.options {
            patch.config_options.clone_from(&now.options);
        }
        if now.mode.is_some() && now.mode != owned.described.mode {
            patch.current_mode.clone_from(&now.mode);
        }
        if now.model.is_some() && now.model != owned.described.model {
            patch.current_model.clone_from(&now.model);
        }
        owned.described = now;
    }

    /// A turn of this process ended.
    pub(super) async fn turn_ended(&mut self, ended: EndedTurn) {
        let EndedTurn { id: turn, outcome, trailing, holder } = ended;
        let Some(owned) = &mut self.owned else {
            let unowned = || {
                StoreError::Unavailable(Arc::new(io::Error::other("this process does not own the session")))
            };
            self.not_stored.get_or_insert_with(unowned);
            return;
        };
        if trailing.is_none() {
            // Everything before its response has arrived.
            owned.trailing.clear();
        }
        // If another process owned the session in between, the turn is treated like that of another process.
        let is_foreign = owned.foreign.take_if(|foreign| foreign.turn.turn_id == turn).is_some();
        if owned.turn.take_if(|own| *own == turn).is_none() && !is_foreign {
            // It was never stored, or its end is already stored.
            return;
        }
        owned.trailing.extend(trailing.map(|request| Trailing { turn_id: turn.clone(), request }));
        let outlives = owned.is_numbered && self.shared.outlives_connection(&owned.endpoint);
        if let Err(error) = &outcome {
            let is_gone = matches!(
                error,
                Error::AgentEnded(_)
                    | Error::ServerRestarted { .. }
                    | Error::NotConnected
                    | Error::Disconnected { .. }
                    | Error::ConnectionEnded { .. }
            );
            owned.is_live &= !(is_gone || is_unknown_session(error));
        }
        let mut patch = RecordPatch::default();
        if let Replay::Sent { is_heard } = owned.replay {
            // An agent that has responded, or reported anything, has read the history. Where a failure leaves that
            // open it is sent again: to get it twice does less harm than to know nothing.
            let is_known = is_heard || outcome.as_ref().is_ok_and(|outcome| outcome.sent);
            owned.replay = if is_known { Replay::Done } else { Replay::Pending };
            patch.replay_pending = is_known.then_some(false);
        }
        self.is_active_now();
        if outlives && is_cut_off(&outcome) {
            // Only the connection of this process has ended. The turn stays open for the next owner, which finds its end.
            holder.iter().for_each(|holder| holder.release());
            if !patch.is_empty() {
                self.write(Vec::new(), patch, None).await;
            }
            return self.show();
        }
        let end = TurnEnd::of(&outcome, &self.shared.options.result_rules);
        self.end_turn(&turn, &end, patch, holder).await;
        self.show();
    }

    /// Stores the end of a turn.
    pub(super) async fn end_turn(
        &mut self,
        turn: &str,
        end: &TurnEnd,
        patch: RecordPatch,
        holder: Option<Arc<Holder>>,
    ) {
        let ended = Entry { holder, ..Entry::turn_ended(end) };
        let patch = RecordPatch { status: end.status_patch().status, ..patch };
        self.write(vec![ended], patch, Some(turn)).await;
    }

    /// Ends the ownership of the session. Its agent continues.
    pub(in crate::sessions) async fn release(&mut self) -> Result<SessionRecord, Error> {
        // Events after this position belong to the next owner.
        let position = self.shared.feed.position();
        self.catch_up().await;
        self.store_ends().await;
        let Some(owned) = &self.owned else { return self.shared.record(&self.id).await };
        let fence = owned.fence;
        let mut append = Append::to(&self.id).fence(fence);
        // The end of a turn that is running may have been received. One on the endpoint of another process has its own
        // position there. After the agent or the server is gone, the position is that of another stream.
        let is_idle = owned.turn.is_none() && owned.foreign.is_none();
        let position = position.filter(|_| owned.is_numbered && owned.is_live && is_idle);
        append.position = position.map(|position| self.shared.position(owned.incarnation, position));
        append.events.extend(self.lost_mark());
        append.events.extend(self.unstored());
        let detached = Entry::own(StoredEventKind::Detached, json!({}));
        append.events.push(detached.into_event(owned.incarnation, None));
        self.shared.append(append).await?;
        // The loss marker is stored.
        self.lost = 0;
        self.stored_all(&[]);
        let is_done = |record: &SessionRecord| record.owner.is_none() && record.epoch > fence.epoch;
        let releasing = self.shared.store.release(&self.id, fence);
        let released = self.shared.confirmed(&self.id, releasing, is_done).await?;
        self.disown();
        Ok(released)
    }
}

/// Whether a turn ended in this process because its connection ended, after the prompt was sent.
fn is_cut_off(outcome: &Result<TurnOutcome, Error>) -> bool {
    matches!(outcome, Err(Error::Disconnected { .. } | Error::ConnectionEnded { sent: true, .. }))
}

/// Whether an append is to be stored without the status that it sets, because the session was suspended meanwhile.
pub(super) fn is_suspended<T>(appended: &Result<T, StoreError>, append: &mut Append) -> bool {
    matches!(appended, Err(StoreError::Status(_))) && append.patch.status.take().is_some()
}
