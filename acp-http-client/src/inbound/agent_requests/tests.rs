//! The table of agent requests.

use super::{answered::ANSWERED, *};

fn arrival(event: Option<&str>, reopenings: u64) -> Arrival {
    let (method, print) = ("m".into(), Fingerprint::of(b"{}"));
    Arrival { method, print, event_id: event.map(EventId::from), reopenings }
}

#[test]
fn an_answered_request_is_distinguished_from_one_of_a_restarted_agent() {
    // The event and the reopenings of the first and of the second request; whether the first agent or turn has
    // ended; whether it is the same request.
    let table = [
        ((Some("5"), 0), (Some("5"), 0), false, true),
        ((Some("5"), 0), (Some("5"), 1), true, true),
        ((Some("5"), 0), (Some("9"), 0), false, true),
        ((Some("5"), 0), (Some("9"), 0), true, false),
        ((Some("5"), 0), (Some("9"), 1), false, true),
        ((Some("5"), 0), (Some("9"), 1), true, false),
        ((None, 0), (None, 0), false, true),
        ((None, 0), (None, 0), true, false),
        ((None, 0), (None, 1), false, true),
        ((None, 0), (None, 1), true, true),
    ];
    for (first, again, ended, repeated) in table {
        let mut answered = AnsweredRequests::default();
        answered.insert(&id(1), Some("s"), &arrival(first.0, first.1));
        answered.mark_ended(Some("another session"));
        if ended {
            answered.mark_ended(Some("s"));
        }
        assert_eq!(
            answered.contains(&id(1), &arrival(again.0, again.1)),
            repeated,
            "{first:?} {again:?} {ended}"
        );
        assert!(!answered.contains(&id(2), &arrival(again.0, again.1)), "another id");
        let other = Arrival { print: Fingerprint::of(b"[]"), ..arrival(again.0, again.1) };
        assert!(!answered.contains(&id(1), &other), "other parameters");
        let other = Arrival { method: "n".into(), ..arrival(again.0, again.1) };
        assert!(!answered.contains(&id(1), &other), "another method");
    }
}

fn request(arrival: Arrival) -> OpenRequest {
    OpenRequest { serial: 0, session: None, arrival, bytes: 2, cancel: oneshot::channel().0 }
}

fn table() -> AgentRequestTable {
    AgentRequestTable::new(&Limits::default())
}

fn id(number: usize) -> MessageId {
    serde_json::from_str(&number.to_string()).unwrap()
}

fn open(table: &AgentRequestTable, id: &MessageId, request: OpenRequest) -> u64 {
    match table.admit(id, request) {
        Admission::Open(serial) => serial,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_response_never_goes_to_another_request_under_its_id() {
    let table = table();
    let first = open(&table, &id(0), request(arrival(Some("1"), 0)));
    let other = Arrival { print: Fingerprint::of(b"[]"), ..arrival(Some("2"), 0) };
    let second = open(&table, &id(0), request(other));
    assert!(table.claim(&id(0), first).is_none(), "the agent that sent the first is gone");
    assert!(table.claim(&id(0), second).is_some());
    assert!(table.claim(&id(0), second).is_none(), "once");
}

#[test]
fn a_bounded_number_of_responses_is_remembered_and_the_latest_of_each() {
    let table = table();
    let answer = |number: usize, event: u64| {
        table.renew(None);
        let serial = open(&table, &id(number), request(arrival(Some(&event.to_string()), event)));
        assert!(table.claim(&id(number), serial).is_some());
    };
    answer(0, 1);
    answer(0, 2);
    (1..ANSWERED).for_each(|number| answer(number, 3));
    assert_eq!(table.lock().answered.len(), ANSWERED, "the first response to 0 was replaced by the last");
    answer(ANSWERED, 3);
    assert_eq!(table.lock().answered.len(), ANSWERED);
}

#[test]
fn requests_are_refused_beyond_the_limit_and_dropped_beyond_that_of_refusals() {
    let table = AgentRequestTable::new(&Limits::default().open_requests(3).refusals(2));
    let admit = |number: usize| table.admit(&id(number), request(arrival(Some("1"), 0)));
    let refuse = |number: usize| table.refuse(&id(number), None, &arrival(Some("1"), 0));
    let admitted: Vec<_> = (0..4).map(admit).collect();
    assert_eq!(admitted, [Admission::Open(1), Admission::Open(2), Admission::Open(3), Admission::Full]);
    let dropped = |is_first| Refusal::Dropped { is_first };
    assert_eq!([3, 4, 5, 6].map(refuse), [Refusal::Granted, Refusal::Granted, dropped(true), dropped(false)]);
    assert_eq!(admit(3), Admission::Repeated, "it was refused already");
    let responding = table.claim(&id(0), 1).unwrap();
    drop(Responding { table: &table, refusal: true, bytes: 0 });
    assert_eq!(admit(7), Admission::Full, "a request is open until its response was sent");
    assert_eq!(refuse(7), Refusal::Granted);
    drop(responding);
    assert_eq!(admit(8), Admission::Open(4));
    assert_eq!(admit(9), Admission::Full);
    assert_eq!(refuse(9), dropped(true));
}

#[test]
fn the_responses_that_are_being_sent_have_one_limit() {
    let table = AgentRequestTable::new(&Limits::default().response_bytes(10));
    let respond = |number: usize| {
        let serial = open(&table, &id(number), request(arrival(Some("1"), 0)));
        table.claim(&id(number), serial).unwrap()
    };
    let (mut first, mut second) = (respond(0), respond(1));
    assert!(!first.reserve(11) && first.reserve(9));
    assert!(!second.reserve(2) && second.reserve(1));
    assert!(first.reserve(3), "a smaller one instead");
    assert!(!second.reserve(8) && second.reserve(7));
    drop(first);
    assert!(second.reserve(10));
    table.clear();
    drop(second);
    assert!(respond(2).reserve(10));
}

#[test]
fn the_parameters_of_all_open_requests_have_one_limit() {
    let table = AgentRequestTable::new(&Limits::default().open_request_bytes(10));
    let admit = |number: usize, bytes: usize| {
        table.admit(&id(number), OpenRequest { bytes, ..request(arrival(Some("1"), 0)) })
    };
    assert_eq!(admit(0, 11), Admission::Full);
    assert_eq!(admit(1, 9), Admission::Open(1));
    assert_eq!(admit(2, 2), Admission::Full);
    assert_eq!(admit(3, 1), Admission::Open(2));
    assert_eq!(table.forget(None), 2);
    assert_eq!(admit(4, 10), Admission::Open(3));
}

#[tokio::test]
async fn a_closure_that_selects_sessions_may_use_the_table() {
    let table = table();
    open(&table, &id(0), request(arrival(Some("1"), 0)));
    table.cancel(|_| table.list().len() == 1).await;
}
