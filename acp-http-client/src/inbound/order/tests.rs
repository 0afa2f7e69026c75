//! The ordered core, event by event.

use std::collections::HashSet;

use super::*;
use crate::{Dialect, Limits, inbound::backlog::Held};

const SECOND: Duration = Duration::from_secs(1);
const SESSION: &str = "s";

/// An ordered core with the requests that are pending, and what it has emitted.
struct Bench {
    core: OrderedCore,
    pending: HashSet<u64>,
    out: Vec<Effect>,
    now: Moment,
}

impl Bench {
    fn new(dialect: &Dialect) -> Self {
        Self::within(dialect, Limits::default())
    }

    fn within(dialect: &Dialect, limits: Limits) -> Self {
        let settings = Settings {
            barrier: dialect.barrier,
            event_ids: dialect.event_ids,
            limits,
            backlog: dialect.shared,
            resume_from: None,
            order: 2 * SECOND,
            order_limit: 30 * SECOND,
            quiet: SECOND / 4,
            learn: SECOND / 2,
            unconfirmed: Some(120 * SECOND),
            unconfirmed_limit: Some(600 * SECOND),
            backlog_quiet: SECOND / 4,
            backlog_limit: 3 * SECOND,
        };
        let core = OrderedCore::new(settings, Arc::new(Ids::new().unwrap()));
        Self { core, pending: HashSet::new(), out: Vec::new(), now: Moment::ZERO }
    }

    /// A bench whose first request got its response on the stream, under number 1.
    fn introduced(dialect: &Dialect) -> Self {
        let mut bench = Self::new(dialect);
        bench.core.introducing();
        let first = bench.request();
        bench.open();
        bench.response("1", first);
        bench.out.clear();
        bench
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.core.tick(self.now, &mut self.out);
    }

    fn open(&mut self) {
        self.core.opened(self.now);
    }

    fn reopen(&mut self) {
        self.core.lost(self.now);
        self.open();
    }

    fn request(&mut self) -> u64 {
        let number = self.core.ids.next();
        self.pending.insert(number);
        number
    }

    fn accept(&mut self, since: Moment, number: u64) {
        self.core.accepted(self.now, since, number, Some(SESSION.into()));
    }

    fn event(&mut self, id: &str, data: String) {
        let id = (!id.is_empty()).then(|| EventId::from(id));
        let pending = self.pending.clone();
        self.core.event(self.now, id, data.into(), |number| pending.contains(&number), &mut self.out);
        self.core.bytes(self.now, false, true);
    }

    fn update(&mut self, id: &str, text: &str) {
        let params = format!(r#"{{"sessionId":"{SESSION}","update":"{text}"}}"#);
        self.event(id, format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{params}}}"#));
    }

    fn response(&mut self, id: &str, number: u64) {
        let request = self.core.ids.id(number);
        self.event(id, format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, request.as_json()));
        self.pending.remove(&number);
    }

    fn body(&mut self) {
        self.core.body_seen(self.now);
    }

    /// The origins of the messages since the last call, in order.
    fn origins(&mut self) -> Vec<Origin> {
        let effects = self.out.drain(..);
        effects
            .filter_map(|effect| match effect {
                Effect::Message(ordered) => Some(ordered.origin),
                _ => None,
            })
            .collect()
    }

    /// Why a request failed, if it did.
    fn failure(&self, request: u64) -> Option<Lost> {
        self.out.iter().find_map(|effect| match effect {
            Effect::Fail { number, why } if *number == request => Some(*why),
            _ => None,
        })
    }

    /// How the order of a response was verified, if the request was settled.
    fn settled(&self, request: u64) -> Option<Order> {
        self.out.iter().find_map(|effect| match effect {
            Effect::Settle { number, order, .. } if *number == request => Some(*order),
            _ => None,
        })
    }

    /// The response to a request comes in the body of its POST.
    fn answered(&mut self, number: u64) {
        let outcome = Ok(bytes::Bytes::from_static(b"{}"));
        let next_number = self.core.ids.peek();
        let session = Some(SESSION.into());
        let response = Response { number, session, outcome, next_number, elsewhere: false };
        self.core.response(self.now, response);
    }

    fn restarted(&self) -> bool {
        self.out.iter().any(|effect| matches!(effect, Effect::Restarted { .. }))
    }
}

#[test]
fn a_request_that_may_have_reached_either_incarnation_does_not_wait_for_ever() {
    let mut bench = Bench::introduced(&Dialect::RPC);
    bench.core.lost(bench.now);
    bench.pass(SECOND);
    let (since, request) = (bench.now, bench.request());
    bench.accept(since, request);
    bench.open();
    let probe = bench.request();
    bench.response("1", probe);
    assert!(bench.restarted());
    assert_eq!(bench.failure(request), None, "it may run on the new server");
    bench.pass(119 * SECOND);
    assert_eq!(bench.failure(request), None);
    bench.pass(SECOND);
    assert_eq!(bench.failure(request), Some(Lost::Silence));
}

#[test]
fn a_request_that_is_accepted_after_the_proof_of_a_restart_belongs_to_the_old_incarnation() {
    let mut bench = Bench::introduced(&Dialect::RPC);
    let (since, request) = (bench.now, bench.request());
    bench.pass(SECOND);
    bench.reopen();
    let probe = bench.request();
    bench.response("1", probe);
    assert!(bench.restarted());
    bench.accept(since, request);
    bench.pass(Duration::ZERO);
    assert_eq!(bench.failure(request), Some(Lost::Restart));
}

#[test]
fn a_response_in_an_old_gap_proves_a_restart_if_its_request_is_younger_than_the_gap() {
    let mut bench = Bench::introduced(&Dialect::RPC);
    let early = bench.request();
    bench.update("4", "x");
    bench.open();
    bench.update("4", "x");
    bench.pass(2 * SECOND);
    assert!(bench.out.iter().any(|effect| matches!(effect, Effect::Gap { from: 2, to: 3 })));
    bench.response("3", early);
    assert!(!bench.restarted(), "the response was late");
    let late = bench.request();
    bench.response("2", late);
    assert!(bench.restarted(), "the request was made behind number 4");
}

#[test]
fn a_stream_that_continues_without_a_proof_puts_accepted_requests_in_doubt() {
    let mut bench = Bench::introduced(&Dialect::RPC);
    let request = bench.request();
    bench.accept(bench.now, request);
    bench.reopen();
    // Number 1, which would prove that the server is the same one, has left the buffer.
    bench.update("2", "x");
    bench.pass(120 * SECOND);
    assert_eq!(bench.failure(request), Some(Lost::Silence));
    let request = bench.request();
    bench.accept(bench.now, request);
    bench.reopen();
    bench.update("2", "x");
    bench.pass(1000 * SECOND);
    assert_eq!(bench.failure(request), None, "number 2 came again: nothing is in doubt");
}

#[test]
fn a_replay_does_not_renew_a_doubt_and_what_is_new_does() {
    for id in ["", "x"] {
        let mut bench = Bench::introduced(&Dialect::AUTO);
        let request = bench.request();
        bench.accept(bench.now, request);
        for text in ["a", "b"] {
            bench.update(id, text);
        }
        for _ in 0..3 {
            bench.reopen();
            for text in ["a", "b"] {
                bench.update(id, text);
            }
            bench.pass(30 * SECOND);
        }
        assert_eq!(bench.origins().len(), 8, "nothing is dropped that nothing identifies");
        bench.update(id, "c");
        bench.pass(100 * SECOND);
        assert_eq!(bench.failure(request), None, "the session lives");
        bench.reopen();
        bench.update(id, "c");
        bench.pass(20 * SECOND);
        assert_eq!(bench.failure(request), Some(Lost::Silence));
    }
}

#[test]
fn a_doubt_has_a_limit_where_nothing_identifies_events() {
    for (dialect, limited) in [(Dialect::AUTO, true), (Dialect::RPC, false)] {
        let mut bench = Bench::introduced(&dialect);
        bench.update("2", "first");
        let request = bench.request();
        bench.core.post_lost(bench.now, bench.now, request, Some(SESSION.into()));
        for number in 3..13 {
            bench.pass(59 * SECOND);
            let id = if limited { "2".to_owned() } else { number.to_string() };
            bench.update(&id, &number.to_string());
        }
        bench.pass(10 * SECOND);
        assert_eq!(bench.failure(request), limited.then_some(Lost::Silence), "{}", dialect.name());
    }
}

#[test]
fn a_backlog_message_that_arrives_behind_the_first_response_is_old() {
    let mut bench = Bench::new(&Dialect::RELEASED);
    bench.core.introducing();
    let first = bench.request();
    bench.open();
    bench.update("7", "old");
    bench.response("9", first);
    bench.reopen();
    bench.response("9", first);
    bench.pass(2 * SECOND);
    assert_eq!(bench.origins(), [Origin::Replayed]);
    bench.update("8", "swapped with the response");
    bench.update("10", "new");
    assert_eq!(bench.origins(), [Origin::Replayed, Origin::Live]);
}

#[test]
fn nothing_is_live_before_the_first_response_of_an_unknown_server() {
    let mut bench = Bench::new(&Dialect::AUTO);
    bench.core.introducing();
    bench.open();
    bench.update("", "old");
    bench.pass(100 * SECOND);
    bench.update("", "of another client");
    assert_eq!(bench.origins(), [Origin::Replayed; 2], "an agent may take minutes to start");
    bench.body();
    bench.update("", "unknown");
    assert_eq!(bench.origins(), []);
    bench.pass(SECOND);
    bench.update("", "new");
    assert_eq!(bench.origins(), [Origin::Live; 2], "no echo came");
}

#[test]
fn messages_of_an_unknown_origin_are_held_up_to_the_limit_and_are_old_above_it() {
    let (count, text) = (10_000, "words");
    let mut measured = Bench::new(&Dialect::OFFICIAL);
    measured.update("", text);
    let Some(Effect::Message(ordered)) = measured.out.pop() else { panic!("a message") };
    let each = ordered.message.raw.len() + size_of::<Held>();
    for (limit, origin) in [
        (Limits::default().backlog, Origin::Live),
        (count * each + 1, Origin::Live),
        (count * each, Origin::Live),
        (count * each - 1, Origin::Replayed),
    ] {
        let mut bench = Bench::within(&Dialect::AUTO, Limits::default().backlog(limit));
        bench.core.introducing();
        bench.open();
        bench.body();
        (0..count).for_each(|_| bench.update("", text));
        bench.pass(SECOND);
        assert_eq!(bench.origins(), vec![origin; count], "{limit}");
    }
}

#[test]
fn a_connection_id_ends_the_backlog() {
    let mut bench = Bench::new(&Dialect::AUTO);
    bench.core.introducing();
    bench.open();
    bench.body();
    bench.update("", "unknown");
    bench.core.exclusive();
    bench.pass(Duration::ZERO);
    bench.update("", "new");
    assert_eq!(bench.origins(), [Origin::Live; 2]);
}

#[test]
fn a_slow_replay_does_not_end_the_backlog_and_a_long_time_without_events_does() {
    let mut bench = Bench::new(&Dialect::RPC);
    bench.core.introducing();
    bench.open();
    bench.body();
    bench.pass(10 * SECOND);
    bench.update("1", "old");
    assert_eq!(bench.origins(), [Origin::Replayed]);
    bench.pass(15 * SECOND);
    bench.core.bytes(bench.now, false, false);
    bench.pass(15 * SECOND);
    bench.update("2", "new");
    assert_eq!(bench.origins(), [Origin::Live]);
}

#[test]
fn a_response_whose_echo_may_lie_in_a_gap_waits_for_a_later_echo_and_not_for_silence() {
    let mut bench = Bench::introduced(&Dialect::RPC);
    let request = bench.request();
    bench.answered(request);
    bench.update("4", "behind a hole");
    bench.reopen();
    bench.update("4", "behind a hole");
    bench.pass(SECOND);
    assert!(bench.out.iter().any(|effect| matches!(effect, Effect::Probe)), "the core asks for a later echo");
    // The update before the response is late.
    let probe = bench.request();
    bench.pass(SECOND);
    assert_eq!(bench.settled(request), None);
    bench.update("5", "late");
    bench.response("6", probe);
    assert_eq!(bench.settled(request), Some(Order::Verified));
    assert!(matches!(bench.out.iter().rposition(|effect| matches!(effect, Effect::Message(_))), Some(place)
        if bench.out[place..].iter().any(|effect| matches!(effect, Effect::Settle { number, .. } if *number == request))));
}

#[test]
fn without_a_later_echo_a_response_behind_a_gap_is_unverified_after_a_time_limit() {
    let mut bench = Bench::introduced(&Dialect::RPC);
    let request = bench.request();
    bench.answered(request);
    bench.update("4", "behind a hole");
    bench.reopen();
    bench.update("4", "behind a hole");
    bench.pass(SECOND);
    bench.pass(2 * SECOND - Duration::from_millis(1));
    assert_eq!(bench.settled(request), None);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.settled(request), Some(Order::Unverified));
}

#[test]
fn an_agent_request_that_was_replayed_without_an_id_is_never_live() {
    for id in ["", "0"] {
        let mut bench = Bench::new(&Dialect::AUTO);
        bench.core.introducing();
        let ask = |bench: &mut Bench, number: u32| {
            let params = format!(r#"{{"sessionId":"{SESSION}"}}"#);
            let method = "session/request_permission";
            bench.event(
                id,
                format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{params}}}"#),
            );
        };
        bench.open();
        ask(&mut bench, 1);
        ask(&mut bench, 2);
        assert_eq!(bench.origins(), [Origin::Replayed; 2], "{id:?}");
        // The stream is opened again before the end of the backlog is known, and once more after that.
        bench.reopen();
        bench.body();
        ask(&mut bench, 1);
        ask(&mut bench, 3);
        bench.pass(3 * SECOND);
        assert_eq!(bench.origins(), [Origin::Replayed, Origin::Live], "{id:?}");
        bench.reopen();
        ask(&mut bench, 2);
        ask(&mut bench, 4);
        assert_eq!(bench.origins(), [Origin::Replayed, Origin::Live], "{id:?}");
    }
}

#[test]
fn what_is_held_is_given_when_the_stream_ends() {
    let mut bench = Bench::new(&Dialect::AUTO);
    bench.core.introducing();
    bench.open();
    bench.body();
    bench.update("", "held");
    assert_eq!(bench.origins(), [], "nothing says yet whether it is old");
    bench.core.end(bench.now, &mut bench.out);
    assert_eq!(bench.origins(), [Origin::Live]);
}
