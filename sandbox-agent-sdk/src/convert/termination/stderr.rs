//! The bounded stderr output of an agent.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::fields::{Fields, put};
use crate::convert::plain_text::plain_line;

/// Up to this many lines are stored completely.
const WHOLE_LINES: usize = 100;
/// If there are more lines, this many are stored from the start and from the end.
const PART_LINES: usize = 50;
/// The size limit of each part in bytes, because a single line can be arbitrarily long.
const PART_BYTES: usize = 64 * 1024;
/// The released server stores at most this many lines. If there are fewer, the output is complete.
const PROBLEM_LINES: usize = 16;

/// The stderr output of an agent: all of it, or its first and last lines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Map<String, Value>", into = "Map<String, Value>")]
#[non_exhaustive]
pub struct StderrOutput {
    /// The first lines, or all lines if nothing was truncated.
    pub head: Option<String>,
    /// The last lines, if lines between `head` and `tail` were dropped.
    pub tail: Option<String>,
    /// Whether lines were dropped.
    pub truncated: bool,
    /// The total number of lines.
    pub total_lines: Option<u64>,
    /// How many of the last lines were written since the prompt of the turn that was running.
    ///
    /// `None` if the server does not report it, if no turn was running, or if all lines are of the turn.
    pub turn_lines: Option<u64>,
    /// Unknown fields, as the server sent them.
    pub other: Map<String, Value>,
}

impl StderrOutput {
    /// Truncates a text to its first and last 50 lines. Up to 100 lines are stored completely.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let text = text.strip_suffix('\n').unwrap_or(text);
        let total = if text.is_empty() { 0 } else { text.split('\n').count() };
        let whole = total <= WHOLE_LINES && text.len() <= 2 * PART_BYTES;
        let (head, tail) = if whole {
            (text, None)
        } else if total <= WHOLE_LINES {
            (text, Some(text))
        } else {
            (first_lines(text, PART_LINES), Some(last_lines_text(text, PART_LINES)))
        };
        Self {
            head: Some(if whole { head } else { first_bytes(head) }.to_owned()),
            tail: tail.map(|tail| last_bytes(tail).to_owned()),
            truncated: !whole,
            total_lines: Some(total as u64),
            turn_lines: None,
            other: Map::new(),
        }
    }

    /// Parses the output in a problem of the released server: the agent's last lines, at most 16.
    ///
    /// Sixteen lines may be all lines or the last of many, so they are treated as truncated.
    pub(crate) fn from_problem_text(text: &str) -> Option<Self> {
        let text = text.trim_end_matches('\n');
        if text.is_empty() {
            return None;
        }
        if text.split('\n').count() < PROBLEM_LINES {
            return Some(Self::from_text(text));
        }
        let tail = last_bytes(last_lines_text(text, WHOLE_LINES)).to_owned();
        Some(Self { tail: Some(tail), truncated: true, ..Self::default() })
    }

    /// Parses the object that servers send, or plain text; `None` for any other value.
    pub(crate) fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Object(map) => Some(map.clone().into()),
            Value::String(text) => Some(Self::from_text(text)),
            _ => None,
        }
    }

    /// Cuts off what exceeds the bounds of [`from_text`](Self::from_text).
    fn within_bounds(mut self) -> Self {
        let length = |part: &Option<String>| part.as_ref().map_or(0, String::len);
        if length(&self.head) + length(&self.tail) > 2 * PART_BYTES {
            let end = self.tail.as_deref().or(self.head.as_deref()).map(|tail| last_bytes(tail).to_owned());
            self.head = self.head.map(|head| first_bytes(&head).to_owned());
            (self.tail, self.truncated) = (end, true);
        }
        self
    }

    /// Returns the last known lines, at most `count`, oldest first.
    #[must_use]
    pub fn last_lines(&self, count: usize) -> Vec<&str> {
        let mut known: Vec<&str> = self.head.as_deref().unwrap_or_default().lines().collect();
        let tail: Vec<&str> = self.tail.as_deref().unwrap_or_default().lines().collect();
        // If lines were dropped between head and tail, they are not contiguous.
        if self.truncated && !tail.is_empty() {
            known.clear();
        }
        known.extend(tail);
        known.split_off(known.len().saturating_sub(count))
    }

    /// Returns the last known lines of the running turn, at most `count`, oldest first.
    ///
    /// `None` if the server does not [report](Self#structfield.turn_lines) which lines these are.
    #[must_use]
    pub fn last_turn_lines(&self, count: usize) -> Option<Vec<&str>> {
        let lines = usize::try_from(self.turn_lines?).unwrap_or(usize::MAX);
        Some(self.last_lines(count.min(lines)))
    }

    /// Writes the last lines below a heading with their number. Writes nothing if there are none.
    pub(super) fn fmt_last_lines(&self, f: &mut fmt::Formatter<'_>, count: usize) -> fmt::Result {
        if let Some(shown) = self.last_turn_lines(count).filter(|shown| !shown.is_empty()) {
            let total = self.turn_lines.unwrap_or_default();
            match total > shown.len() as u64 {
                true => write!(f, "\nstderr of the turn, last {} of {total} lines:", shown.len())?,
                false => f.write_str("\nstderr of the turn:")?,
            }
            return shown.iter().try_for_each(|line| write!(f, "\n  {}", plain_line(line)));
        }
        let shown = self.last_lines(count);
        if shown.is_empty() {
            return Ok(());
        }
        let all = self.total_lines.is_some_and(|total| total == shown.len() as u64);
        let only_head = self.truncated && self.tail.is_none();
        let what = if self.turn_lines == Some(0) { "stderr before the turn" } else { "stderr" };
        match self.total_lines {
            _ if only_head => write!(f, "\n{what}, truncated:")?,
            _ if all => write!(f, "\n{what}:")?,
            Some(total) if total > shown.len() as u64 => {
                write!(f, "\n{what}, last {} of {total} lines:", shown.len())?;
            }
            _ => write!(f, "\n{what}, last lines:")?,
        }
        for line in shown {
            write!(f, "\n  {}", plain_line(line))?;
        }
        Ok(())
    }
}

impl From<Map<String, Value>> for StderrOutput {
    fn from(map: Map<String, Value>) -> Self {
        let mut fields = Fields::new(map);
        let head = fields.string(&["head"]);
        let tail = fields.string(&["tail"]);
        let truncated = fields.bool(&["truncated"]).unwrap_or(tail.is_some());
        let total_lines = fields.unsigned(&["totalLines", "total_lines"]);
        let turn_lines = fields.unsigned(&["turnLines", "turn_lines"]);
        Self { head, tail, truncated, total_lines, turn_lines, other: fields.rest() }.within_bounds()
    }
}

impl From<StderrOutput> for Map<String, Value> {
    fn from(stderr: StderrOutput) -> Self {
        let mut map = Self::new();
        put(&mut map, "head", stderr.head);
        put(&mut map, "tail", stderr.tail);
        put(&mut map, "truncated", Some(stderr.truncated));
        put(&mut map, "totalLines", stderr.total_lines);
        put(&mut map, "turnLines", stderr.turn_lines);
        // A field that could not be parsed is preserved under its own name.
        map.extend(stderr.other);
        map
    }
}

fn first_lines(text: &str, count: usize) -> &str {
    match text.match_indices('\n').nth(count - 1) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

fn last_lines_text(text: &str, count: usize) -> &str {
    match text.rmatch_indices('\n').nth(count - 1) {
        Some((end, _)) => &text[end + 1..],
        None => text,
    }
}

/// Returns the start of a text within the size limit, cut between characters.
fn first_bytes(text: &str) -> &str {
    let end = (0..=PART_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Returns the end of a text within the size limit, cut between characters.
fn last_bytes(text: &str) -> &str {
    let start = (text.len().saturating_sub(PART_BYTES)..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[start.unwrap_or(text.len())..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};
    use serde_json::json;

    use super::{PART_BYTES, StderrOutput};

    fn numbered(lines: usize) -> String {
        (1..=lines).map(|line| format!("line {line}")).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_hundred_lines_are_kept_whole_and_one_more_is_cut() {
        let whole = StderrOutput::from_text(&numbered(100));
        assert_eq!((whole.truncated, whole.total_lines, whole.tail), (false, Some(100), None));
        assert_eq!(whole.head, Some(numbered(100)));

        let cut = StderrOutput::from_text(&(numbered(101) + "\n"));
        assert_eq!((cut.truncated, cut.total_lines), (true, Some(101)));
        assert_eq!(cut.head, Some(numbered(50)));
        assert!(cut.tail.as_deref().unwrap().starts_with("line 52\n"));
        assert!(cut.tail.as_deref().unwrap().ends_with("\nline 101"));
    }

    #[test]
    fn ten_megabytes_stay_small_whatever_their_lines() {
        for text in ["é".repeat(5 << 20), "é\n".repeat(3 << 20), format!("{}\nend", "x".repeat(10 << 20))] {
            let stored = StderrOutput::from_text(&text);
            assert!(stored.truncated);
            assert!(stored.head.unwrap().len() <= PART_BYTES && stored.tail.unwrap().len() <= PART_BYTES);
        }
    }

    #[test]
    fn output_in_parts_stays_small_too() {
        let long = "é".repeat(1 << 20);
        for value in [
            json!({"head": long, "tail": long, "truncated": true, "totalLines": 7}),
            json!({"head": long, "totalLines": 7}),
            json!({"tail": long, "totalLines": 7}),
        ] {
            let stored: StderrOutput = serde_json::from_value(value.clone()).unwrap();
            assert!(stored.truncated && stored.total_lines == Some(7));
            for part in [&stored.head, &stored.tail] {
                assert!(part.as_ref().is_none_or(|part| part.len() <= PART_BYTES));
            }
            assert_eq!(stored.tail.is_some(), value.get("tail").is_some() || value.get("head").is_some());
            let again: StderrOutput = serde_json::from_value(serde_json::to_value(&stored).unwrap()).unwrap();
            assert_eq!(again, stored);
        }
        for (bytes, whole) in [(2 * PART_BYTES, true), (2 * PART_BYTES + 1, false)] {
            let stored: StderrOutput = serde_json::from_value(json!({"head": "x".repeat(bytes)})).unwrap();
            assert_eq!(!stored.truncated, whole, "{bytes}");
        }
    }

    #[test]
    fn fewer_lines_than_the_server_keeps_are_all_there_were() {
        let all = StderrOutput::from_problem_text("boom line 1\nboom line 2").unwrap();
        assert_eq!((all.head.as_deref(), all.truncated), (Some("boom line 1\nboom line 2"), false));
        assert_eq!(all.total_lines, Some(2));
        let end = StderrOutput::from_problem_text(&numbered(16)).unwrap();
        assert_eq!(
            (end.head, end.tail, end.truncated, end.total_lines),
            (None, Some(numbered(16)), true, None)
        );
        assert_eq!(StderrOutput::from_problem_text("\n"), None);
    }

    #[test]
    fn the_last_lines_come_from_where_the_end_is() {
        let read = |value| -> StderrOutput { serde_json::from_value(value).unwrap() };
        let cut = read(json!({"head": "a\nb", "tail": "y\nz", "truncated": true, "total_lines": 250}));
        assert_eq!(cut.last_lines(10), ["y", "z"]);
        assert_eq!(cut.last_lines(1), ["z"]);
        assert_eq!(read(json!({"head": "a\nb", "truncated": false})).last_lines(1), ["b"]);
        assert_eq!(read(json!({"head": "a", "tail": "b", "truncated": false})).last_lines(9), ["a", "b"]);
        assert!(read(json!({})).last_lines(9).is_empty());
    }

    #[test]
    fn both_spellings_and_unknown_members_are_read_and_camel_case_is_written() {
        let snake: StderrOutput =
            serde_json::from_value(json!({"head": "a", "truncated": false, "total_lines": 1,
            "encoding": "utf-8"}))
            .unwrap();
        assert_eq!(snake.total_lines, Some(1));
        assert_eq!(
            serde_json::to_value(snake).unwrap(),
            json!({"head": "a", "truncated": false, "totalLines": 1, "encoding": "utf-8"})
        );
    }

    #[test]
    fn the_lines_of_the_turn_are_the_last_ones() {
        let read = |value| -> StderrOutput { serde_json::from_value(value).unwrap() };
        let some = read(json!({"head": "start\nwarning\nboom", "total_lines": 3, "turn_lines": 2}));
        assert_eq!(some.last_turn_lines(9), Some(vec!["warning", "boom"]));
        assert_eq!(some.last_turn_lines(1), Some(vec!["boom"]));
        assert_eq!(some.last_lines(9).len(), 3);
        assert_eq!(serde_json::to_value(&some).unwrap()["turnLines"], 2);
        assert_eq!(read(json!({"head": "start", "turnLines": 0})).last_turn_lines(9), Some(vec![]));
        assert_eq!(read(json!({"head": "start"})).last_turn_lines(9), None);
    }

    proptest! {
        #[test]
        fn any_text_is_kept_within_bounds(text in any::<String>(), count in 0_usize..20) {
            for stored in [Some(StderrOutput::from_text(&text)), StderrOutput::from_problem_text(&text)] {
                let stored = stored.unwrap_or_default();
                prop_assert!(stored.last_lines(count).len() <= count);
            }
        }
    }
}
