//! One request, from its POST to its response.

mod entry;

use std::sync::Arc;

use agent_client_protocol_schema::v1::AGENT_METHOD_NAMES as METHODS;
use bytes::Bytes;
use http::HeaderValue;
use tokio::{
    sync::oneshot,
    time::{Duration, Instant},
};

use super::{
    RequestOptions,
    open_posts::OpenPost,
    options::Deadline,
    outbox::Slot,
    ticket::{Posting, Settled, Ticket},
};
use crate::{
    Barrier, Error, Events, Order, Phase, Timeout,
    client::Core,
    inbound::{Link, LinkState, Replay, Response, SessionUse},
    printable::OneLine,
    rpc::{Body, Message, RpcOutcome},
    transport::{Handover, Post, PostFailure, Posted, Sent},
};

/// How long a POST may finish by itself after the stream has brought its response, so that its connection can be
/// used again.
const FINISH: Duration = Duration::from_secs(1);
/// How often a message is sent again after the server refused it unread with `Retry-After`.
const RETRIES: u32 = 3;

/// A request that was encoded and is not registered yet.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) number: u64,
    pub(crate) method: Arc<str>,
    pub(crate) session: Option<Arc<str>>,
    pub(crate) body: Bytes,
    /// Gets the events from the moment at which it is sent.
    pub(crate) subscriber: Option<oneshot::Sender<Events>>,
}

impl Draft {
    /// Copies the request without its subscriber.
    pub(crate) fn copy(&self) -> Self {
        let Self { number, method, session, body, .. } = self;
        let (method, session) = (method.clone(), session.clone());
        Self { number: *number, method, session, body: body.clone(), subscriber: None }
    }
}

/// The result of sending a request.
enum Sending {
    Settled(Settled),
    /// The server refused it unread, and asks to send it again after this time.
    Refused(Duration),
}

/// A request that is being sent or is pending.
pub(crate) struct Exchange {
    core: Arc<Core>,
    ticket: Ticket,
    method: Arc<str>,
    session: Option<Arc<str>>,
    link: Arc<Link>,
    /// Keeps the session's stream open while the call runs, on dialects that have one.
    using: Option<SessionUse>,
    ordered: bool,
    subscriber: Option<oneshot::Sender<Events>>,
    started: Instant,
    /// When its POST began.
    sent: Instant,
    deadline: Option<Instant>,
    /// A response from the body, which the ordered core of the stream has as well. It is returned if the timeout
    /// expires.
    body: Option<RpcOutcome>,
    /// The error of a POST that failed.
    lost: Option<Arc<Error>>,
}

impl Exchange {
    /// Sends a request and waits for its response.
    pub(crate) async fn run(
        core: Arc<Core>,
        draft: Draft,
        options: RequestOptions,
    ) -> Result<Settled, Error> {
        core.check_alive()?;
        let Draft { number, method, session, body, subscriber } = draft;
        let cancel = options.cancel_on_drop.unwrap_or(core.options.cancel_on_drop);
        let concerns_session =
            session.is_some() || *method == *METHODS.session_new || *method == *METHODS.session_fork;
        let ordered = options.ordered.unwrap_or(concerns_session);
        let ticket = Ticket::register(&core, number, method.clone(), session.clone(), ordered, cancel);
        // The connection may have ended between the check and the registration; then nothing would wake this task.
        core.check_alive()?;
        let started = Instant::now();
        let limit = match options.deadline {
            Deadline::ByMethod => core.options.timeouts.for_method(&method),
            Deadline::After(time) => Some(time),
            Deadline::Never => None,
        };
        let using = session
            .as_ref()
            .filter(|_| core.options.dialect.has_session_streams())
            .map(|session| core.links.use_session(&core, session));
        let link = match &using {
            Some(using) => using.link.clone(),
            None => core.links.connection(&core).clone(),
        };
        let exchange = Self {
            deadline: limit.and_then(|limit| started.checked_add(limit)),
            ticket,
            method,
            session,
            link,
            using,
            ordered,
            subscriber,
            started,
            sent: started,
            body: None,
            lost: None,
            core,
        };
        exchange.finish(body, options.replays).await
    }

    async fn finish(mut self, body: Bytes, replays: bool) -> Result<Settled, Error> {
        let is_turn = *self.method == *METHODS.session_prompt;
        if let Some(session) = self.session.as_ref().filter(|_| is_turn) {
            self.core.outbox.begin_turn(session, self.ticket.number());
        }
        let result = self.exchange(body, is_turn, replays).await;
        // A turn that ran into its time limit is cancelled with its ticket.
        if !self.ticket.is_waiting() {
            self.ticket.forget();
        }
        let succeeded = matches!(&result, Ok(settled) if settled.outcome.is_ok());
        self.renew_agent_requests(succeeded);
        let ends = [METHODS.session_close, METHODS.session_delete].contains(&&*self.method);
        if succeeded
            && !ends
            && let Some(using) = &self.using
        {
            using.establish();
        }
        result
    }

    /// Some calls start another agent or turn. A request with a known id is then a new request.
    fn renew_agent_requests(&self, succeeded: bool) {
        let turns = [METHODS.session_prompt, METHODS.session_load, METHODS.session_resume];
        match &self.session {
            Some(session) if turns.contains(&&*self.method) => self.core.calls.renew(Some(session)),
            None if *self.method == *METHODS.initialize && succeeded => self.core.calls.renew(None),
            _ => {}
        }
    }

    async fn exchange(&mut self, body: Bytes, is_turn: bool, replays: bool) -> Result<Settled, Error> {
        self.open_session_stream().await?;
        let mut retries = RETRIES;
        let settled = loop {
            let slot = self.enter_outbox(is_turn).await?;
            if retries == RETRIES {
                self.core.tap_outbound(&body);
            }
            let handover = Handover::default();
            self.start(replays, handover.clone());
            let sending = self.send(&body, handover, slot, retries > 0).await;
            match sending.inspect_err(|_| self.keep_post())? {
                Sending::Settled(settled) => break settled,
                Sending::Refused(delay) => {
                    retries -= 1;
                    if let Some(settled) = self.pause(delay).await? {
                        break settled;
                    }
                }
            }
        };
        self.ticket.forget();
        // The response to the POST is often there too. If not, a task waits for it.
        if let Some(mut posting) = self.ticket.posting.take()
            && futures::poll!(&mut posting).is_pending()
        {
            self.core.tasks.spawn(async move {
                let _ = tokio::time::timeout(FINISH, posting).await;
            });
        }
        Ok(settled)
    }

    /// The request has failed. If the connection has ended and its POSTs stay open, this includes the POST of this
    /// request.
    fn keep_post(&mut self) {
        // Otherwise the ticket keeps the POST: a turn that is cancelled ends with it.
        if let Some(kept) = self.core.kept_posts.get()
            && let Some(posting) = self.ticket.posting.take()
        {
            // If they are not read, the POST is closed.
            if let Some(kept) = kept.upgrade() {
                kept.push(OpenPost { method: self.method.clone(), posting });
            }
        }
    }

    /// The request is about to be sent.
    fn start(&mut self, replays: bool, handover: Handover) {
        let replay = match *self.method == *METHODS.session_load {
            true => Some(Replay::Everything),
            false => replays.then_some(Replay::Conversation),
        };
        if let Some((session, replay)) = self.session.clone().zip(replay) {
            self.link.input(|core, _| core.loading(self.ticket.number(), session, replay));
        }
        if let Some(subscriber) = self.subscriber.take() {
            let _ = subscriber.send(self.core.hub.subscribe(self.core.options.limits.subscriber));
        }
        self.sent = Instant::now();
        self.ticket.start(self.sent, handover);
        if *self.method == *METHODS.initialize && !self.core.was_answered() {
            self.link.input(|core, _| core.introducing());
        }
    }

    /// Sends the request, and waits for its response or for a refusal after which it may be sent again.
    async fn send(
        &mut self,
        body: &Bytes,
        handover: Handover,
        mut slot: Option<Slot>,
        again: bool,
    ) -> Result<Sending, Error> {
        // If the response arrives at the end of the POST, the next message is sent when this one was completely
        // handed over. If the status arrives first, the next message waits for the status, up to a limit.
        let status_comes_first = self.core.options.dialect.barrier == Barrier::SameStream;
        let status_timeout = self.core.options.timeouts.headers;
        self.ticket.posting = Some(self.post(body, handover.clone()));
        let mut time_is_up = std::pin::pin!(sleep_until(self.deadline));
        loop {
            let handed_over = async {
                match slot.is_some() {
                    true => handover.completed().await,
                    false => std::future::pending().await,
                }
                if status_comes_first {
                    tokio::time::sleep(status_timeout).await;
                }
            };
            tokio::select! {
                biased;
                outcome = &mut self.ticket.receiver => {
                    return self.on_settled(outcome.ok()).map(Sending::Settled);
                }
                outcome = finished(&mut self.ticket.posting) => {
                    self.ticket.posting = None;
                    slot = None;
                    if let Some(delay) = self.retry_after(&outcome).filter(|_| again) {
                        return Ok(Sending::Refused(delay));
                    }
                    if let Some(settled) = self.on_posted(outcome)? {
                        return Ok(Sending::Settled(settled));
                    }
                }
                () = handed_over => {
                    slot = None;
                    if status_comes_first {
                        // The stream may still bring the response.
                        self.ticket.posting = None;
                        self.on_posted(Err(PostFailure::Unknown(self.timeout(Phase::Headers))))?;
                    }
                }
                () = &mut time_is_up => return self.on_deadline().map(Sending::Settled),
            }
        }
    }

    /// Waits before the request is sent again. Meanwhile it counts as not sent: a cancel withdraws it.
    async fn pause(&mut self, delay: Duration) -> Result<Option<Settled>, Error> {
        self.ticket.unsent();
        self.link.core().forget(self.ticket.number());
        if !self.core.outbox.unstart_turn(self.ticket.number()) {
            self.ticket.forget();
            return Err(Error::Withdrawn { method: self.method.to_string() });
        }
        tokio::select! {
            biased;
            outcome = &mut self.ticket.receiver => match outcome {
                Ok(Ok(settled)) => Ok(Some(settled)),
                outcome => Err(self.not_sent(outcome.ok())),
            },
            () = tokio::time::sleep(delay) => Ok(None),
        }
    }

    fn post(&self, body: &Bytes, handover: Handover) -> Posting {
        let post = Post {
            what: self.method.clone(),
            body: body.clone(),
            session: self.session.clone(),
            bootstrap: false,
            kind: Sent::Request,
            handover,
        };
        Box::pin(self.core.clone().post(post))
    }

    /// How long to wait before a message that the server refused unread is sent again.
    fn retry_after(&self, outcome: &Result<Posted, PostFailure>) -> Option<Duration> {
        let Err(PostFailure::NotTaken(error)) = outcome else { return None };
        let delay = error.http()?.retry_after?;
        let at = Instant::now().checked_add(delay)?;
        let limit =
            self.deadline.or_else(|| self.started.checked_add(self.core.options.timeouts.retry_after));
        limit.is_none_or(|limit| at < limit).then_some(delay)
    }

    /// The ordered core settled the request, or it was ended.
    fn on_settled(&mut self, outcome: Option<Result<Settled, Error>>) -> Result<Settled, Error> {
        match (outcome, self.body.take()) {
            (Some(Ok(settled)), _) => Ok(settled),
            // The response has arrived, whatever ended the wait for its order.
            (_, Some(outcome)) => Ok(Settled { outcome, order: Order::Unverified }),
            (Some(Err(error)), None) => Err(error),
            (None, None) => Err(self.forgotten()),
        }
    }

    fn on_posted(&mut self, outcome: Result<Posted, PostFailure>) -> Result<Option<Settled>, Error> {
        let (number, session) = (self.ticket.number(), self.session.clone());
        if !matches!(outcome, Err(PostFailure::NotTaken(_))) {
            self.ticket.handed_over();
        }
        let outcome = outcome.map_err(|failure| match failure {
            PostFailure::Unsaid(error) if self.stream_may_answer() => PostFailure::Unknown(error),
            failure => failure,
        });
        match outcome {
            Ok(Posted::Response { status, content_type, body }) => {
                let outcome = self.read_response(status, content_type, body)?;
                self.core.mark_answered();
                if *self.method == *METHODS.initialize && self.core.transport.connection_id().is_some() {
                    self.link.input(|core, _| core.exclusive());
                }
                if self.ordered && self.link.state() != LinkState::Ended {
                    self.body = Some(outcome.clone());
                    self.ticket.answered = true;
                    let next_number = self.core.ids.peek();
                    let response = Response { number, session, outcome, next_number, elsewhere: false };
                    self.link.input(|core, now| core.response(now, response));
                    return Ok(None);
                }
                // Only the first one changes what the reader waits for.
                if !self.link.core().has_seen_body() {
                    self.link.input(|core, now| core.body_seen(now));
                }
                if let Some(waiter) = self.ticket.take() {
                    self.core.on_response(&waiter, &outcome);
                }
                Ok(Some(Settled { outcome, order: Order::Unverified }))
            }
            Ok(Posted::Accepted) => {
                self.core.mark_answered();
                self.ticket.mark_unconfirmed(None);
                let since = self.link.moment(self.sent);
                self.link.input(|core, now| core.accepted(now, since, number, session));
                Ok(None)
            }
            Err(PostFailure::Unknown(error)) if self.link.state() != LinkState::Ended => {
                tracing::debug!(method = &*self.method, error = %OneLine(&error), "the POST failed; the stream may still deliver the response");
                let error = Arc::new(error);
                self.ticket.mark_unconfirmed(Some(error.clone()));
                self.lost = Some(error);
                let since = self.link.moment(self.sent);
                self.link.input(|core, now| core.post_lost(now, since, number, session));
                Ok(None)
            }
            Err(failure) => {
                self.ticket.forget();
                // A response that arrived on another stream takes precedence over a POST that failed after it.
                match self.body.take() {
                    Some(outcome) => Ok(Some(Settled { outcome, order: Order::Unverified })),
                    None => Err(failure.into_error()),
                }
            }
        }
    }

    /// Whether the stream may bring a response whose POST failed: it was open, and this is not the first request of the
    /// connection, which is repeated at no cost.
    fn stream_may_answer(&self) -> bool {
        self.core.was_answered() && matches!(self.link.state(), LinkState::Live | LinkState::Down)
    }

    fn read_response(
        &mut self,
        status: u16,
        content_type: Option<HeaderValue>,
        body: Bytes,
    ) -> Result<RpcOutcome, Error> {
        let message = Message::parse(body.clone(), &self.core.options.limits).ok();
        let outcome = message.and_then(|message| match message.body {
            Body::Response { id, outcome } => {
                let ours = self.core.ids.number(id.as_json()) == Some(self.ticket.number());
                // A server that could not read the id responds with an error under the id `null`.
                (ours || (id.as_json() == "null" && outcome.is_err())).then_some(outcome)
            }
            _ => None,
        });
        let Some(outcome) = outcome else {
            let start = String::from_utf8_lossy(&body).chars().take(1024).collect();
            self.ticket.forget();
            let content_type = content_type.and_then(|value| value.to_str().map(str::to_owned).ok());
            return Err(Error::UnexpectedBody { status, content_type, start });
        };
        if self.core.options.tap.is_some() && self.ticket.is_waiting() {
            let echoed = self.link.core().barrier() == Barrier::Echo;
            self.core.tapped_body(self.ticket.number(), &body, echoed);
        }
        Ok(outcome)
    }

    /// The timeout expired. A response that has arrived is returned, not discarded.
    fn on_deadline(&mut self) -> Result<Settled, Error> {
        match self.body.take() {
            Some(outcome) => {
                if let Some(waiter) = self.ticket.take() {
                    self.core.on_response(&waiter, &outcome);
                }
                Ok(Settled { outcome, order: Order::Unverified })
            }
            None => {
                let phase = if self.lost.is_some() { Phase::Confirmation } else { Phase::Response };
                Err(self.timeout(phase))
            }
        }
    }

    /// The call was ended before anything was sent.
    fn not_sent(&self, outcome: Option<Result<Settled, Error>>) -> Error {
        outcome.and_then(Result::err).unwrap_or_else(|| self.forgotten()).not_sent()
    }

    fn timeout(&self, phase: Phase) -> Error {
        Error::Timeout(Box::new(Timeout {
            phase,
            what: self.method.to_string(),
            elapsed: self.started.elapsed(),
            last_event_age: self.core.last_event_age(),
            state: self.core.state(),
            cause: self.lost.clone(),
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

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
