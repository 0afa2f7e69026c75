//! One order for the events of a stream and the response bodies of its calls.

mod beginning;
mod deferred;
mod effect;
mod floors;
mod history;
mod settings;
#[cfg(test)]
mod tests;
mod unconfirmed;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use self::{deferred::Deferred, floors::Floors, history::Load, unconfirmed::Waiting};
use super::backlog::Backlog;
use crate::{
    Barrier, Continuity, EventId, Order, Origin,
    events::peek_session,
    rpc::{Body, Ids, Message},
    sse::{Fingerprint, Flow, Identity, Sequenced},
};

pub(crate) use effect::{Effect, Lost, Ordered, Replay, Response};
pub(crate) use settings::Settings;

/// A point in time, as the time since the connection was created: the core has no clock.
pub(crate) type Moment = Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    NotOpened,
    Open { since: Moment },
    Down,
}

/// What is known about an event besides its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    None,
    /// Its id does not identify it, and an earlier opening had an event with the same content.
    Alike,
    /// It lies in a gap that was reported before.
    Late,
}

type Item = (Option<EventId>, Bytes);

/// The ordered core of one stream: a state machine without I/O and without a clock.
///
/// It takes decoded events, responses from bodies, openings and ticks, and emits effects. It alone decides when a
/// response is returned to its caller.
#[derive(Debug)]
pub(crate) struct OrderedCore {
    settings: Settings,
    ids: Arc<Ids>,
    identity: Identity<Item>,
    sequenced: Vec<Sequenced<Item>>,
    backlog: Backlog,
    /// The barrier that is in force; `Learn` until it is known.
    barrier: Barrier,
    /// When the first response arrived in a body.
    first_body: Option<Moment>,
    /// Whether the first request introduced this client, so that its echo precedes everything that is live.
    introduced: bool,
    stream: Stream,
    opened_before: bool,
    /// When the stream was first lost since an event showed that the server is the same one. What was sent later may
    /// have reached another incarnation.
    lost_at: Option<Moment>,
    /// Messages sent before this time reached an incarnation that is proven gone.
    old_until: Option<Moment>,
    /// When an event was last lost, or may have been.
    in_doubt_at: Option<Moment>,
    deferred: Vec<Deferred>,
    waiting: Vec<Waiting>,
    loads: Vec<Load>,
    last_bytes: Moment,
    /// When the event that is arriving began, and when its last bytes arrived.
    partial: Option<(Moment, Moment)>,
    /// What is known about the current event.
    mark: Mark,
    floors: Floors,
    /// The number of the response that ended the backlog.
    backlog_end: Option<u64>,
    /// Whether the server has assigned a connection id, so that the endpoint is not shared.
    exclusive: bool,
    /// When the last event arrived.
    last_event: Moment,
}

impl OrderedCore {
    pub(crate) fn new(settings: Settings, ids: Arc<Ids>) -> Self {
        Self {
            identity: Identity::new(settings.event_ids, settings.resume_from.clone()),
            sequenced: Vec::new(),
            backlog: Backlog::new(settings.backlog, settings.limits.backlog),
            barrier: settings.barrier,
            first_body: None,
            introduced: false,
            stream: Stream::NotOpened,
            opened_before: false,
            lost_at: None,
            old_until: None,
            in_doubt_at: None,
            deferred: Vec::new(),
            waiting: Vec::new(),
            loads: Vec::new(),
            last_bytes: Moment::ZERO,
            partial: None,
            mark: Mark::None,
            floors: Floors::default(),
            backlog_end: None,
            exclusive: false,
            last_event: Moment::ZERO,
            settings,
            ids,
        }
    }

    pub(crate) fn identity(&self) -> &Identity<Item> {
        &self.identity
    }

    /// The barrier that is in force.
    pub(crate) fn barrier(&self) -> Barrier {
        self.barrier
    }

    /// How many responses are deferred.
    pub(crate) fn deferred(&self) -> usize {
        self.deferred.len()
    }

    /// How many requests wait for a response on the stream, or load a session.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.loads.len()
    }

    /// The stream is open. Returns the continuity since the last opening; `None` for the first opening.
    pub(crate) fn opened(&mut self, now: Moment) -> Option<Continuity> {
        let continuity = match (self.identity.is_resumable(), self.identity.is_sequence()) {
            (true, true) => Continuity::Checked,
            (true, false) => Continuity::Resumed,
            (false, _) => Continuity::Unverified,
        };
        self.identity.reopened();
        self.stream = Stream::Open { since: now };
        self.last_bytes = now;
        self.partial = None;
        if !std::mem::replace(&mut self.opened_before, true) {
            // The buffer may have lost the responses of what was accepted before.
            self.unconfirm(now);
            return None;
        }
        // Opaque ids show neither a hole nor an id that the server has forgotten.
        if continuity != Continuity::Checked {
            self.unconfirm(now);
        }
        Some(continuity)
    }

    /// The stream broke or ended.
    pub(crate) fn lost(&mut self, now: Moment) {
        if matches!(self.stream, Stream::Open { .. }) {
            self.stream = Stream::Down;
            self.lost_at.get_or_insert(now);
            self.partial = None;
        }
    }

    /// Takes one event. `pending` returns whether a request of this client waits for its response.
    pub(crate) fn event(
        &mut self,
        now: Moment,
        id: Option<EventId>,
        data: Bytes,
        pending: impl Fn(u64) -> bool,
        out: &mut Vec<Effect>,
    ) -> Flow {
        let print = Fingerprint::of(&data);
        let (ids, limits, floors) = (&self.ids, &self.settings.limits, &self.floors);
        let fresh = |(_, data): &Item| {
            let message = Message::parse(data.clone(), limits).ok();
            let number = message.and_then(|message| match message.body {
                Body::Response { id, .. } => ids.number(id.as_json()),
                _ => None,
            });
            number.filter(|number| pending(*number)).map(|number| floors.of(number))
        };
        let mut sequenced = std::mem::take(&mut self.sequenced);
        let flow = self.identity.accept(id.as_ref(), print, (id.clone(), data), fresh, &mut sequenced);
        self.apply(now, &mut sequenced, out);
        self.sequenced = sequenced;
        if self.identity.is_decided() {
            self.lost_at = None;
        }
        self.last_event = now;
        if let Some(last) = self.identity.last_number() {
            self.floors.seen(self.ids.peek(), last);
        }
        flow
    }

    /// Moves past an event that cannot be accepted.
    pub(crate) fn skip(&mut self, now: Moment, id: Option<&EventId>, out: &mut Vec<Effect>) -> Flow {
        let mut sequenced = std::mem::take(&mut self.sequenced);
        let flow = self.identity.skip(id, &mut sequenced);
        self.apply(now, &mut sequenced, out);
        self.sequenced = sequenced;
        flow
    }

    /// Bytes arrived. `within`: an event has begun and not ended. `whole`: events were completed.
    pub(crate) fn bytes(&mut self, now: Moment, within: bool, whole: bool) {
        self.last_bytes = now;
        let began = self.partial.filter(|_| !whole).map_or(now, |(began, _)| began);
        self.partial = within.then_some((began, now));
    }

    /// The caller of this request is gone.
    pub(crate) fn forget(&mut self, number: u64) {
        self.deferred.retain(|deferred| deferred.response.number != number);
        self.waiting.retain(|waiting| waiting.number != number);
        self.loads.retain(|load| load.number != number);
    }

    /// When `tick` has something to do.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        let deferred = self.deferred.iter().map(|deferred| self.due(deferred));
        let waiting = self.waiting.iter().filter_map(|waiting| self.given_up_at(waiting));
        deferred.chain(waiting).chain(self.backlog_deadline()).chain(self.hole_deadline()).min()
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if self.hole_deadline().is_some_and(|deadline| deadline <= now) {
            let mut sequenced = std::mem::take(&mut self.sequenced);
            self.identity.give_up(&mut sequenced);
            self.apply(now, &mut sequenced, out);
            self.sequenced = sequenced;
        }
        if self.backlog_deadline().is_some_and(|deadline| deadline <= now) {
            self.end_backlog(out);
        }
        self.learn(now);
        while let Some(place) = self.deferred.iter().position(|deferred| self.due(deferred) <= now) {
            let deferred = self.deferred.remove(place);
            self.settle(deferred.response, Order::Unverified, out);
        }
        let due: Vec<u64> = self
            .waiting
            .iter()
            .filter(|waiting| self.given_up_at(waiting).is_some_and(|at| at <= now))
            .map(|waiting| waiting.number)
            .collect();
        for number in due {
            let waiting = self.waiting.iter().find(|waiting| waiting.number == number);
            let why = waiting.and_then(|waiting| waiting.hopeless).unwrap_or(Lost::Silence);
            self.fail(number, why, out);
        }
    }

    /// The stream has ended permanently: everything that is held is delivered.
    pub(crate) fn end(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let mut sequenced = std::mem::take(&mut self.sequenced);
        self.identity.give_up(&mut sequenced);
        self.apply(now, &mut sequenced, out);
        self.end_backlog(out);
        for deferred in std::mem::take(&mut self.deferred) {
            self.settle(deferred.response, Order::Unverified, out);
        }
        for waiting in std::mem::take(&mut self.waiting).into_iter().filter(|waiting| waiting.abandoned) {
            out.push(Effect::Fail { number: waiting.number, why: Lost::Silence });
        }
        self.loads.clear();
    }

    fn apply(&mut self, now: Moment, sequenced: &mut Vec<Sequenced<Item>>, out: &mut Vec<Effect>) {
        for sequenced in sequenced.drain(..) {
            match sequenced {
                Sequenced::Item(item) => self.item(now, item, out),
                Sequenced::Alike(item) => self.marked_item(now, Mark::Alike, item, out),
                Sequenced::Late(item) => self.marked_item(now, Mark::Late, item, out),
                Sequenced::Unproven => self.unconfirm(now),
                Sequenced::Gap { from, to } => {
                    out.push(Effect::Gap { from, to });
                    // An echo may lie in the gap. A later echo then settles its response.
                    for deferred in &mut self.deferred {
                        deferred.last = now;
                    }
                    if self.barrier == Barrier::Echo && !self.deferred.is_empty() {
                        out.push(Effect::Probe);
                    }
                    self.unconfirm(now);
                }
                Sequenced::Restarted => self.restarted(now, out),
            }
        }
    }

    fn marked_item(&mut self, now: Moment, mark: Mark, item: Item, out: &mut Vec<Effect>) {
        self.mark = mark;
        self.item(now, item, out);
        self.mark = Mark::None;
    }

    fn item(&mut self, now: Moment, (id, data): Item, out: &mut Vec<Effect>) {
        match Message::parse(data.clone(), &self.settings.limits) {
            Ok(message) => self.message(now, id, message, out),
            Err(error) => out.push(Effect::Malformed { event_id: id, data, error }),
        }
    }

    fn restarted(&mut self, now: Moment, out: &mut Vec<Effect>) {
        // The old incarnation sends nothing more.
        self.end_backlog(out);
        let before = self.lost_at.unwrap_or(now);
        self.old_until = Some(before);
        self.floors.clear();
        self.backlog_end = None;
        while let Some(place) = self.deferred.iter().position(|deferred| deferred.arrived <= before) {
            let deferred = self.deferred.remove(place);
            self.settle(deferred.response, Order::Unverified, out);
        }
        out.push(Effect::Restarted { lost_at: self.lost_at });
        let lost: Vec<u64> = self
            .waiting
            .iter()
            .filter(|waiting| waiting.since <= before)
            .map(|waiting| waiting.number)
            .collect();
        for number in lost {
            self.fail(number, Lost::Restart, out);
        }
        // Requests sent after the stream was lost reached either incarnation.
        self.unconfirm(now);
    }

    fn deliver(&mut self, now: Moment, mut ordered: Ordered, out: &mut Vec<Effect>) {
        match ordered.message.body {
            Body::Response { ref id, .. } => {
                if let Some(number) = self.ids.number(id.as_json()) {
                    return self.echo(number, ordered, out);
                }
            }
            Body::Update { ref params }
            | Body::Notification { ref params, .. }
            | Body::Request { ref params, .. } => {
                self.session_spoke(now, params);
                let is_update = ordered.message.is_update();
                if is_update && ordered.origin == Origin::Live && self.is_history(params) {
                    ordered.origin = Origin::History;
                }
            }
        }
        out.push(Effect::Message(ordered));
    }

    fn session_spoke(&mut self, now: Moment, params: &[u8]) {
        if self.deferred.is_empty() && self.waiting.is_empty() {
            return;
        }
        let session = peek_session(params);
        let is_of = |other: &Option<Arc<str>>| other.is_none() || other.as_deref() == session.as_deref();
        for deferred in &mut self.deferred {
            if is_of(&deferred.response.session) {
                deferred.last = now;
            }
        }
        // An event that an earlier opening had too is probably replayed, and does not show that the session is
        // active.
        for waiting in self.waiting.iter_mut().filter(|_| self.mark != Mark::Alike) {
            if let Some(doubt) = &mut waiting.unconfirmed
                && is_of(&waiting.session)
            {
                doubt.last = now;
            }
        }
    }

    fn hole_deadline(&self) -> Option<Moment> {
        self.identity.hole_timeout().map(|timeout| self.last_bytes + timeout)
    }
}
