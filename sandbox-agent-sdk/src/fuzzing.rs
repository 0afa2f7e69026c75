//! The bodies of the fuzz targets that need internals of this crate.
//!
//! Each function takes any bytes and panics if a property does not hold. The fuzzer calls them, and tests replay its
//! corpus.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod control;

use std::collections::HashSet;

use acp_http_client::fuzzing::json;
use arbitrary::Unstructured;
use serde_json::Value;

use crate::client::event::Weight;
use crate::convert::text::is_unsafe;
use crate::event::Origin;
use crate::sessions::read_transcript;
use crate::tools::Tail;
use crate::update::{Update, UpdateKind};

pub use self::control::control_response;

/// Derives the random ids and delays of this crate from a seed, on this thread. For simulations.
pub fn seed_randomness(seed: u64) {
    crate::client::random::seed(seed);
}

/// Checks that an update preserves its JSON, is safe to print, and counts the memory that it takes.
pub fn update(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let update = Update::from_json(&json(&text), Origin::Live);
    assert!(!update.to_string().contains(is_unsafe), "a terminal acts on {:?}", update.to_string());
    assert!(update.weight() >= update.memory(), "{} bytes count as {}", update.memory(), update.weight());
    let written = serde_json::to_value(&update).expect("an update can be written");
    assert_eq!(written["sessionId"], update.session_id());
    let Ok(read) = acp_http_client::json::from_str::<Value>(&text) else {
        assert!(matches!(update.kind(), UpdateKind::Unreadable { .. }), "{update:?}");
        return;
    };
    assert_eq!(read.get("sessionId").and_then(Value::as_str).unwrap_or_default(), update.session_id());
    if let Some(expected) = read.get("update") {
        assert_eq!(update.raw(), expected);
        assert_eq!(&written["update"], expected);
        // Parsing directly, parsing through a value, and parsing the serialized form give the same update.
        let again = Update::from_json(&json(&written.to_string()), Origin::Live);
        assert!(is_same(again.kind(), update.kind()), "{again:?} is not {update:?}");
        let general = Update::read(read, Origin::Live, 0);
        assert!(is_same(general.kind(), update.kind()), "{general:?} is not {update:?}");
    }
}

/// Compares two updates without the order of their unknown members, which a repeated `type` changes.
fn is_same(one: &UpdateKind, other: &UpdateKind) -> bool {
    let [mut one, mut other] = [one, other].map(|kind| format!("{kind:?}").into_bytes());
    one.sort_unstable();
    other.sort_unstable();
    one == other
}

/// Checks that a transcript is either read completely or rejected. Its events belong to its session, each occurs
/// once, and a truncated transcript is rejected.
pub fn transcript(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok((record, events)) = read_transcript(text.lines()) else { return };
    let keys: HashSet<_> = events.iter().map(|event| &event.key).collect();
    assert_eq!(keys.len(), events.len(), "an event is there twice");
    assert_eq!((record.epoch, record.owner), (0, None), "an imported session is owned");
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    for end in 0..lines.len() {
        assert!(read_transcript(&lines[..end]).is_err(), "the first {end} lines are taken for all of it");
    }
}

/// Checks that the tail of an output equals the end of the text within the limit, for any chunk boundaries.
pub fn terminal_tail(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let limit = input.int_in_range(0..=64usize).unwrap_or(8);
    let call = input.arbitrary::<Option<u8>>().unwrap_or_default().map(usize::from);
    let sizes: [u8; 4] = input.arbitrary().unwrap_or([1; 4]);
    let output = input.take_rest();

    let (mut whole, mut pieces) = (Tail::new(limit), Tail::new(limit));
    whole.push(output);
    assert!(whole.memory() <= limit, "{} bytes of memory for {limit}", whole.memory());
    let mut rest = output;
    for size in sizes.iter().cycle() {
        let (piece, behind) = rest.split_at(usize::from(*size).clamp(1, rest.len().max(1)).min(rest.len()));
        pieces.push(piece);
        assert!(pieces.memory() <= limit, "{} bytes of memory for {limit}", pieces.memory());
        rest = behind;
        let shown = pieces.text(call);
        assert!(shown.text.len() <= call.unwrap_or(limit).min(limit));
        if rest.is_empty() {
            break;
        }
    }
    assert_eq!(whole.text(call), pieces.text(call), "other pieces give another end");
    whole.complete();
    assert!(whole.memory() <= limit && whole.memory() <= output.len(), "unused memory is not freed");
    let (end, text) = (whole.text(call), String::from_utf8_lossy(output));
    assert!(text.ends_with(&end.text), "{:?} is not the end of {text:?}", end.text);
    assert_eq!(end.truncated, end.text != text);
}
