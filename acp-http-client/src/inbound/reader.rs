//! The task that reads one stream, and keeps it open.

mod reopening;

pub(super) use reopening::random;

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use futures::FutureExt;
use reqwest::Response;
use tokio::time::{Duration, Instant};

use super::{
    Link, LinkState,
    boundary::{Boundary, Dated},
    router,
};
use crate::{
    ConnectionState, Continuity, EndReason, Error, Event, EventId, EventSource, Origin, Phase, Profile,
    Timeout,
    client::Core,
    rpc::{Body, Message},
    sse::{Backoff, Cursor, Decoder, Fingerprint, Flow, Frame, Position, Sequenced},
    transport::{StreamFailure, Trouble},
};

/// How soon a stream that does not exist yet is tried again, while the POST that makes it is on its way.
const BOOTSTRAP_RETRY: Duration = Duration::from_millis(20);
/// How long a resumed stream has to bring the one event it is known to have.
const PROOF_PATIENCE: Duration = Duration::from_secs(1);
/// After so many events, others have their turn: subscribers read what came while it is still near, and a chunk of
/// thousands of events keeps nobody waiting.
const BATCH: usize = 128;

/// Reads a stream until the connection or the session ends.
pub(super) async fn run(core: Arc<Core>, link: Arc<Link>) {
    let ended = link.clone();
    let mut reader = Reader::new(core.clone(), link);
    let reading = AssertUnwindSafe(reader.keep_open()).catch_unwind();
    let outcome = tokio::select! {
        () = ended.ended() => Ok(()),
        outcome = reading => outcome,
    };
    // A tap or a hook of the program runs on this task. If it panics, everybody has to know that nobody reads.
    if outcome.is_err() {
        core.terminate(EndReason::Panicked);
    }
}

/// Why reading stopped.
enum Stop {
    /// The stream broke or ended.
    Lost(Option<Error>),
    /// It is opened again at once, to fetch what is missing.
    Reopen,
}

/// What to do about a stream that is not open.
enum Next {
    Now,
    /// The stream is about to exist.
    Soon,
    Wait(Option<Error>),
    End,
}

type Item = (Option<EventId>, Bytes);

struct Reader {
    core: Arc<Core>,
    link: Arc<Link>,
    cursor: Cursor<Item>,
    backoff: Backoff,
    boundary: Boundary,
    /// What the cursor and the boundary let through; kept to be used again.
    out: Vec<Sequenced<Item>>,
    dated: Vec<Dated>,
    /// What the next stream is opened with: usually the cursor's point, sometimes nothing, to see whether the
    /// server began anew.
    from_beginning: bool,
    /// The open stream should begin with an event that was seen before, and has not yet.
    proof_until: Option<Instant>,
    /// Since when the stream has been missing although the POST that makes it was taken.
    missing_since: Option<Instant>,
    opened_once: bool,
    numbered: bool,
    /// When the chunk in hand came.
    now: Instant,
    /// When the stream was last lost: what was sent before went to the server that was there then.
    lost_at: Option<Instant>,
}

impl Reader {
    fn new(core: Arc<Core>, link: Arc<Link>) -> Self {
        let options = &core.options;
        let first = link.source() == &EventSource::Connection;
        let resume = options.resume_from.as_deref().filter(|_| first);
        let may_hold_past = first && resume.is_none() && options.profile.is_shared();
        Self {
            cursor: Cursor::new(resume),
            backoff: Backoff::new(options.reconnect.clone()),
            boundary: Boundary::new(may_hold_past),
            out: Vec::new(),
            dated: Vec::new(),
            from_beginning: false,
            proof_until: None,
            missing_since: None,
            opened_once: false,
            numbered: resume.is_some(),
            now: Instant::now(),
            lost_at: None,
            core,
            link,
        }
    }

    async fn keep_open(&mut self) {
        loop {
            let next = match self.open().await {
                Ok(response) => match self.read(response).await {
                    Stop::Reopen => Next::Now,
                    Stop::Lost(error) => Next::Wait(error),
                },
                Err(failure) => self.refused(failure),
            };
            match next {
                Next::Now => {}
                Next::Soon => tokio::time::sleep(BOOTSTRAP_RETRY).await,
                Next::Wait(error) => {
                    if !self.wait(error).await {
                        return;
                    }
                }
                Next::End => return,
            }
        }
    }

    async fn open(&mut self) -> Result<Response, StreamFailure> {
        if self.core.options.profile == Profile::Bootstrap {
            self.core.gate.used().await;
        }
        let point = if self.from_beginning { None } else { self.cursor.resume_point() };
        let proves = !self.from_beginning && self.cursor.overlaps();
        let session = self.link.session().cloned();
        let opening = self.core.transport.open_stream(session.as_deref(), point.as_deref());
        let patience = self.core.options.timeouts.stream_open;
        let started = Instant::now();
        let response = tokio::time::timeout(patience, opening).await.map_err(|_| StreamFailure {
            trouble: Trouble::Passing,
            error: self.timeout(Phase::StreamOpen, started),
        })??;
        self.from_beginning = false;
        self.cursor.reopened();
        self.proof_until = proves.then(|| Instant::now() + PROOF_PATIENCE);
        if self.core.options.profile == Profile::Bootstrap {
            // The stream exists, so the POST that makes it was taken.
            self.core.gate.open();
        }
        self.link.set_unfinished(None);
        self.link.set_state(LinkState::Live { since: Instant::now() });
        if self.opened_once {
            self.core.stats.reconnects.fetch_add(1, Ordering::AcqRel);
            let continuity = if self.numbered { Continuity::Checked } else { Continuity::Unknown };
            self.core.publish(Event::Reconnected { stream: self.link.source().clone(), continuity });
        }
        self.opened_once = true;
        if self.is_connection() {
            self.core.set_state(ConnectionState::Live);
        }
        Ok(response)
    }

    /// Reads until the stream ends or has to be opened again.
    async fn read(&mut self, mut response: Response) -> Stop {
        let mut decoder = Decoder::new(&self.core.options.limits);
        let opened = Instant::now();
        let mut last_bytes = opened;
        let stop = loop {
            let idle_at =
                self.core.options.timeouts.stream_idle.and_then(|idle| last_bytes.checked_add(idle));
            let wake =
                [idle_at, self.patience_until(last_bytes), self.proof_until, self.boundary_until(opened)];
            let wake = wake.into_iter().flatten().min();
            let chunk = match wake {
                Some(wake) => tokio::time::timeout_at(wake, response.chunk()).await,
                None => Ok(response.chunk().await),
            };
            match chunk {
                Ok(Ok(Some(chunk))) => {
                    last_bytes = Instant::now();
                    self.now = last_bytes;
                    decoder.push(chunk);
                    if let Some(stop) = self.take_events(&mut decoder).await {
                        break stop;
                    }
                }
                Ok(Ok(None)) => break Stop::Lost(None),
                Ok(Err(source)) => {
                    let source = Arc::new(source.without_url());
                    break Stop::Lost(Some(Error::ConnectionLost {
                        method: "event stream".to_owned(),
                        source,
                    }));
                }
                Err(_) => {
                    if let Some(stop) = self.on_wake(opened, last_bytes, idle_at) {
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

    /// Takes what the decoder has, with a pause now and then.
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
        let before = self.link.unfinished().filter(|_| taken == 0);
        let began = before.map_or(self.now, |(began, _)| began);
        self.link.set_unfinished(decoder.is_within_event().then_some((began, self.now)));
        tokio::task::coop::consume_budget().await;
        None
    }

    fn take_event(&mut self, id: Option<EventId>, data: Bytes) -> Flow {
        self.proof_until = None;
        self.numbered |= id.is_some();
        let (position, print) = (Position::of(id.as_ref()), Fingerprint::of(&data));
        let flow = self.cursor.accept(position, print, (id, data), &mut self.out);
        self.give_out();
        flow
    }

    fn skip(&mut self, id: Option<&EventId>) -> Flow {
        let flow = self.cursor.skip(id, &mut self.out);
        self.give_out();
        self.link.moved_to(self.cursor.last());
        flow
    }

    /// Skips an event that is not a message.
    fn ignore(&mut self, id: Option<&EventId>) -> Flow {
        self.core.stats.ignored.fetch_add(1, Ordering::Relaxed);
        id.map_or(Flow::Continue, |id| self.skip(Some(id)))
    }

    /// Gives what the cursor let through to the router, in order.
    fn give_out(&mut self) {
        let mut out = std::mem::take(&mut self.out);
        let moved = !out.is_empty();
        for sequenced in out.drain(..) {
            self.backoff.progressed();
            match sequenced {
                Sequenced::Item((id, data)) => self.give_item(id, data),
                Sequenced::Gap { from, to } => {
                    self.core.stats.gaps.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(from, to, stream = %self.link.source(), "events are missing");
                    self.core.publish(Event::Gap { stream: self.link.source().clone(), from, to });
                }
                Sequenced::Restarted => {
                    self.core.stats.restarts.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(stream = %self.link.source(), "the server began anew");
                    if self.lost_at.is_some() {
                        // Whoever asked went with the server: an answer would go to somebody else.
                        self.core.calls.forget(None);
                    }
                    self.core.calls.forget_answered();
                    self.core.publish(Event::Restarted { stream: self.link.source().clone() });
                    self.core.fail_unconfirmed(self.lost_at.unwrap_or(self.now));
                }
            }
        }
        self.out = out;
        self.core.stats.repeats.store(self.cursor.repeats(), Ordering::Relaxed);
        if moved {
            self.link.moved_to(self.cursor.last());
        }
    }

    fn give_item(&mut self, id: Option<EventId>, data: Bytes) {
        self.link.message_arrived(self.now);
        let message = match Message::parse(data.clone(), &self.core.options.limits) {
            Ok(message) => message,
            Err(error) => return router::malformed(&self.core, id, &data, &error),
        };
        let ours = self.boundary.is_open()
            && matches!(&message.body, Body::Response { id, .. } if self.core.ids.number(id.as_json()).is_some());
        if self.boundary.is_open() {
            self.boundary.pass(id, message, ours, &mut self.dated);
            self.route_dated();
        } else {
            router::route(&self.core, &self.link, id, Origin::Live, message);
        }
    }

    fn route_dated(&mut self) {
        self.route_out();
        self.link.set_holding(self.boundary.is_holding());
    }

    fn route_out(&mut self) {
        for (id, message, origin) in self.dated.drain(..) {
            router::route(&self.core, &self.link, id, origin, message);
        }
    }

    /// Gets past an event that is too large, and tells whoever waits for it.
    fn skip_oversize(&mut self, id: Option<EventId>, seen: usize, head: &Bytes) -> Flow {
        let limit = self.core.options.limits.message;
        let error =
            Error::MessageTooLarge { limit, seen, event_id: id.as_ref().map(|id| id.as_text().into_owned()) };
        tracing::warn!(?id, limit, stream = %self.link.source(), "a message is over the limit and was skipped");
        self.core.stats.oversize.fetch_add(1, Ordering::Relaxed);
        self.link.message_arrived(self.now);
        self.core.publish(Event::TooLarge { error: error.clone() });
        let waiter = self.core.ids.find(head).and_then(|number| self.core.pending().take(number));
        if let Some(waiter) = waiter {
            waiter.settle(Err(error));
        }
        let before = self.cursor.resume_point();
        let flow = if self.numbered { self.skip(id.as_ref()) } else { Flow::Continue };
        // If that moved the stream, it goes on behind the event at once; otherwise the event's end has to be read.
        if self.cursor.resume_point() == before {
            return flow;
        }
        self.backoff.progressed();
        Flow::Reopen
    }

    fn endless(&self) -> Error {
        let limit = self.core.options.limits.message;
        Error::MessageTooLarge { limit, seen: 2 * limit, event_id: None }
    }

    /// Some time has passed without bytes.
    fn on_wake(&mut self, opened: Instant, last_bytes: Instant, idle_at: Option<Instant>) -> Option<Stop> {
        let now = Instant::now();
        if self.patience_until(last_bytes).is_some_and(|until| until <= now) {
            self.cursor.give_up(&mut self.out);
            self.give_out();
        }
        if self.boundary_until(opened).is_some_and(|until| until <= now) {
            self.boundary.expire(self.core.first_answer().is_some(), &mut self.dated);
            self.route_dated();
        }
        if self.proof_until.is_some_and(|until| until <= now) {
            // The server does not have the last event we saw: look at everything it has.
            self.proof_until = None;
            self.from_beginning = true;
            return Some(Stop::Reopen);
        }
        let idle = idle_at.is_some_and(|idle_at| idle_at <= now);
        idle.then(|| Stop::Lost(Some(self.timeout(Phase::StreamIdle, last_bytes))))
    }

    fn patience_until(&self, last_bytes: Instant) -> Option<Instant> {
        self.cursor.patience().map(|patience| last_bytes + patience)
    }

    fn boundary_until(&self, opened: Instant) -> Option<Instant> {
        let on_its_way = self.link.unfinished().map(|(_, last)| last);
        self.boundary.deadline(opened, self.link.last_message().max(on_its_way))
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
