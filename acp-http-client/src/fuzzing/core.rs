//! The ordered core of a stream.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use arbitrary::{Result, Unstructured};
use bytes::Bytes;

use crate::{
    Dialect, EventId, Limits, Timeouts,
    inbound::{Effect, Moment, OrderedCore, Replay, Response, Settings},
    rpc::{Ids, Message},
};

/// Checks that a body settles no request twice, that no event is delivered twice, that every wait ends, and that a
/// tick leaves no due work.
pub fn ordered_core(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(mut run) = Run::new(&mut input) else { return };
    while !input.is_empty() {
        if run.step(&mut input).is_err() {
            break;
        }
        run.check();
    }
    run.finish();
}

/// How many ticks may follow each other until no work is due.
const TICKS: usize = 10_000;

struct Run {
    core: OrderedCore,
    ids: Arc<Ids>,
    limits: Limits,
    now: Moment,
    out: Vec<Effect>,
    /// Requests that wait for their response, and when their POST began.
    pending: HashMap<u64, Moment>,
    /// Requests whose POST has ended, and those among them with a response in the body.
    posted: HashSet<u64>,
    answered: HashSet<u64>,
    /// How often each event was sent to the core.
    fed: HashMap<Bytes, usize>,
    delivered: HashMap<Bytes, usize>,
    /// The number of the next event.
    number: u64,
}

impl Run {
    fn new(input: &mut Unstructured<'_>) -> Result<Self> {
        let dialects = [Dialect::AUTO, Dialect::RPC, Dialect::RELEASED, Dialect::EARLY, Dialect::OFFICIAL];
        let dialect = input.choose(&dialects)?;
        let times = Timeouts::default();
        let mut limits = Limits::default();
        if input.ratio(1, 4)? {
            // So small that some of the messages below exceed them.
            (limits.id, limits.decoded, limits.backlog) = (*input.choose(&[2, 16])?, 512, 256);
        }
        let settings = Settings {
            barrier: dialect.barrier,
            event_ids: dialect.event_ids,
            limits: limits.clone(),
            backlog: dialect.shared && input.arbitrary()?,
            resume_from: if input.ratio(1, 8)? { Some("3".into()) } else { None },
            order: times.order,
            order_limit: times.order_limit,
            quiet: times.quiet,
            learn: times.learn,
            unconfirmed: times.confirmation,
            unconfirmed_limit: times.confirmation_limit,
            backlog_quiet: times.backlog_quiet,
            backlog_limit: times.backlog_limit,
        };
        let ids = Arc::new(Ids::with_random([0; 16]));
        Ok(Self {
            core: OrderedCore::new(settings, ids.clone()),
            ids,
            limits,
            now: Moment::ZERO,
            out: Vec::new(),
            pending: HashMap::new(),
            posted: HashSet::new(),
            answered: HashSet::new(),
            fed: HashMap::new(),
            delivered: HashMap::new(),
            number: 1,
        })
    }

    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.int_in_range(0..=13)? {
            0 => {
                self.core.opened(self.now);
            }
            1 => self.core.lost(self.now),
            2 => self.core.introducing(),
            3 => {
                let number = self.ids.next();
                self.pending.insert(number, self.now);
                if input.ratio(1, 4)? {
                    let replay = if input.arbitrary()? { Replay::Everything } else { Replay::Conversation };
                    self.core.loading(number, session(input)?, replay);
                }
            }
            4 => self.response(input)?,
            5 => {
                let session = Some(session(input)?);
                if let Some((number, since)) = self.posted(input)? {
                    self.core.accepted(self.now, since, number, session);
                }
            }
            6 => {
                let session = Some(session(input)?);
                if let Some((number, since)) = self.posted(input)? {
                    self.core.post_lost(self.now, since, number, session);
                }
            }
            7 => {
                let number = input.int_in_range(1..=8)?;
                self.pending.remove(&number);
                self.core.forget(number);
            }
            8 => self.core.bytes(self.now, input.arbitrary()?, input.arbitrary()?),
            9 => {
                let id = self.event_id(input)?;
                self.core.skip(self.now, id.as_ref(), &mut self.out);
            }
            10 => {
                self.now += Duration::from_millis(input.int_in_range(0..=3_000)?);
                self.tick();
            }
            _ => self.event(input)?,
        }
        Ok(())
    }

    /// The POST of a pending request ends.
    fn posted(&mut self, input: &mut Unstructured<'_>) -> Result<Option<(u64, Moment)>> {
        let number = input.int_in_range(1..=8)?;
        let Some(since) = self.pending.get(&number) else { return Ok(None) };
        Ok(self.posted.insert(number).then_some((number, *since)))
    }

    fn response(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let (session, elsewhere) = (session(input)?, input.ratio(1, 6)?);
        let Some((number, _)) = self.posted(input)? else { return Ok(()) };
        self.answered.insert(number);
        let response = Response {
            number,
            session: Some(session),
            outcome: Ok(Bytes::from_static(b"{}")),
            next_number: self.ids.peek(),
            elsewhere,
        };
        self.core.response(self.now, response);
        Ok(())
    }

    fn event(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let id = self.event_id(input)?;
        let (session, mark) = (session(input)?, input.int_in_range(0..=2)?);
        let text = match input.int_in_range(0..=5)? {
            0 => format!(
                r#"{{"jsonrpc":"2.0","id":{mark},"method":"session/request_permission","params":{{"sessionId":"{session}"}}}}"#
            ),
            1 => format!(r#"{{"jsonrpc":"2.0","id":{mark},"result":"foreign"}}"#),
            2 => format!("no message {mark}"),
            3 => {
                let id = self.ids.id(input.int_in_range(1..=8)?);
                format!(r#"{{"jsonrpc":"2.0","id":{},"result":{mark}}}"#, id.as_json())
            }
            _ => format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}","update":{{"sessionUpdate":"agent_message_chunk","mark":{mark}}}}}}}"#
            ),
        };
        let text = Bytes::from(text);
        *self.fed.entry(text.clone()).or_default() += 1;
        let pending = &self.pending;
        self.core.event(self.now, id, text, |number| pending.contains_key(&number), &mut self.out);
        self.tick();
        Ok(())
    }

    /// Mostly the next number, sometimes an old one or none.
    fn event_id(&mut self, input: &mut Unstructured<'_>) -> Result<Option<EventId>> {
        Ok(match input.int_in_range(0..=7)? {
            0 => None,
            1 => Some(EventId::from(input.int_in_range(0..=12u64)?)),
            2 => Some(EventId::from("text")),
            jump => {
                self.number += if jump == 3 { 2 } else { 1 };
                Some(EventId::from(self.number))
            }
        })
    }

    fn tick(&mut self) {
        self.core.tick(self.now, &mut self.out);
        let due = self.core.deadline().filter(|deadline| *deadline <= self.now);
        assert_eq!(due, None, "a tick left something undone at {:?}: {:?}", self.now, self.core);
    }

    /// Takes the effects of the core, as the router does.
    fn check(&mut self) {
        for effect in std::mem::take(&mut self.out) {
            match effect {
                Effect::Settle { number, from_stream, .. } => {
                    let waited = self.pending.remove(&number).is_some();
                    assert!(waited || from_stream, "request {number} is settled a second time");
                }
                Effect::Fail { number, .. } => {
                    assert!(self.pending.remove(&number).is_some(), "request {number} had an end before");
                }
                Effect::Message(ordered) => self.count(ordered.message.raw),
                Effect::Echo { raw, .. } => self.count(raw),
                Effect::Malformed { data, .. } => {
                    assert!(Message::parse(data.clone(), &self.limits).is_err());
                    self.count(data);
                }
                Effect::Gap { from, to } => assert!(from <= to),
                Effect::Probe | Effect::Restarted { .. } => {}
            }
        }
    }

    fn count(&mut self, raw: Bytes) {
        let delivered = self.delivered.entry(raw.clone()).or_default();
        *delivered += 1;
        let fed = self.fed.get(&raw).copied().unwrap_or_default();
        assert!(*delivered <= fed, "{raw:?} was delivered {delivered} times and sent {fed} times");
    }

    /// Ticks alone end everything that has a deadline, and deferred responses are returned at the end.
    fn finish(&mut self) {
        self.check();
        let mut ticks = 0;
        while let Some(deadline) = self.core.deadline() {
            self.now = self.now.max(deadline);
            self.tick();
            self.check();
            ticks += 1;
            assert!(ticks < TICKS, "there is always another deadline: {:?}", self.core);
        }
        self.core.end(self.now, &mut self.out);
        self.check();
        let left: Vec<_> = self.answered.iter().filter(|number| self.pending.contains_key(number)).collect();
        assert!(left.is_empty(), "the responses to {left:?} came and were never given");
    }
}

fn session(input: &mut Unstructured<'_>) -> Result<Arc<str>> {
    Ok(if input.arbitrary()? { "one".into() } else { "two".into() })
}
