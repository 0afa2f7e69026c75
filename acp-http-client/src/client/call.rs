//! One request, from its POST to its answer.

use std::{future::Future, pin::Pin, sync::Arc};

use agent_client_protocol_schema::v1::AGENT_METHOD_NAMES as METHODS;
use bytes::Bytes;
use serde::Serialize;
use tokio::time::{Duration, Instant};

use super::{
    core::{Core, Echo, Loading, Replay, Settled, Watch},
    held::{FOREVER, Held},
    ticket::Ticket,
};
use crate::{
    Error, EventSource, MessageId, Phase, Timeout,
    events::peek_message_session,
    rpc::{Body, Message, Outgoing},
    transport::{Post, PostFailure, Posted, Sent},
};

/// How long a POST may finish by itself after the stream has brought its answer, so that its connection can
/// be used again.
const FINISH: Duration = Duration::from_secs(1);

/// What can be said about a single request.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct RequestOptions {
    deadline: Deadline,
    ordered: Option<bool>,
    cancel_on_drop: Option<bool>,
    replays: bool,
}

#[derive(Debug, Clone, Copy, Default)]
enum Deadline {
    /// As [`Timeouts`](crate::Timeouts) says for the method.
    #[default]
    ByMethod,
    After(Duration),
    Never,
}

impl RequestOptions {
    /// What the client's settings say.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fails the request if it is not answered in this time.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.deadline = Deadline::After(time);
        self
    }

    /// Waits for the answer as long as it takes.
    pub fn no_timeout(mut self) -> Self {
        self.deadline = Deadline::Never;
        self
    }

    /// Whether the answer comes only after every update that the server sent before it. On by default for
    /// `session/prompt` and `session/load`.
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = Some(ordered);
        self
    }

    /// Takes what the agent tells of the session's conversation until it answers for
    /// [history](crate::Origin::History). `session/load` always is taken so, with everything else that comes of the
    /// session meanwhile. This is for `session/resume`, after which an agent should not tell anything and some do. Where
    /// others may have a turn running in the session, it would take what is new for old.
    pub fn replays(mut self, replays: bool) -> Self {
        self.replays = replays;
        self
    }

    /// Whether the agent is told when the future is dropped before its answer.
    pub fn cancel_on_drop(mut self, cancel: bool) -> Self {
        self.cancel_on_drop = Some(cancel);
        self
    }
}

type Posting = Pin<Box<dyn Future<Output = Result<Posted, PostFailure>> + Send>>;

/// A request on its way.
pub(crate) struct Exchange {
    core: Arc<Core>,
    ticket: Ticket,
    method: Arc<str>,
    session: Option<Arc<str>>,
    ordered: bool,
    body: Bytes,
    patience: Option<Duration>,
    /// When it was sent, and when it has to be answered.
    started: Instant,
    deadline: Option<Instant>,
    /// Whether this call was the first to want the session's stream.
    opened_stream: bool,
    /// An answer that waits for the updates before it.
    held: Option<Held>,
    /// What became of a POST whose outcome is unknown.
    lost: Option<Lost>,
    _loading: Option<Loading>,
}

struct Lost {
    error: Error,
    since: Instant,
    watch: Watch,
}

impl Exchange {
    /// Makes a place for the answer and writes the message. Nothing is sent yet.
    pub(crate) fn new<P: Serialize + ?Sized>(
        core: &Arc<Core>,
        method: &str,
        params: &P,
        options: &RequestOptions,
    ) -> Result<Self, Error> {
        core.check_alive()?;
        let name: Arc<str> = method.into();
        let encode_error = |source| Error::Encode { method: method.to_owned(), source: Arc::new(source) };
        let number = core.ids.next();
        let body = Outgoing::request(&core.ids.id(number), method, params).map_err(encode_error)?;
        let session = peek_message_session(&body);
        let cancel = options.cancel_on_drop.unwrap_or(core.options.cancel_on_drop);
        let ticket = Ticket::register(core, number, name.clone(), session.clone(), cancel);
        // The connection may have ended between the look and the registration, and then nobody would wake us.
        core.check_alive()?;
        let patience = match options.deadline {
            Deadline::ByMethod => core.options.timeouts.for_method(method),
            Deadline::After(time) => Some(time),
            Deadline::Never => None,
        };
        let streams = method == METHODS.session_prompt || method == METHODS.session_load;
        let replay = match method == METHODS.session_load {
            true => Some(Replay::Everything),
            false => options.replays.then_some(Replay::Conversation),
        };
        Ok(Self {
            ticket,
            method: name,
            ordered: options.ordered.unwrap_or(streams),
            body,
            patience,
            started: Instant::now(),
            deadline: None,
            opened_stream: false,
            held: None,
            lost: None,
            _loading: session.clone().zip(replay).map(|(session, replay)| core.loading(session, replay)),
            session,
            core: core.clone(),
        })
    }

    pub(crate) fn id(&self) -> MessageId {
        self.ticket.id()
    }

    /// Sends the message and waits for its answer.
    pub(crate) async fn run(mut self) -> Result<Bytes, Error> {
        self.started = Instant::now();
        self.deadline = self.patience.and_then(|patience| self.started.checked_add(patience));
        let outcome = self.exchange().await;
        self.part_with_agent(outcome.is_ok());
        if outcome.is_err()
            && self.opened_stream
            && let Some(session) = &self.session
        {
            // The session may not even exist, and servers hold few streams for such.
            self.core.links.stop_session(session);
        }
        outcome
    }

    /// Behind some calls there is another agent, or another turn: what is asked then is not what was answered before.
    fn part_with_agent(&self, succeeded: bool) {
        let turns = [METHODS.session_prompt, METHODS.session_load, METHODS.session_resume];
        match &self.session {
            Some(session) if turns.contains(&&*self.method) => self.core.calls.renew(Some(session)),
            None if *self.method == *METHODS.initialize && succeeded => self.core.calls.renew(None),
            _ => {}
        }
    }

    async fn exchange(&mut self) -> Result<Bytes, Error> {
        self.open_session_stream().await?;
        let post = Post {
            what: self.method.clone(),
            body: std::mem::take(&mut self.body),
            session: self.session.clone(),
            bootstrap: false,
            kind: Sent::Request,
        };
        self.ticket.start();
        self.core.tap_outbound(&post.body);
        let mut posting: Option<Posting> = Some(Box::pin(self.core.clone().post(post)));
        let mut settled = false;
        let answer = loop {
            let wake = self.wake_at();
            tokio::select! {
                biased;
                outcome = &mut self.ticket.receiver, if !settled => {
                    settled = true;
                    let outcome = outcome.unwrap_or_else(|_| Err(self.forgotten()));
                    if let Some(answer) = self.on_settled(outcome)? {
                        break answer;
                    }
                }
                outcome = finished(&mut posting) => {
                    posting = None;
                    if let Some(answer) = self.on_posted(outcome)? {
                        break answer;
                    }
                }
                () = tokio::time::sleep_until(wake) => {
                    if let Some(answer) = self.on_wake()? {
                        break answer;
                    }
                }
            }
        };
        self.ticket.done();
        if let Some(posting) = posting {
            self.core.tasks.spawn(async move {
                let _ = tokio::time::timeout(FINISH, posting).await;
            });
        }
        answer.outcome.map_err(|error| Error::Rpc { error, status: None })
    }

    /// On dialects with a stream for each session, the stream comes before the first message about it.
    async fn open_session_stream(&mut self) -> Result<(), Error> {
        let Some(session) = self.session.clone().filter(|_| self.core.options.profile.has_session_streams())
        else {
            return Ok(());
        };
        self.core.check_alive()?;
        self.opened_stream = !self.core.links.has_session(&session);
        let link = self.core.links.start_session(&self.core, &session);
        let until = self.started + self.core.options.timeouts.headers;
        tokio::select! {
            biased;
            // The call was ended before anything was sent.
            outcome = &mut self.ticket.receiver => {
                let error = outcome.map_or_else(|_| self.forgotten(), |settled| settled.err().unwrap_or(self.forgotten()));
                return Err(error.not_sent());
            }
            () = link.opened() => {}
            // Without its stream the message is sent all the same: the server keeps what it has to say.
            () = tokio::time::sleep_until(self.deadline.map_or(until, |deadline| deadline.min(until))) => {}
        }
        match link.failure() {
            Some(error) => {
                self.ticket.done();
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// The answer came on a stream, or the call was ended.
    fn on_settled(&mut self, outcome: Result<Settled, Error>) -> Result<Option<Settled>, Error> {
        match (outcome, self.held.take()) {
            // The body may say more than its copy, and it was there first.
            (_, Some(held)) => Ok(Some(held.answer)),
            (Err(error), None) => Err(error),
            (Ok(answer), None) if self.ordered && answer.via != Some(self.source()) => {
                self.hold(answer);
                Ok(None)
            }
            (Ok(answer), None) => Ok(Some(answer)),
        }
    }

    fn on_posted(&mut self, outcome: Result<Posted, PostFailure>) -> Result<Option<Settled>, Error> {
        match outcome {
            Ok(Posted::Answer { status, content_type, body }) => {
                let answer = self.read_answer(status, content_type, body)?;
                self.core.mark_answer();
                if self.ordered {
                    self.hold(answer);
                    return Ok(None);
                }
                Ok(Some(answer))
            }
            Ok(Posted::Accepted) => {
                self.ticket.mark_accepted();
                Ok(None)
            }
            Err(PostFailure::Unknown(error)) if self.core.echo() != Echo::BodyOnly => {
                tracing::debug!(method = %self.method, %error, "the POST is lost, the stream may still answer");
                self.ticket.mark_lost();
                let watch = self.core.watch(self.session.clone());
                self.lost = Some(Lost { error, since: Instant::now(), watch });
                Ok(None)
            }
            Err(failure) => {
                self.ticket.done();
                // An answer that came on another stream is worth more than a POST that failed after it.
                match self.held.take() {
                    Some(held) => Ok(Some(held.answer)),
                    None => Err(failure.into_error()),
                }
            }
        }
    }

    fn read_answer(&self, status: u16, content_type: Option<String>, body: Bytes) -> Result<Settled, Error> {
        let message = Message::parse(body.clone(), &self.core.options.limits).ok();
        let answer = message.and_then(|message| match message.body {
            Body::Response { id, outcome } => {
                let ours = self.core.ids.number(id.as_json()) == Some(self.ticket.number());
                // A server that could not read the id answers with an error under `null`.
                (ours || (id.as_json() == "null" && outcome.is_err())).then_some(outcome)
            }
            _ => None,
        });
        let Some(outcome) = answer else {
            let start = String::from_utf8_lossy(&body).chars().take(1024).collect();
            self.ticket.done();
            return Err(Error::UnexpectedBody { status, content_type, start });
        };
        if self.ticket.is_waiting() {
            self.core.tapped_body(self.ticket.number(), &body);
        }
        if !self.ordered
            && let Some(waiter) = self.core.pending().take(self.ticket.number())
        {
            self.core.on_answer(&waiter, &outcome);
        }
        Ok(Settled { outcome, via: None })
    }

    /// Keeps an answer until the updates before it have come.
    fn hold(&mut self, answer: Settled) {
        self.held = Some(Held::new(&self.core, self.session.clone(), answer));
    }

    fn on_wake(&mut self) -> Result<Option<Settled>, Error> {
        let now = Instant::now();
        if self.held.is_some() {
            return Ok(if self.hold_until(now) <= now {
                self.held.take().map(|held| held.answer)
            } else {
                None
            });
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            let phase = if self.lost.is_some() { Phase::Confirmation } else { Phase::Answer };
            return Err(self.timeout(phase));
        }
        if self.confirmation_until().is_some_and(|until| until <= now) {
            return Err(self.timeout(Phase::Confirmation));
        }
        Ok(None)
    }

    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        if self.held.is_some() {
            return self.hold_until(now);
        }
        let times = [self.deadline, self.confirmation_until()];
        times.into_iter().flatten().min().unwrap_or(now + FOREVER)
    }

    /// When a held answer is given even though its copy has not passed.
    fn hold_until(&self, now: Instant) -> Instant {
        let Some(held) = &self.held else { return now };
        let until = held.until(&self.core, self.session.as_ref(), now);
        // An answer that is there is given when time is up, not thrown away.
        self.deadline.map_or(until, |deadline| deadline.min(until))
    }

    /// When a request with a lost POST is given up because its session is silent.
    fn confirmation_until(&self) -> Option<Instant> {
        let lost = self.lost.as_ref()?;
        let patience = self.core.options.timeouts.confirmation?;
        lost.watch.last().unwrap_or(lost.since).checked_add(patience)
    }

    /// The stream that carries this request's updates.
    fn source(&self) -> EventSource {
        self.core.links.get(self.session.as_ref()).source().clone()
    }

    fn timeout(&self, phase: Phase) -> Error {
        Error::Timeout(Box::new(Timeout {
            phase,
            what: self.method.to_string(),
            elapsed: self.started.elapsed(),
            last_event_age: self.core.last_event_age(),
            state: self.core.state(),
            cause: self.lost.as_ref().map(|lost| Arc::new(lost.error.clone())),
        }))
    }

    /// The table lost the waiter without settling it, which happens only when the connection ends.
    fn forgotten(&self) -> Error {
        self.core
            .check_alive()
            .err()
            .unwrap_or_else(|| Error::ServerRestarted { method: self.method.to_string() })
    }
}

async fn finished(posting: &mut Option<Posting>) -> Result<Posted, PostFailure> {
    match posting {
        Some(posting) => posting.await,
        None => std::future::pending().await,
    }
}

/// Sends a message that has no answer.
pub(crate) async fn send_one_way(
    core: &Arc<Core>,
    what: &str,
    body: Bytes,
    session: Option<Arc<str>>,
) -> Result<(), PostFailure> {
    core.check_alive().map_err(PostFailure::NotTaken)?;
    let post = Post { what: what.into(), body, session, bootstrap: false, kind: Sent::OneWay };
    let started = Instant::now();
    let patience = core.options.timeouts.headers;
    match tokio::time::timeout(patience, core.clone().post(post)).await {
        Ok(result) => result.map(drop),
        Err(_) => Err(PostFailure::Unknown(Error::Timeout(Box::new(Timeout {
            phase: Phase::Headers,
            what: what.to_owned(),
            elapsed: started.elapsed(),
            last_event_age: core.last_event_age(),
            state: core.state(),
            cause: None,
        })))),
    }
}
