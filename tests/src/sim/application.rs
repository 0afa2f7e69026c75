//! What the application does with the client.

use std::{
    future::{Future, IntoFuture},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use acp_http_client::{
    AcpHttpClient, AgentRequests, Barrier, Error, Order, Timeouts,
    schema::v1::{
        CancelNotification, ContentBlock, LoadSessionRequest, NewSessionRequest, PromptRequest,
        SetSessionModeRequest, TextContent,
    },
};
use serde_json::json;
use tokio::time::{Duration, Instant};

use super::{observer::Observer, random::Random, world::World};

/// No call takes longer than this after the stream brought something new.
const BOUND: Duration = Duration::from_secs(900);
/// A call that a restart has ended fails within this time after the last disturbance.
const RESTART_BOUND: Duration = Duration::from_secs(60);
/// A disturbance may show in what is decided so much later.
const AFTERMATH: Duration = Duration::from_secs(10);

/// A program that uses the client.
#[derive(Debug)]
pub(super) struct Application {
    pub(super) world: Arc<World>,
    pub(super) client: AcpHttpClient,
    pub(super) observer: Arc<Observer>,
    pub(super) turns: AtomicU64,
    pub(super) calls: AtomicU64,
}

impl Application {
    /// Uses one session after the other, turn by turn.
    pub(super) async fn use_sessions(self: Arc<Self>, number: u64) {
        let mut random = self.world.random(&format!("application {number}"));
        let mut session = None;
        for turn in 0..self.world.plan.turns {
            if self.client.state().is_terminated() {
                return;
            }
            let pause = random.pick(&[0, 0, 0, 10, 300, 1_000, 20_000]);
            if pause > 0 {
                tokio::time::sleep(random.millis(pause)).await;
            }
            let id = match session.take() {
                Some(id) => id,
                None => match self.new_session().await {
                    Some(id) => id,
                    None => continue,
                },
            };
            let known = self.step(&mut random, &id, turn).await;
            session = known.then_some(id);
        }
    }

    async fn new_session(&self) -> Option<String> {
        let request = self.client.new_session(NewSessionRequest::new("/"));
        match self.bounded("session/new", request.into_future()).await? {
            Ok(response) => Some(response.session_id.0.to_string()),
            Err(error) => {
                self.failed("session/new", &error);
                None
            }
        }
    }

    /// One thing that an application does; whether the session can be used further.
    async fn step(&self, random: &mut Random, session: &str, number: u64) -> bool {
        let delay = Duration::from_millis(random.pick(&[0, 0, 1, 5, 50, 400, 2_000]));
        let suffix = if random.per_mille(500) { "L" } else { "" };
        let long = format!("{session}.t{number}{suffix}");
        match random.below(100) {
            0..40 => self.plain_turn(session, format!("{session}.t{number}"), random.per_mille(150)).await,
            40..58 => self.cancelled_turn(session, long, delay, random.per_mille(300)).await,
            58..70 => self.dropped_turn(session, long, delay).await,
            70..76 => self.limited_turn(session, long, delay).await,
            76..88 => self.set_mode(session, format!("{session}.m{number}")).await,
            88..94 => self.load(session).await,
            _ => {
                let cancel = self.client.cancel(CancelNotification::new(session.to_owned()));
                if let Some(Err(error)) = self.bounded("cancel", cancel).await {
                    self.failed("cancel", &error);
                }
                true
            }
        }
    }

    async fn plain_turn(&self, session: &str, tag: String, with_mode: bool) -> bool {
        let turn = self.turn(session, &tag, None);
        if !with_mode {
            return turn.await;
        }
        let (turn, mode) = tokio::join!(biased; turn, self.set_mode(session, format!("{tag}m")));
        turn && mode
    }

    async fn cancelled_turn(&self, session: &str, tag: String, delay: Duration, twice: bool) -> bool {
        // Some applications prompt again as soon as the turn has ended, even if the cancel has not.
        let follows = !twice && self.world.random(&format!("follow {tag}")).per_mille(500);
        let over = AtomicBool::new(false);
        let cancels = async {
            tokio::time::sleep(delay).await;
            if follows && over.load(Ordering::Relaxed) {
                return;
            }
            self.world.ledger().turns.entry(tag.clone()).or_default().cancelled = true;
            self.world.note(|| format!("application: cancels {tag}"));
            for _ in 0..=u8::from(twice) {
                let cancel = self.client.cancel(CancelNotification::new(session.to_owned()));
                if let Some(Err(error)) = self.bounded("cancel", cancel).await {
                    self.failed("cancel", &error);
                }
            }
        };
        // The turn ends before its cancel, or the other way round; the cancel is not for the next one.
        let turns = async {
            let known = self.turn(session, &tag, None).await;
            over.store(true, Ordering::Relaxed);
            if known && follows { self.turn(session, &format!("{tag}n"), None).await } else { known }
        };
        let (known, ()) = tokio::join!(biased; turns, cancels);
        known
    }

    async fn dropped_turn(&self, session: &str, tag: String, delay: Duration) -> bool {
        let turn = self.turn(session, &tag, None);
        match tokio::time::timeout(delay, turn).await {
            Ok(known) => known,
            Err(_) => {
                self.world.note(|| format!("application: dropped {tag}"));
                true
            }
        }
    }

    async fn limited_turn(&self, session: &str, tag: String, limit: Duration) -> bool {
        self.turn(session, &tag, Some(limit.max(Duration::from_millis(1)))).await
    }

    /// One turn to its end; whether the session can be used further.
    async fn turn(&self, session: &str, tag: &str, limit: Option<Duration>) -> bool {
        self.turns.fetch_add(1, Ordering::Relaxed);
        let text = ContentBlock::Text(TextContent::new(tag));
        let mut request = self.client.prompt(PromptRequest::new(session.to_owned(), vec![text]));
        if let Some(limit) = limit {
            request = request.timeout(limit);
        }
        self.world.note(|| format!("application: prompts {tag}"));
        let started = Instant::now();
        let mut dropped = Dropped { application: self, tag, armed: true };
        let outcome = self.bounded(tag, request.with_order()).await;
        dropped.armed = false;
        let Some(outcome) = outcome else { return false };
        self.observer.drain();
        self.check_wait(tag);
        match outcome {
            Ok((response, order)) => {
                self.world.note(|| format!("application: {tag} ended, {order:?}"));
                let answered =
                    response.raw().to_value().unwrap_or_default()["_meta"]["tag"].as_str().map(str::to_owned);
                if answered.as_deref() != Some(tag) {
                    self.world.fail(format!("{tag} got the response of {answered:?}"));
                }
                let sent = self.world.ledger().turns.get(tag).and_then(|turn| turn.responded);
                let started = limit.is_none().then_some(started);
                self.check_order(session, tag, started, sent, order);
                true
            }
            Err(error) => {
                let mut ledger = self.world.ledger();
                let turn = ledger.turns.entry(tag.to_owned()).or_default();
                // The client cancels a turn whose time is up.
                turn.cancelled |= limit.is_some() && matches!(error, Error::Timeout(_));
                turn.abandoned = error.maybe_executed();
                let cancelled = turn.cancelled;
                if !error.maybe_executed() {
                    ledger.not_executed.push(tag.to_owned());
                }
                drop(ledger);
                if !(cancelled && matches!(error, Error::Withdrawn { .. } | Error::Timeout(_))) {
                    self.failed(tag, &error);
                }
                error.rpc_error().is_none_or(|error| error.code != -32002)
            }
        }
    }

    async fn set_mode(&self, session: &str, tag: String) -> bool {
        let request =
            self.client.set_session_mode(SetSessionModeRequest::new(session.to_owned(), tag.clone()));
        let started = Instant::now();
        let Some(outcome) = self.bounded(&tag, request.with_order()).await else { return false };
        self.observer.drain();
        match outcome {
            Ok((_, order)) => {
                self.world.note(|| format!("application: {tag} is set, {order:?}"));
                let sent = self.world.ledger().calls.get(&tag).and_then(|call| call.responded);
                self.check_order(session, &tag, Some(started), sent, order);
                true
            }
            Err(error) => {
                if !error.maybe_executed() {
                    self.world.ledger().not_executed.push(tag.clone());
                }
                self.failed(&tag, &error);
                error.rpc_error().is_none_or(|error| error.code != -32002)
            }
        }
    }

    async fn load(&self, session: &str) -> bool {
        let call = self.calls.load(Ordering::Relaxed);
        self.world.ledger().loading.insert(session.to_owned(), (call, true));
        let request =
            self.client.load_session(LoadSessionRequest::new(session.to_owned(), format!("/{call}")));
        let outcome = self.bounded("session/load", request.with_order()).await;
        self.observer.drain();
        self.world.ledger().loading.remove(session);
        let live = self.world.ledger().live_history.remove(session);
        match outcome {
            Some(Ok((_, order))) => {
                // Without a barrier only a quiet period ends the history, and the client says so.
                let echoes = self.world.plan.model.dialect().barrier == Barrier::Echo;
                if let Some(index) = live.filter(|_| echoes || order == Order::Verified) {
                    self.world.fail(format!("u{index} is history and was delivered as live"));
                }
                true
            }
            Some(Err(error)) => {
                self.failed("session/load", &error);
                error.rpc_error().is_none_or(|error| error.code != -32002)
            }
            None => false,
        }
    }

    /// Answers what the agent asks.
    pub(super) async fn answer(world: Arc<World>, mut requests: AgentRequests) {
        while let Some((request, responder)) = requests.next().await {
            let params = request.params().to_value().unwrap_or_default();
            let tag = params["toolCall"]["toolCallId"].as_str().unwrap_or_default().to_owned();
            let record = {
                let mut ledger = world.ledger();
                let record = ledger.requests.entry(tag.clone()).or_default();
                record.dispatched += 1;
                (record.dispatched, record.backlog)
            };
            world.note(|| format!("application: is asked {tag}"));
            if record.0 > 1 {
                world.fail(format!("{tag} was dispatched {} times", record.0));
            }
            if record.1 && world.plan.shows_backlog() {
                world.fail(format!("{tag} is backlog and was dispatched"));
            }
            drop(request);
            let mut random = world.random(&format!("answer {tag}"));
            let delay = random.millis(random.clone().pick(&[0, 10, 1_000]));
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                responder.respond(&json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
            });
        }
    }

    /// Awaits a call within a time limit.
    pub(super) async fn bounded<T>(&self, what: &str, call: impl Future<Output = T>) -> Option<T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut call = std::pin::pin!(call);
        let started = Instant::now();
        loop {
            let progress = self.world.progress().max(started);
            if let Ok(output) = tokio::time::timeout_at(progress + BOUND, &mut call).await {
                return Some(output);
            }
            if self.world.progress() <= progress {
                self.world.fail(format!("{what} does not settle"));
                return None;
            }
        }
    }

    /// A call failed, which happens only if something disturbs it.
    fn failed(&self, what: &str, error: &Error) {
        self.world.note(|| format!("application: {what} failed: {error:?}"));
        if self.world.plan.calm {
            self.world.fail(format!("{what} failed without a fault: {error}"));
        }
    }

    /// Checks a response against the updates before it. `started` is missing if the call had its own timeout.
    fn check_order(
        &self,
        session: &str,
        tag: &str,
        started: Option<Instant>,
        sent: Option<usize>,
        order: Order,
    ) {
        let Some(sent) = sent else {
            return self.world.fail(format!("{tag} is answered, and the server has not answered it"));
        };
        if order == Order::Verified {
            let missing = self.world.ledger().missing(Some(session), sent);
            if let Some(index) = missing {
                self.world.fail(format!("{tag} settled before u{index}, which was sent before its response"));
            }
            return;
        }
        let echoes = self.world.plan.model.dialect().barrier == Barrier::Echo;
        let undisturbed = started.is_some_and(|started| self.world.disturbed() + AFTERMATH < started);
        if !echoes || !undisturbed {
            return;
        }
        // The echo had its time: it came, or the network was slower than the client waits.
        let slow = match self.world.ledger().emitted.get(sent) {
            Some(echo) => echo.brought.is_none() && echo.at.elapsed() >= Timeouts::default().order,
            None => true,
        };
        if !slow {
            self.world.fail(format!("{tag} settled unverified without a disturbance"));
        }
    }

    /// A turn that a restart has ended is not waited for.
    fn check_wait(&self, tag: &str) {
        let killed = self.world.ledger().turns.get(tag).and_then(|turn| turn.killed);
        if let Some(killed) = killed
            && self.world.plan.is_numbered()
            && self.world.ledger().hidden_at.is_none_or(|hidden| hidden < killed)
            && killed.max(self.world.disturbed()).elapsed() > RESTART_BOUND
        {
            let waited = killed.elapsed();
            self.world.fail(format!("{tag} waited {waited:?} after the restart that ended it"));
        }
    }
}

/// Takes note that a turn was dropped before its response.
struct Dropped<'a> {
    application: &'a Application,
    tag: &'a str,
    armed: bool,
}

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        if self.armed {
            let mut ledger = self.application.world.ledger();
            ledger.turns.entry(self.tag.to_owned()).or_default().cancelled = true;
        }
    }
}
