//! Restarts, and the events that are delivered around them.

use super::{
    super::tests::{accept, feed},
    Sequenced::{Gap, Item, Late, Restarted, Unproven},
    *,
};

#[test]
fn an_old_number_with_new_content_is_a_new_server() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (2, "b"), (3, "c")]);
    sequence.reopened();
    let (out, flows) = feed(&mut sequence, &[(1, "x"), (2, "y")]);
    assert_eq!(out, [Restarted, Item("x"), Item("y")]);
    assert_eq!(flows, [Flow::Continue, Flow::Continue]);
}

#[test]
fn a_new_server_that_is_ahead_is_read_from_its_beginning() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
    sequence.reopened();
    let (out, flows) = feed(&mut sequence, &[(3, "z")]);
    assert_eq!((out, flows), (vec![Restarted], vec![Flow::Reopen]));
    assert_eq!(sequence.resume_point(), None);
    let (out, _) = feed(&mut sequence, &[(1, "x"), (2, "y"), (3, "z")]);
    assert_eq!(out, [Item("x"), Item("y"), Item("z")]);
}

#[test]
fn a_new_server_is_read_from_its_beginning_if_its_events_were_taken_for_repeats() {
    let mut sequence = Sequence::new(None);
    let mut out = Vec::new();
    for n in 1..=5000 {
        accept(&mut sequence, n, "x", &mut out);
    }
    sequence.reopened();
    let (out, flows) = feed(&mut sequence, &[(63, "y"), (64, "y"), (65, "y")]);
    assert_eq!(out, [Restarted]);
    assert_eq!(flows, [Flow::Continue, Flow::Continue, Flow::Reopen]);
    assert_eq!(sequence.resume_point(), None);
    sequence.reopened();
    assert_eq!(feed(&mut sequence, &[(1, "y"), (2, "y")]).0, [Item("y"), Item("y")]);
}

#[test]
fn a_response_to_a_pending_request_under_an_old_number_proves_a_restart() {
    for resume_from in [None, Some(90)] {
        let mut sequence = Sequence::new(resume_from);
        let mut out = Vec::new();
        for n in 91..100 {
            accept(&mut sequence, n, "x", &mut out);
        }
        sequence.reopened();
        out.clear();
        sequence.accept(Some(1), Fingerprint::of(b"x"), "x", |_| Some(99), &mut out);
        assert_eq!(out, [Restarted, Item("x")]);
    }
}

#[test]
fn what_a_new_server_delivered_before_its_proof_is_not_delivered_again() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (2, "b"), (5, "e")]);
    sequence.reopened();
    sequence.give_up(&mut Vec::new());
    sequence.reopened();
    // Number 6 continues the old count, number 4 lies in a gap; number 5 shows that all of them are new.
    let (out, flows) = feed(&mut sequence, &[(6, "F"), (4, "D"), (5, "E")]);
    assert_eq!(out, [Item("F"), Restarted]);
    assert_eq!(flows.last(), Some(&Flow::Reopen));
    sequence.reopened();
    let events = [(1, "A"), (2, "B"), (3, "C"), (4, "D"), (5, "E"), (6, "F"), (7, "G")];
    let (out, _) = feed(&mut sequence, &events);
    assert_eq!(out, [Item("A"), Item("B"), Item("C"), Item("D"), Item("E"), Item("G")]);
}

#[test]
fn what_a_new_server_delivered_before_its_proof_is_not_delivered_again_after_another_reopening() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (2, "b")]);
    sequence.reopened();
    // A new server, of whose events the network loses some.
    let (out, flows) = feed(&mut sequence, &[(4, "D")]);
    assert_eq!((out, flows), (vec![], vec![Flow::Reopen]));
    let mut out = Vec::new();
    sequence.give_up(&mut out);
    assert_eq!(out, [Gap { from: 3, to: 3 }, Unproven, Item("D")]);
    sequence.reopened();
    let (out, _) = feed(&mut sequence, &[(1, "A"), (2, "B"), (4, "D")]);
    assert_eq!(out, [Restarted, Item("A"), Item("B")]);
    sequence.reopened();
    let (out, _) = feed(&mut sequence, &[(3, "C"), (4, "D"), (5, "E")]);
    assert_eq!(out, [Item("C"), Item("E")]);
}

#[test]
fn a_late_event_waits_until_the_server_is_shown_to_be_the_same_one() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (5, "e"), (5, "e")]);
    sequence.give_up(&mut Vec::new());
    sequence.reopened();
    assert_eq!(feed(&mut sequence, &[(3, "c"), (4, "d")]).0, []);
    assert!(!sequence.is_decided());
    assert_eq!(feed(&mut sequence, &[(5, "e"), (2, "b"), (3, "c")]).0, [Late("c"), Late("d"), Late("b")]);
    assert!(sequence.is_decided());
}

#[test]
fn late_events_that_wait_for_a_proof_are_bounded_and_delivered_once() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (5000, "b")]);
    sequence.give_up(&mut Vec::new());
    sequence.reopened();
    // A server that never shows whether it is the same one.
    let mut out = Vec::new();
    for n in 2..2000 {
        accept(&mut sequence, n, "late", &mut out);
        assert!(sequence.late.len() < LATE, "{n}");
    }
    assert_eq!(out.iter().filter(|out| **out == Unproven).count(), 1);
    let late = out.iter().filter(|out| **out == Late("late")).count();
    assert!(late > 1998 - LATE && out.len() == late + 1, "{late}");
    // Its proof comes after all.
    accept(&mut sequence, 5000, "b", &mut out);
    assert_eq!(out.len(), 1 + 1998, "each is delivered once");
    sequence.reopened();
    for n in 2..2000 {
        accept(&mut sequence, n, "late", &mut out);
    }
    assert_eq!(out.len(), 1 + 1998, "also if more came than are remembered");
}

#[test]
fn a_late_event_of_a_new_server_is_delivered_once_and_in_order() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (5, "e"), (5, "e")]);
    sequence.give_up(&mut Vec::new());
    for _ in 0..3 {
        sequence.reopened();
        assert_eq!(feed(&mut sequence, &[(2, "B"), (3, "C")]).0, []);
    }
    let (out, flows) = feed(&mut sequence, &[(5, "E")]);
    assert_eq!((out, flows), (vec![Restarted], vec![Flow::Reopen]));
    sequence.reopened();
    let (out, _) = feed(&mut sequence, &[(1, "A"), (2, "B"), (3, "C"), (4, "D"), (5, "E")]);
    assert_eq!(out, [Item("A"), Item("B"), Item("C"), Item("D"), Item("E")]);
}

#[test]
fn a_late_event_that_showed_a_restart_with_others_is_delivered_after_a_gap_too() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (5, "e"), (5, "e")]);
    sequence.give_up(&mut Vec::new());
    sequence.reopened();
    assert_eq!(feed(&mut sequence, &[(2, "B")]).0, []);
    let mut out = Vec::new();
    sequence.accept(Some(3), Fingerprint::of(b"C"), "C", |_| Some(5), &mut out);
    sequence.reopened();
    sequence.give_up(&mut out);
    assert_eq!(out, [Restarted, Gap { from: 1, to: 2 }, Unproven, Item("C")]);
    assert_eq!(feed(&mut sequence, &[(2, "B"), (3, "C"), (2, "B")]).0, [Late("B")]);
}

#[test]
fn what_a_large_event_leaves_unproven_stays_so_over_several_openings() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a")]);
    let large = Fingerprint::of(&vec![b'x'; 1 << 20]);
    sequence.accept(Some(2), large, "large", |_| None, &mut Vec::new());
    // No event that was seen is fetched again.
    sequence.reopened();
    assert_eq!(feed(&mut sequence, &[(3, "C"), (4, "D")]).0, [Item("C"), Item("D")]);
    sequence.reopened();
    assert_eq!(feed(&mut sequence, &[(4, "D"), (5, "E")]).0, [Item("E")]);
    sequence.reopened();
    assert_eq!(feed(&mut sequence, &[(1, "A")]).0, [Restarted, Item("A")]);
    let (out, _) = feed(&mut sequence, &[(2, "B"), (3, "C"), (4, "D"), (5, "E"), (6, "F")]);
    assert_eq!(out, [Item("B"), Item("F")]);
}

#[test]
fn a_restart_while_a_new_server_is_read_from_its_beginning_is_another_one() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (2, "b"), (3, "c")]);
    sequence.reopened();
    assert_eq!(feed(&mut sequence, &[(3, "C")]).0, [Restarted]);
    sequence.reopened();
    let (out, flows) = feed(&mut sequence, &[(1, "x"), (2, "y"), (3, "z")]);
    assert_eq!(out, [Item("x"), Item("y"), Gap { from: 3, to: 3 }, Restarted]);
    assert_eq!(flows.last(), Some(&Flow::Reopen));
    sequence.reopened();
    assert_eq!(feed(&mut sequence, &[(1, "x"), (2, "y"), (3, "z")]).0, [Item("z")]);
}

#[test]
fn other_content_under_a_number_that_is_held_is_a_new_server() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (3, "c")]);
    sequence.reopened();
    let (out, flows) = feed(&mut sequence, &[(3, "C")]);
    assert_eq!(out, [Gap { from: 2, to: 2 }, Item("c"), Restarted]);
    assert_eq!(flows, [Flow::Reopen]);
    sequence.reopened();
    assert_eq!(feed(&mut sequence, &[(1, "A"), (2, "B"), (3, "C")]).0, [Item("A"), Item("B"), Item("C")]);
}

#[test]
fn a_server_that_contradicts_itself_with_each_opening_is_not_read_again_for_ever() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(5, "a")]);
    let contents = ["b", "c", "d", "e", "f", "g", "h"];
    let mut reopened = 0;
    for content in contents {
        sequence.reopened();
        let (_, flows) = feed(&mut sequence, &[(5, content)]);
        reopened += usize::from(flows == [Flow::Reopen]);
    }
    assert_eq!(reopened, usize::try_from(FUTILE).unwrap());
}

#[test]
fn a_late_response_in_a_gap_is_not_a_restart_after_a_reopening_either() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (3, "c")]);
    sequence.reopened();
    sequence.give_up(&mut Vec::new());
    sequence.reopened();
    let mut out = Vec::new();
    sequence.accept(Some(2), Fingerprint::of(b"b"), "b", |_| Some(1), &mut out);
    accept(&mut sequence, 3, "c", &mut out);
    assert_eq!(out, [Late("b")]);
}

#[test]
fn a_response_in_a_gap_to_a_request_that_is_younger_proves_a_restart() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (3, "c"), (3, "c")]);
    sequence.give_up(&mut Vec::new());
    sequence.reopened();
    let mut out = Vec::new();
    sequence.accept(Some(2), Fingerprint::of(b"b"), "b", |_| Some(3), &mut out);
    assert_eq!(out[0], Restarted);
}

#[test]
fn a_stream_that_continues_without_an_event_that_was_seen_is_unproven() {
    let mut sequence = Sequence::new(None);
    feed(&mut sequence, &[(1, "a"), (2, "b")]);
    let mut out = Vec::new();
    sequence.reopened();
    accept(&mut sequence, 3, "c", &mut out);
    accept(&mut sequence, 4, "d", &mut out);
    assert_eq!(out, [Unproven, Item("c"), Item("d")]);
    out.clear();
    sequence.reopened();
    accept(&mut sequence, 4, "d", &mut out);
    accept(&mut sequence, 5, "e", &mut out);
    assert_eq!(out, [Item("e")]);
}

#[test]
fn a_number_below_the_first_is_another_server_unless_it_swapped_places_with_it() {
    let mut sequence = Sequence::new(None);
    assert_eq!(feed(&mut sequence, &[(7, "g"), (6, "f"), (8, "h")]).0, [Item("g"), Late("f"), Item("h")]);
    sequence.reopened();
    assert_eq!(feed(&mut sequence, &[(7, "g"), (1, "a")]).0, [Restarted, Item("a")]);
}
