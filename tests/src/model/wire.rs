//! How a response is put on the wire: one encoder for each API.

use serde_json::Value;

use super::reply::Step;

/// Writes a response piece by piece, or whole.
pub(super) trait Encoder: Send {
    /// What comes before the first piece.
    fn begin(&mut self) -> String {
        String::new()
    }

    /// One piece; nothing for a pause.
    fn step(&mut self, step: &Step) -> String;

    /// What comes after the last piece.
    fn end(&mut self) -> String;

    /// The whole response as one JSON value.
    fn whole(&mut self, steps: &[Step]) -> Value;
}

/// One event with nothing but data.
pub(super) fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// One event that is named by the `type` of its data.
pub(super) fn typed(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap_or_default())
}

/// The text of all steps of one kind.
pub(super) fn joined<'s>(steps: &'s [Step], pick: impl Fn(&'s Step) -> Option<&'s str>) -> String {
    steps.iter().filter_map(pick).collect()
}

/// The text of a message piece.
pub(super) fn message(step: &Step) -> Option<&str> {
    match step {
        Step::Text(text) => Some(text),
        _ => None,
    }
}

/// The text of a reasoning piece.
pub(super) fn thought(step: &Step) -> Option<&str> {
    match step {
        Step::Thought(text) => Some(text),
        _ => None,
    }
}
