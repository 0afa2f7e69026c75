//! The event loop of one stream.

mod opening;
mod reopening;
mod wake;

use std::{
    future::{Future, poll_fn},
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
    task::Poll,
};

use bytes::Bytes;
use futures::FutureExt;
use tokio::time::Instant;

use self::{opening::Proof, wake::Timer};
use super::{
    Link, LinkState,
    order::{Effect, Moment},
    router,
};
use crate::{
    EndReason, Error, Event, EventId, EventSource, Phase, Timeout,
    client::Core,
    printable::OneLine,
    sse::{Backoff, Decoder, Flow, Frame},
    transport::EventStream,
};

pub(super) use wake::Wake;

/// The reader yields after this many events: subscribers read events while they are in the cache, and a chunk of
/// thousands of events does not starve other tasks.
const BATCH: usize = 128;

/// Reads a stream until the connection or the session ends.
pub(super) async fn run(core: Arc<Core>, link: Arc<Link>) {
    let ended = link.clone();
    let mut reader = Reader::new(core.clone(), link.clone());
    let reading = AssertUnwindSafe(reader.keep_open()).catch_unwind();
    let outcome = tokio::select! {
        () = ended.ended() => Ok(()),
        outcome = reading => outcome,
    };
    flush(&core, &link);
    if outcome.is_err() {
        core.terminate(EndReason::Panicked);
    }
}

/// Delivers what an ended stream still holds.
pub(crate) fn flush(core: &Arc<Core>, link: &Arc<Link>) {
    let mut effects = Vec::new();
    link.core().end(link.moment(Instant::now()), &mut effects);
    for effect in effects {
        router::apply(core, link, effect);
    }
}

/// Why reading stopped.
enum Stop {
    /// The stream broke or ended.
    Lost(Option<Error>),
    /// It is opened again at once, to fetch missing events.
    Reopen,
}

/// What to do with a stream that is not open.
enum Next {
    Now,
    /// The stream is about to exist.
    Soon,
    Wait(Option<Error>),
    End,
}

struct Reader {
    core: Arc<Core>,
    link: Arc<Link>,
    backoff: Backoff,
    /// The effects of the ordered core; the buffer is reused.
    effects: Vec<Effect>,
    /// Whether the next stream is opened at the beginning of the buffer, to see whether the server restarted.
    from_beginning: bool,
    proof: Proof,
    /// Since when the server has responded with 404 for a stream that should exist.
    missing_since: Option<Instant>,
    /// How often in a row the stream did not exist yet.
    not_yet: u32,
    opened_once: bool,
    /// When the current chunk arrived.
    now: Instant,
    /// The last recorded time of a message.
    noted: Instant,
    timer: Timer,
}

impl Reader {
    fn new(core: Arc<Core>, link: Arc<Link>) -> Self {
        let born = Instant::now();
        Self {
            backoff: Backoff::new(core.options.reconnect.clone()),
            effects: Vec::new(),
            from_beginning: false,
            proof: Proof::None,
            missing_since: None,
            not_yet: 0,
            opened_once: false,
            now: born,
            noted: born,
            timer: Timer::default(),
            core,
            link,
        }
    }

    async fn keep_open(&mut self) {
        loop {
            let next = match self.open().await {
                Ok(stream) => match self.read(stream).await {
                    Stop::Reopen => Next::Now,
                    Stop::Lost(error) => Next::Wait(error),
                },
                Err(failure) => self.refused(failure),
            };
            self.link.input(|core, now| core.lost(now));
            match next {
                Next::Now => {}
                Next::Soon => {
                    let delay = self.soon();
                    self.serve(tokio::time::sleep(delay), None).await;
                }
                Next::Wait(error) => {
                    if !self.wait(error).await {
                        return;
                    }
                }
                Next::End => return,
            }
        }
    }

    /// Runs a future to its end, and the ordered core meanwhile. `None` if the time expired first.
    async fn serve<T>(&mut self, future: impl Future<Output = T>, until: Option<Instant>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        loop {
            self.set_timer(until);
            let output = poll_fn(|context| {
                if self.link.wake.poll(context).is_ready() {
                    return Poll::Ready(None);
                }
                if let Poll::Ready(output) = future.as_mut().poll(context) {
                    return Poll::Ready(Some(output));
                }
                self.timer.poll(context).map(|()| None)
            });
            if let Some(output) = output.await {
                return Some(output);
            }
            self.tick();
            if until.is_some_and(|until| until <= Instant::now()) {
                return None;
            }
        }
    }

    /// Sets the timer to the next deadline of the ordered core, or to `until`.
    fn set_timer(&mut self, until: Option<Instant>) {
        let core = self.link.core();
        let deadline = core.deadline().and_then(|deadline| self.link.instant(deadline));
        let at = self.timer.arm([deadline, until].into_iter().flatten().min());
        self.link.wake.set_timer(at.map(|at| self.link.moment(at)));
    }

    /// Reads until the stream ends or has to be opened again.
    async fn read(&mut self, mut stream: EventStream) -> Stop {
        let mut decoder = Decoder::new(&self.core.options.limits);
        let opened = Instant::now();
        let mut last_bytes = opened;
        let idle = self.core.options.timeouts.stream_idle;
        let stop = loop {
            let idle_at = idle.and_then(|idle| last_bytes.checked_add(idle));
            let proof_at = match self.proof {
                Proof::None => None,
                Proof::Overlap(until) | Proof::Probe(until) => Some(until),
            };
            let until = [idle_at, proof_at].into_iter().flatten().min();
            match self.serve(stream.chunk(), until).await {
                Some(Ok(Some(chunk))) => {
                    last_bytes = Instant::now();
                    self.now = last_bytes;
                    decoder.push(chunk);
                    if let Some(stop) = self.take_events(&mut decoder).await {
                        break stop;
                    }
                }
                Some(Ok(None)) => break Stop::Lost(None),
                Some(Err(source)) => {
                    break Stop::Lost(Some(Error::ConnectionLost {
                        method: "event stream".to_owned(),
                        source,
                    }));
                }
                None => {
                    if idle_at.is_some_and(|idle_at| idle_at <= Instant::now()) {
                        break Stop::Lost(Some(self.timeout(Phase::StreamIdle, last_bytes)));
                    }
                    if let Some(stop) = self.unproven() {
                        break stop;
                    }
                }
            }
        };
        if opened.elapsed() >= self.backoff.stable_after() {
            self.backoff.progressed();
        }
        stop
    }

    /// Takes the decoder's events, and yields between batches.
    async fn take_events(&mut self, decoder: &mut Decoder) -> Option<Stop> {
        let mut taken = 0;
        while let Some(frame) = decoder.next_frame() {
            let flow = match frame {
                Frame::Event { id, data } => self.take_event(id, data),
                Frame::Id(id) => self.skip(Some(&id)),
                Frame::Ignored { id } => self.ignore(id.as_ref()),
                Frame::IdTooLong { size, start } => {
                    router::id_too_long(&self.core, size, &start);
                    Flow::Continue
                }
                Frame::Retry(delay) => {
                    self.backoff.retry_field(delay);
                    Flow::Continue
                }
                Frame::TooLarge { id, seen, head } => self.skip_oversize(id, seen, &head),
                Frame::Endless => return Some(Stop::Lost(Some(self.endless()))),
            };
            if flow == Flow::Reopen {
                return Some(Stop::Reopen);
            }
            taken += 1;
            if taken % BATCH == 0 {
                tokio::task::yield_now().await;
            }
        }
        let now = self.link.moment(self.now);
        if self.note_bytes(now, decoder.is_within_event(), taken > 0) {
            // A stream that is never quiet has deadlines too.
            self.tick();
        }
        tokio::task::coop::consume_budget().await;
        None
    }

    /// Notifies the core that bytes arrived. Returns whether a deadline has passed.
    fn note_bytes(&self, now: Moment, within: bool, whole: bool) -> bool {
        let mut core = self.link.core();
        core.bytes(now, within, whole);
        self.core.stats.repeats.store(core.identity().repeats(), Ordering::Relaxed);
        core.deadline().is_some_and(|deadline| deadline <= now)
    }

    fn take_event(&mut self, id: Option<EventId>, data: Bytes) -> Flow {
        if std::mem::replace(&mut self.noted, self.now) != self.now {
            self.link.message_arrived(self.now);
        }
        let now = self.link.moment(self.now);
        let pending = |number| self.core.pending().get_mut(number).is_some();
        let mut core = self.link.core();
        let flow = core.event(now, id, data, pending, &mut self.effects);
        if core.identity().is_decided() {
            self.proof = Proof::None;
        }
        drop(core);
        self.apply();
        flow
    }

    fn skip(&mut self, id: Option<&EventId>) -> Flow {
        let now = self.link.moment(self.now);
        let flow = self.link.core().skip(now, id, &mut self.effects);
        self.apply();
        flow
    }

    /// Skips an event that is not a message.
    fn ignore(&mut self, id: Option<&EventId>) -> Flow {
        self.core.stats.ignored.fetch_add(1, Ordering::Relaxed);
        id.map_or(Flow::Continue, |id| self.skip(Some(id)))
    }

    fn tick(&mut self) {
        let now = self.link.moment(Instant::now());
        self.link.core().tick(now, &mut self.effects);
        self.apply();
    }

    fn apply(&mut self) {
        if self.effects.is_empty() {
            return;
        }
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            if !matches!(effect, Effect::Settle { .. } | Effect::Fail { .. }) {
                self.backoff.progressed();
            }
            router::apply(&self.core, &self.link, effect);
        }
        self.effects = effects;
    }

    /// Skips an event that is too large, and fails the call to which it responds.
    fn skip_oversize(&mut self, id: Option<EventId>, seen: usize, head: &Bytes) -> Flow {
        let limit = self.core.options.limits.message;
        let error = Error::MessageTooLarge { limit, seen, event_id: id.clone() };
        tracing::warn!(?id, limit, stream = %OneLine(self.link.source()), "a message exceeds the limit and was skipped");
        self.core.stats.oversize.fetch_add(1, Ordering::Relaxed);
        self.link.message_arrived(self.now);
        self.core.publish(Event::TooLarge { error: error.clone() });
        let waiter = self.core.ids.find(head).and_then(|number| self.core.pending().take(number));
        if let Some(waiter) = waiter {
            waiter.settle(Err(error));
        }
        let position = |link: &Link| link.core().identity().resume_point();
        let before = position(&self.link);
        let identified = id.is_some() || self.link.core().identity().last_number().is_some();
        let flow = if identified { self.skip(id.as_ref()) } else { Flow::Continue };
        // If that moved the stream position, the stream continues after the event at once; otherwise the event's end
        // must be read.
        if position(&self.link) == before {
            return flow;
        }
        self.backoff.progressed();
        Flow::Reopen
    }

    fn endless(&self) -> Error {
        let limit = self.core.options.limits.message;
        Error::MessageTooLarge { limit, seen: 2 * limit, event_id: None }
    }

    fn is_connection(&self) -> bool {
        self.link.source() == &EventSource::Connection
    }

    fn timeout(&self, phase: Phase, since: Instant) -> Error {
        Error::Timeout(Box::new(Timeout {
            phase,
            what: "event stream".to_owned(),
            elapsed: since.elapsed(),
            last_event_age: self.core.last_event_age(),
            state: self.core.state(),
            cause: None,
        }))
    }
}
