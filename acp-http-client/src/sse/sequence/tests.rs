//! The output of a numbered stream.

use super::Sequenced::{Gap, Item, Late, Unproven};
use super::*;

pub(super) fn accept(
    sequence: &mut Sequence<&'static str>,
    n: u64,
    content: &'static str,
    out: &mut Vec<Sequenced<&'static str>>,
) -> Flow {
    match sequence.accept(Some(n), Fingerprint::of(content.as_bytes()), content, |_| None, out) {
        Accepted::Taken(flow) => flow,
        Accepted::NotASequence(item) => panic!("{item} breaks the promise of a sequence"),
    }
}

/// Feeds `(number, content)` pairs and collects the delivered items, with the flow after each.
pub(super) fn feed(
    sequence: &mut Sequence<&'static str>,
    events: &[(u64, &'static str)],
) -> (Vec<Sequenced<&'static str>>, Vec<Flow>) {
    let mut out = Vec::new();
    let flows = events.iter().map(|(n, content)| accept(sequence, *n, content, &mut out)).collect();
    out.retain(|out| *out != Unproven);
    (out, flows)
}

#[test]
fn a_sequence_passes_and_repeats_do_not() {
    let mut sequence = Sequence::new(None);
    let (out, _) = feed(&mut sequence, &[(1, "a"), (2, "b"), (1, "a"), (2, "b"), (3, "c")]);
    assert_eq!(out, [Item("a"), Item("b"), Item("c")]);
    assert_eq!(sequence.repeats(), 2);
    assert_eq!(sequence.last(), Some(3));
}

#[test]
fn the_stream_is_resumed_one_event_early_where_that_is_cheap() {
    let mut sequence = Sequence::new(None);
    assert_eq!(sequence.resume_point(), None);
    feed(&mut sequence, &[(1, "a")]);
    assert_eq!(sequence.resume_point(), None, "one before the first is the beginning");
    feed(&mut sequence, &[(2, "b")]);
    assert_eq!(sequence.resume_point(), Some(1));
    let large = Fingerprint::of(&vec![b'x'; 1 << 20]);
    sequence.accept(Some(3), large, "large", |_| None, &mut Vec::new());
    assert_eq!(sequence.resume_point(), Some(3));
    assert_eq!(Sequence::<()>::new(Some(9)).resume_point(), Some(9));
}

#[test]
fn a_hole_is_refetched_and_filled_in_order() {
    let mut sequence = Sequence::new(None);
    let (out, flows) = feed(&mut sequence, &[(1, "a"), (3, "c")]);
    assert_eq!(out, [Item("a")]);
    assert_eq!(flows, [Flow::Continue, Flow::Reopen]);
    let (out, flows) = feed(&mut sequence, &[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
    assert_eq!(out, [Item("b"), Item("c"), Item("d")]);
    assert!(flows.iter().all(|flow| *flow == Flow::Continue));
    assert_eq!(sequence.hole_timeout(), None);
}

#[test]
fn an_unfillable_hole_is_reported_with_its_bounds_before_what_follows() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (5, "e")]);
    let (out, _) = feed(&mut sequence, &[(5, "e")]);
    assert_eq!(out, []);
    let mut out = Vec::new();
    sequence.give_up(&mut out);
    assert_eq!(out, [Gap { from: 2, to: 4 }, Item("e")]);
    assert_eq!(feed(&mut sequence, &[(6, "f")]).0, [Item("f")]);
}

#[test]
fn a_flood_behind_a_hole_does_not_wait_for_the_clock() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (3, "x")]);
    let events: Vec<_> = (3..40).map(|n| (n, "x")).collect();
    let (out, _) = feed(&mut sequence, &events);
    assert_eq!(out[0], Gap { from: 2, to: 2 });
    assert_eq!(out.len(), 1 + 37);
}

#[test]
fn what_an_earlier_stream_brought_is_held_until_the_open_one_comes_to_it() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (60, "x")]);
    sequence.reopened();
    // The replay buffer begins at 30 and is replayed from there: more events than are accepted before a hole is
    // reported.
    let events: Vec<_> = (30..70).map(|n| (n, "x")).collect();
    let (out, flows) = feed(&mut sequence, &events);
    assert_eq!(out[0], Gap { from: 2, to: 29 });
    assert_eq!(out[1..], (30..70).map(|_| Item("x")).collect::<Vec<_>>());
    assert!(flows.iter().all(|flow| *flow == Flow::Continue));
    assert_eq!((sequence.last(), sequence.hole_timeout()), (Some(69), None));
}

#[test]
fn a_second_hole_of_the_open_stream_is_reported_too() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (60, "x")]);
    sequence.reopened();
    let events: Vec<_> = (30..35).chain(50..55).chain(60..70).map(|n| (n, "x")).collect();
    let (mut out, _) = feed(&mut sequence, &events);
    sequence.give_up(&mut out);
    let gaps: Vec<_> = out.iter().filter(|item| matches!(item, Gap { .. })).collect();
    assert_eq!(gaps, [&Gap { from: 2, to: 29 }, &Gap { from: 35, to: 49 }, &Gap { from: 55, to: 59 }]);
    assert_eq!(out.len(), 3 + 5 + 5 + 10);
}

#[test]
fn neighbours_that_swapped_places_are_no_gap() {
    let mut sequence = Sequence::new(None);
    let (out, flows) = feed(&mut sequence, &[(1, "a"), (3, "c")]);
    assert_eq!((out.len(), flows[1]), (1, Flow::Reopen));
    let (out, _) = feed(&mut sequence, &[(3, "c"), (2, "b"), (4, "d")]);
    assert_eq!(out, [Item("b"), Item("c"), Item("d")]);
}

#[test]
fn an_event_of_a_declared_gap_that_comes_late_is_given_once() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (3, "c"), (3, "c")]);
    sequence.give_up(&mut Vec::new());
    assert_eq!(feed(&mut sequence, &[(2, "b"), (2, "b")]).0, [Late("b")]);
}

#[test]
fn an_old_number_that_is_not_remembered_is_a_repeat() {
    let mut sequence = Sequence::new(None);
    let mut out = Vec::new();
    for n in 1..=5000 {
        accept(&mut sequence, n, "x", &mut out);
    }
    sequence.reopened();
    for n in 1..=5000 {
        assert_eq!(feed(&mut sequence, &[(n, "x")]).0, []);
    }
    assert_eq!(sequence.repeats(), 5000);
}

#[test]
fn a_skipped_event_is_not_asked_for_again() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a")]);
    let mut out = Vec::new();
    assert_eq!(sequence.skip(Some(Some(2)), &mut out), Flow::Continue);
    assert_eq!(sequence.skip(Some(Some(2)), &mut out), Flow::Continue);
    assert_eq!(sequence.resume_point(), Some(2));
    assert_eq!(sequence.skip(None, &mut out), Flow::Continue);
    assert_eq!(sequence.resume_point(), Some(3));
    assert_eq!(feed(&mut sequence, &[(4, "d")]).0, [Item("d")]);
    assert!(out.is_empty());
}

#[test]
fn a_hole_before_a_skipped_event_is_a_hole_all_the_same() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (2, "b")]);
    let mut out = Vec::new();
    assert_eq!(sequence.skip(Some(Some(5)), &mut out), Flow::Reopen);
    sequence.give_up(&mut out);
    assert_eq!(out, [Gap { from: 3, to: 4 }]);
    assert_eq!(feed(&mut sequence, &[(6, "f")]).0, [Item("f")]);
}

#[test]
fn a_skipped_event_behind_held_ones_keeps_its_position() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (4, "d")]);
    let mut out = Vec::new();
    sequence.skip(Some(Some(6)), &mut out);
    sequence.give_up(&mut out);
    assert_eq!(out, [Gap { from: 2, to: 3 }, Item("d"), Gap { from: 5, to: 5 }]);
    assert_eq!(sequence.last(), Some(6));
}

#[test]
fn numbers_that_are_not_dense_are_not_asked_for_over_and_over() {
    let mut sequence = Sequence::new(None);
    let (mut reopened, mut out) = (0, Vec::new());
    for n in (1..200).step_by(2) {
        if accept(&mut sequence, n, "x", &mut out) == Flow::Reopen {
            reopened += 1;
            accept(&mut sequence, n, "x", &mut out);
            sequence.give_up(&mut out);
        }
    }
    assert_eq!(reopened, FUTILE);
    assert_eq!(out.iter().filter(|out| matches!(out, Item(_))).count(), 100);
    assert_eq!(out.iter().filter(|out| matches!(out, Gap { .. })).count(), 99);
}
