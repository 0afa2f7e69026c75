//! One order for everything that a stream and the bodies of its calls bring.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::backlog::Backlog;
use crate::{
    Barrier, Continuity, EventId, EventIds, Limits, Order, Origin,
    events::{is_conversation, peek_session},
    rpc::{Body, Ids, Message, MessageError, RpcOutcome},
    sse::{Fingerprint, Flow, Identity, Sequenced},
};

/// A moment, as the time since the connection was made: the core has no clock.
pub(crate) type Moment = Duration;

/// The settings of an ordered core.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) barrier: Barrier,
    pub(crate) event_ids: EventIds,
    pub(crate) limits: Limits,
    /// Whether the first opening may replay messages from before this client.
    pub(crate) backlog: bool,
    pub(crate) resume_from: Option<String>,
    /// How long a response from a body is deferred for its echo while its session is silent.
    pub(crate) order: Duration,
    /// How long it is deferred in all.
    pub(crate) order_limit: Duration,
    /// The silence that stands for a barrier where there is none.
    pub(crate) quiet: Duration,
    /// How long the first response may wait for an echo before the server is taken not to send any.
    pub(crate) learn: Duration,
    /// How long a request that may be lost waits for an event of its session.
    pub(crate) unconfirmed: Option<Duration>,
    /// The silence, and the time in all, after which the backlog of the first opening is over.
    pub(crate) backlog_quiet: Duration,
    pub(crate) backlog_limit: Duration,
}

/// One message in its place.
#[derive(Debug)]
pub(crate) struct Ordered {
    pub(crate) event_id: Option<EventId>,
    pub(crate) origin: Origin,
    pub(crate) message: Message,
}

/// What the core decides, in the one order in which it happens.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A message for subscribers, handlers or another client.
    Message(Ordered),
    /// A response to a request of ours on the stream, also if its caller is gone.
    Echo {
        event_id: Option<EventId>,
        number: u64,
        raw: Bytes,
    },
    /// A request of ours is answered.
    Settle {
        number: u64,
        outcome: RpcOutcome,
        order: Order,
        from_stream: bool,
    },
    /// A request of ours is not going to be answered.
    Fail {
        number: u64,
        why: Lost,
    },
    /// An event that is no message.
    Malformed {
        event_id: Option<EventId>,
        data: Bytes,
        error: MessageError,
    },
    Gap {
        from: u64,
        to: u64,
    },
    /// Another incarnation of the server.
    Restarted {
        lost_at: Option<Moment>,
    },
}

/// Why a request is not going to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Another incarnation of the server is there.
    Restart,
    /// Nothing was heard of its session since it may have been lost.
    Silence,
    /// Its POST broke, and this server answers in bodies alone.
    Post,
}

/// What of a session is its history until a call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    Everything,
    /// The messages and tool calls. What the session offers now is live.
    Conversation,
}

/// A response that came in a body, or on another stream than its updates.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) number: u64,
    pub(crate) session: Option<Arc<str>>,
    pub(crate) outcome: RpcOutcome,
    /// The number that the next request will have: an echo of that one or a later one proves that ours has passed.
    pub(crate) next_number: u64,
    /// Whether it came on another stream, so that there is no echo on this one.
    pub(crate) elsewhere: bool,
}

#[derive(Debug)]
struct Deferred {
    response: Response,
    arrived: Moment,
    /// The last message of its session.
    last: Moment,
    /// Whether its echo may lie in a gap.
    gapped: bool,
}

/// A request that only the stream can answer.
#[derive(Debug)]
struct Waiting {
    number: u64,
    session: Option<Arc<str>>,
    since: Moment,
    /// Since when its response may be lost, and the last event of its session after that.
    unconfirmed: Option<Moment>,
    /// Why its response is not going to come, if that is known.
    hopeless: Option<Lost>,
}

#[derive(Debug)]
struct Load {
    number: u64,
    session: Arc<str>,
    replay: Replay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    NotOpened,
    Open { since: Moment },
    Down,
}

type Item = (Option<EventId>, Bytes);

/// The ordered core of one stream: a state machine without I/O and without a clock.
///
/// It takes decoded events, responses from bodies, openings and ticks, and emits effects. Nothing else decides when a
/// response is given to its caller.
#[derive(Debug)]
pub(crate) struct OrderedCore {
    settings: Settings,
    ids: Arc<Ids>,
    identity: Identity<Item>,
    sequenced: Vec<Sequenced<Item>>,
    backlog: Backlog,
    released: Vec<Ordered>,
    /// The barrier that is in force; `Learn` until it is known.
    barrier: Barrier,
    /// When the first response came in a body.
    first_body: Option<Moment>,
    /// Whether the first request introduced this client, so that its echo stands before everything that is live.
    introduced: bool,
    stream: Stream,
    opened_before: bool,
    /// When the stream was first lost since an event showed that the server is the same one. What was sent later may
    /// have reached another incarnation.
    lost_at: Option<Moment>,
    /// Until when what was sent reached an incarnation that is proven gone.
    old_until: Option<Moment>,
    /// When something was last lost, or may have been.
    in_doubt_at: Option<Moment>,
    deferred: Vec<Deferred>,
    waiting: Vec<Waiting>,
    loads: Vec<Load>,
    last_bytes: Moment,
    /// When the event that is on its way began, and when its last bytes came.
    partial: Option<(Moment, Moment)>,
}

impl OrderedCore {
    pub(crate) fn new(settings: Settings, ids: Arc<Ids>) -> Self {
        Self {
            identity: Identity::new(settings.event_ids, settings.resume_from.as_deref()),
            sequenced: Vec::new(),
            backlog: Backlog::new(settings.backlog),
            released: Vec::new(),
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

    /// The stream is open. Gives what is known of the time between, unless it is the first opening.
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

    /// Takes one event. `pending` says whether a request of ours waits for its response.
    pub(crate) fn event(
        &mut self,
        now: Moment,
        id: Option<EventId>,
        data: Bytes,
        pending: impl Fn(u64) -> bool,
        out: &mut Vec<Effect>,
    ) -> Flow {
        let print = Fingerprint::of(&data);
        let (ids, limits, deferred) = (&self.ids, &self.settings.limits, &self.deferred);
        let fresh = |(_, data): &Item| {
            let message = Message::parse(data.clone(), limits).ok();
            let number = message.and_then(|message| match message.body {
                Body::Response { id, .. } => ids.number(id.as_json()),
                _ => None,
            });
            // A response that is deferred was seen, although its request is pending still.
            let seen = |number| deferred.iter().any(|deferred| deferred.response.number == number);
            number.is_some_and(|number| pending(number) && !seen(number))
        };
        let mut sequenced = std::mem::take(&mut self.sequenced);
        let flow = self.identity.accept(id.as_ref(), print, (id.clone(), data), fresh, &mut sequenced);
        self.apply(now, &mut sequenced, out);
        self.sequenced = sequenced;
        self.lost_at = None;
        flow
    }

    /// Moves behind an event that cannot be taken.
    pub(crate) fn skip(&mut self, now: Moment, id: Option<&EventId>, out: &mut Vec<Effect>) -> Flow {
        let mut sequenced = std::mem::take(&mut self.sequenced);
        let flow = self.identity.skip(id, &mut sequenced);
        self.apply(now, &mut sequenced, out);
        self.sequenced = sequenced;
        flow
    }

    /// Bytes came. `within` says that an event has begun and not ended, `whole` that events were completed.
    pub(crate) fn bytes(&mut self, now: Moment, within: bool, whole: bool) {
        self.last_bytes = now;
        let began = self.partial.filter(|_| !whole).map_or(now, |(began, _)| began);
        self.partial = within.then_some((began, now));
    }

    /// A response of a call that needs no order came in a body.
    pub(crate) fn body_seen(&mut self, now: Moment) {
        self.first_body.get_or_insert(now);
    }

    /// A response came in a body, or on another stream: it is deferred until everything before it was delivered.
    pub(crate) fn response(&mut self, now: Moment, response: Response) {
        if !response.elsewhere {
            self.first_body.get_or_insert(now);
        }
        self.waiting.retain(|waiting| waiting.number != response.number);
        self.deferred.push(Deferred { response, arrived: now, last: now, gapped: false });
    }

    /// A POST that began at `since` was accepted without a response in its body.
    pub(crate) fn accepted(&mut self, now: Moment, since: Moment, number: u64, session: Option<Arc<str>>) {
        // What may have been lost after the POST began may have been its response.
        let unconfirmed = self.in_doubt_at.filter(|doubt| *doubt >= since).map(|_| now);
        self.waiting.push(Waiting { number, session, since: now, unconfirmed, hopeless: None });
    }

    /// A POST broke after it may have been sent, `since` when it began.
    pub(crate) fn post_lost(&mut self, now: Moment, since: Moment, number: u64, session: Option<Arc<str>>) {
        let hopeless = match self.barrier {
            _ if self.old_until.is_some_and(|old| since <= old) => Some(Lost::Restart),
            Barrier::None => Some(Lost::Post),
            _ => None,
        };
        self.waiting.push(Waiting { number, session, since, unconfirmed: Some(now), hopeless });
    }

    /// A call begins until whose response the updates of its session are history.
    pub(crate) fn loading(&mut self, number: u64, session: Arc<str>, replay: Replay) {
        self.loads.push(Load { number, session, replay });
    }

    /// Nobody waits for this request any more.
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

    /// The stream has ended for good: everything that is held is given.
    pub(crate) fn end(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let mut sequenced = std::mem::take(&mut self.sequenced);
        self.identity.give_up(&mut sequenced);
        self.apply(now, &mut sequenced, out);
        self.end_backlog(out);
        for deferred in std::mem::take(&mut self.deferred) {
            self.settle(deferred.response, Order::Unverified, out);
        }
        self.waiting.clear();
        self.loads.clear();
    }

    fn apply(&mut self, now: Moment, sequenced: &mut Vec<Sequenced<Item>>, out: &mut Vec<Effect>) {
        for sequenced in sequenced.drain(..) {
            match sequenced {
                Sequenced::Item((id, data)) => match Message::parse(data.clone(), &self.settings.limits) {
                    Ok(message) => self.message(now, id, message, out),
                    Err(error) => out.push(Effect::Malformed { event_id: id, data, error }),
                },
                Sequenced::Gap { from, to } => {
                    out.push(Effect::Gap { from, to });
                    // An echo may lie in the gap: a response that is there waits for silence only, and one that is not
                    // may never come.
                    for deferred in &mut self.deferred {
                        (deferred.gapped, deferred.last) = (true, now);
                    }
                    self.unconfirm(now);
                }
                Sequenced::Restarted => self.restarted(now, out),
            }
        }
    }

    fn restarted(&mut self, now: Moment, out: &mut Vec<Effect>) {
        // What the old incarnation still owed is not going to come.
        self.end_backlog(out);
        let before = self.lost_at.unwrap_or(now);
        self.old_until = Some(before);
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
    }

    fn message(&mut self, now: Moment, id: Option<EventId>, message: Message, out: &mut Vec<Effect>) {
        let ours = match &message.body {
            Body::Response { id, .. } => self.ids.number(id.as_json()),
            _ => None,
        };
        if self.backlog.is_open() && self.echo_ends_backlog() {
            let origin = if ours.is_some() { Origin::Live } else { Origin::Replayed };
            if ours.is_some() {
                self.end_backlog(out);
            }
            self.deliver(now, Ordered { event_id: id, origin, message }, out);
        } else if self.backlog.is_open() {
            let mut released = std::mem::take(&mut self.released);
            self.backlog.push(id, message, ours.is_some(), &mut released);
            for ordered in released.drain(..) {
                self.deliver(now, ordered, out);
            }
            self.released = released;
        } else {
            self.deliver(now, Ordered { event_id: id, origin: Origin::Live, message }, out);
        }
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

    /// The response to one of our requests passed on the stream.
    fn echo(&mut self, number: u64, ordered: Ordered, out: &mut Vec<Effect>) {
        if matches!(self.barrier, Barrier::Learn | Barrier::None) {
            self.barrier = Barrier::Echo;
        }
        // Whatever was answered before this request was made has passed too.
        let passed = |deferred: &Deferred| {
            deferred.response.number != number
                && !deferred.response.elsewhere
                && deferred.response.next_number <= number
        };
        while let Some(place) = self.deferred.iter().position(passed) {
            let deferred = self.deferred.remove(place);
            self.settle(deferred.response, Order::Verified, out);
        }
        let Body::Response { outcome, .. } = ordered.message.body else { return };
        out.push(Effect::Echo { event_id: ordered.event_id, number, raw: ordered.message.raw });
        // The echo decides when; the body, if there is one, decides what: it may say more.
        let deferred = self.deferred.iter().position(|deferred| deferred.response.number == number);
        let outcome = match deferred {
            Some(place) => self.deferred.remove(place).response.outcome,
            None => outcome,
        };
        self.forget(number);
        out.push(Effect::Settle { number, outcome, order: Order::Verified, from_stream: true });
    }

    fn settle(&mut self, response: Response, order: Order, out: &mut Vec<Effect>) {
        self.forget(response.number);
        out.push(Effect::Settle {
            number: response.number,
            outcome: response.outcome,
            order,
            from_stream: false,
        });
    }

    fn fail(&mut self, number: u64, why: Lost, out: &mut Vec<Effect>) {
        self.forget(number);
        out.push(Effect::Fail { number, why });
    }

    fn unconfirm(&mut self, now: Moment) {
        self.in_doubt_at = Some(now);
        for waiting in &mut self.waiting {
            waiting.unconfirmed.get_or_insert(now);
        }
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
        for waiting in &mut self.waiting {
            if waiting.unconfirmed.is_some() && is_of(&waiting.session) {
                waiting.unconfirmed = Some(now);
            }
        }
    }

    /// Whether an update belongs to the history of a session that is being loaded.
    fn is_history(&self, params: &[u8]) -> bool {
        if self.loads.is_empty() {
            return false;
        }
        let Some(session) = peek_session(params) else { return false };
        let mut loads = self.loads.iter().filter(|load| *load.session == *session);
        loads.any(|load| load.replay == Replay::Everything || is_conversation(params))
    }

    /// When a deferred response is given even though its echo has not passed.
    fn due(&self, deferred: &Deferred) -> Moment {
        let settings = &self.settings;
        let since = match self.stream {
            Stream::Open { since } => since,
            // A stream that is down, or not open yet, gets a moment.
            Stream::Down | Stream::NotOpened => return deferred.arrived + settings.order,
        };
        let limit = deferred.arrived.max(since) + settings.order_limit;
        let silent_since = deferred.last.max(since);
        let at = match self.barrier {
            _ if deferred.gapped => silent_since + settings.quiet,
            Barrier::Echo if !deferred.response.elsewhere => silent_since + settings.order,
            Barrier::Learn if !deferred.response.elsewhere => {
                (silent_since + settings.order).min(self.learnt_at().unwrap_or(limit))
            }
            _ => silent_since + settings.quiet,
        };
        let at = match self.partial {
            // An event that was on its way may be the one that is waited for. One that began later is not.
            Some((began, last)) if began <= at => at.max(last + settings.quiet),
            _ => at,
        };
        let at = at.min(limit);
        // Nobody may act as if held messages had been delivered.
        if self.backlog.is_holding() { at.max(self.backlog_deadline().unwrap_or(at)) } else { at }
    }

    /// When it is decided that this server does not echo responses.
    fn learnt_at(&self) -> Option<Moment> {
        let since = match self.stream {
            Stream::Open { since } => since,
            _ => return None,
        };
        let at = self.first_body?.max(since) + self.settings.learn;
        Some(match self.partial {
            Some((began, last)) if began <= at => at.max(last + self.settings.quiet),
            _ => at,
        })
    }

    fn learn(&mut self, now: Moment) {
        if self.barrier == Barrier::Learn && self.learnt_at().is_some_and(|at| at <= now) {
            self.barrier = Barrier::None;
        }
    }

    fn given_up_at(&self, waiting: &Waiting) -> Option<Moment> {
        if waiting.hopeless.is_some() {
            return waiting.unconfirmed;
        }
        waiting.unconfirmed?.checked_add(self.settings.unconfirmed?)
    }

    /// This client introduces itself with its first request.
    pub(crate) fn introducing(&mut self) {
        self.introduced = true;
    }

    /// Whether the echo of our first response ends the backlog, so that nothing is live before it.
    fn echo_ends_backlog(&self) -> bool {
        self.introduced && self.barrier == Barrier::Echo
    }

    fn backlog_deadline(&self) -> Option<Moment> {
        let Stream::Open { since } = self.stream else { return None };
        let settings = &self.settings;
        let deadline =
            self.backlog.deadline(since, self.last_bytes, settings.backlog_quiet, settings.backlog_limit)?;
        match self.echo_ends_backlog() {
            // A server that breaks the promise of echoes is found out by a silence behind its first response.
            true => self.first_body.map(|body| body.max(self.last_bytes).max(since) + settings.order),
            false => Some(deadline),
        }
    }

    /// The backlog is over without an echo of ours. Where echoes are known to come, what is held is older than our
    /// first response. Where none come, and something was answered, it is as new as anything.
    fn end_backlog(&mut self, out: &mut Vec<Effect>) {
        let live = self.barrier != Barrier::Echo && self.first_body.is_some();
        let mut released = std::mem::take(&mut self.released);
        self.backlog.close(if live { Origin::Live } else { Origin::Replayed }, &mut released);
        let now = self.last_bytes;
        for ordered in released.drain(..) {
            self.deliver(now, ordered, out);
        }
        self.released = released;
    }

    fn hole_deadline(&self) -> Option<Moment> {
        self.identity.patience().map(|patience| self.last_bytes + patience)
    }
}
