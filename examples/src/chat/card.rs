//! Output of several lines: a crash, the result of a tool, a plan, an error.

use std::collections::HashSet;
use std::error::Error as StdError;

use sandbox_agent_sdk::update::{PlanEntry, ToolCall, ToolStatus};
use sandbox_agent_sdk::{Content, Error, TerminationInfo};
use serde_json::{Value, json};

use super::diff::diff_lines;
use super::line::{Line, Style};

/// How many lines of a tool's output are shown.
const TOOL_LINES: usize = 12;
/// How many lines of a diff are shown.
const DIFF_LINES: usize = 40;
/// How many of the last lines of standard error are shown.
const STDERR_LINES: usize = 12;
/// How many characters of one line of a tool's output are shown.
const LINE_CHARS: usize = 240;
/// The maximum length, in characters, of a shown text that the user decides about. It limits the work of drawing.
const WHOLE_CHARS: usize = 20_000;

/// Shows how the agent ended, in a chat that continues.
pub(super) fn crash(end: &TerminationInfo) -> Vec<Line> {
    let mut lines = end_of_agent(end);
    lines.push(restart_hint());
    lines
}

/// Shows how the user restarts the agent.
pub(super) fn restart_hint() -> Line {
    bar(Line::new(Style::Dim, "Your next message, or /restart, restarts it. /quit leaves."))
}

fn bar(line: Line) -> Line {
    line.behind(Style::Bad, "┃ ")
}

/// Shows how the agent ended.
pub(super) fn end_of_agent(end: &TerminationInfo) -> Vec<Line> {
    let title = if end.is_crash() { "The agent died" } else { "The agent has ended" };
    let mut how = Vec::new();
    if let Some(code) = end.exit_code {
        how.push(format!("exit code {code}"));
    }
    if let Some(signal) = &end.signal {
        how.push(format!("killed by {signal}"));
    }
    if how.is_empty() {
        how.push(end.reason.to_string());
    }
    let mut lines =
        vec![bar(Line::new(Style::Bold, title).with(Style::Bad, &format!("  {}", how.join(", "))))];
    // The message of some servers only repeats the exit status.
    let known = end.exit_code.is_some() || end.signal.is_some();
    if let Some(message) = end.message.as_ref().filter(|text| !known || !text.contains("unix_wait_status(")) {
        lines.push(bar(Line::new(Style::Dim, message)));
    }
    lines.extend(last_output(end));
    lines
}

/// Shows the last lines of standard error.
fn last_output(end: &TerminationInfo) -> Vec<Line> {
    let mut lines = Vec::new();
    let stderr = end.stderr.as_ref();
    let of_turn =
        stderr.and_then(|stderr| stderr.last_turn_lines(STDERR_LINES)).filter(|lines| !lines.is_empty());
    let (what, shown, total) = match of_turn {
        Some(shown) => ("stderr of this turn", shown, stderr.and_then(|stderr| stderr.turn_lines)),
        None => {
            let what = match stderr.and_then(|stderr| stderr.turn_lines) {
                Some(0) => "stderr before this turn",
                _ => "stderr",
            };
            (what, end.last_stderr_lines(STDERR_LINES), stderr.and_then(|stderr| stderr.total_lines))
        }
    };
    if !shown.is_empty() {
        let heading = match total {
            Some(total) if total > shown.len() as u64 => format!("last {} of {total} lines", shown.len()),
            _ => "all of it".to_owned(),
        };
        lines.push(bar(Line::new(Style::Dim, &format!("{what}, {heading}:"))));
        lines.extend(shown.iter().map(|line| bar(Line::new(Style::Normal, &format!("  {line}")))));
    }
    lines
}

/// Shows details that the server reported after the agent's end.
pub(super) fn late_details(end: &TerminationInfo) -> Vec<Line> {
    let mut lines = last_output(end);
    if !lines.is_empty() {
        lines.insert(0, bar(Line::new(Style::Bold, "Details of the agent that ended")));
    }
    lines
}

/// Shows an error and its causes, or how the agent ended.
pub(super) fn failure(what: &str, error: &Error) -> Vec<Line> {
    let mut lines = vec![Line::new(Style::Bad, "✗ ").with(Style::Normal, &format!("{what}: {error}"))];
    if let Some(end) = error.termination() {
        lines.extend(end_of_agent(end));
        return lines;
    }
    let mut cause = error.source();
    let mut last = error.to_string();
    while let Some(error) = cause {
        let text = error.to_string();
        if text != last {
            let first = text.lines().next().unwrap_or_default();
            lines.push(Line::new(Style::Dim, &format!("  because {first}")));
        }
        last = text;
        cause = error.source();
    }
    lines
}

/// Shows a finished tool call and its result.
pub(super) fn tool(call: &ToolCall) -> Vec<Line> {
    let (sign, style) = match &call.status {
        Some(ToolStatus::Completed) => ("✔ ", Style::Good),
        Some(ToolStatus::Failed) => ("✗ ", Style::Bad),
        _ => ("○ ", Style::Dim),
    };
    let mut title = Line::new(style, sign).with(Style::Normal, tool_title(call));
    match &call.status {
        Some(ToolStatus::Completed) => {}
        Some(ToolStatus::Failed) => title = title.with(Style::Bad, "  failed"),
        _ => title = title.with(Style::Dim, "  not finished"),
    }
    let mut lines = vec![title];
    let pieces = content(call, DIFF_LINES, Part::Last).into_iter();
    lines.extend(pieces.map(|piece| piece.line));
    lines
}

/// Returns the title of a tool call.
pub(super) fn tool_title(call: &ToolCall) -> &str {
    call.title.as_deref().filter(|title| !title.is_empty()).unwrap_or(&call.id)
}

/// Which part of a long text is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it, from the beginning: the user decides about it.
    Whole,
    /// The last lines, because the end of a tool's output matters most.
    Last,
}

/// A line of a tool call, and whether a file begins with it.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) line: Line,
    pub(super) is_file: bool,
}

/// Shows the content of a tool call: its output, or the changes that it makes.
pub(super) fn content(call: &ToolCall, diff_limit: usize, part: Part) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (index, piece) in call.content.iter().enumerate() {
        if call.content[..index].contains(piece) {
            continue;
        }
        let (lines, is_file) = match piece {
            Content::Text { text, .. } | Content::Resource { text, .. } => (excerpt(text, part), false),
            Content::Image { mime_type, .. } | Content::Audio { mime_type, .. } => {
                (vec![Line::new(Style::Dim, &format!("[{mime_type}]"))], false)
            }
            Content::Link { uri, name, .. } => {
                (vec![Line::new(Style::Accent, &format!("{name}  {uri}"))], false)
            }
            Content::Diff { path, old_text, new_text, .. } => {
                (diff_lines(path, old_text.as_deref().unwrap_or_default(), new_text, diff_limit), true)
            }
            Content::Other(value) => (excerpt(&value.to_string(), part), false),
            _ => continue,
        };
        pieces.extend(
            lines.into_iter().enumerate().map(|(row, line)| Piece {
                line: line.behind(Style::Dim, "  "),
                is_file: is_file && row == 0,
            }),
        );
    }
    pieces
}

/// Shows the input of a tool, except for what its diffs show.
pub(super) fn input(call: &ToolCall) -> Vec<Line> {
    let shown = lines_of_diffs(call);
    let input = call.input.as_ref().filter(|input| !input.is_null());
    let mut lines = input.map(|input| given(input, &shown)).unwrap_or_default();
    let places = call.locations.iter().filter(|location| !shown.contains(location.path.as_str()));
    lines.extend(places.map(|location| match location.line {
        Some(line) => Line::new(Style::Accent, &format!("{}:{line}", location.path)),
        None => Line::new(Style::Accent, &location.path),
    }));
    lines.into_iter().map(|line| line.behind(Style::Dim, "  ")).collect()
}

/// Formats the input of a tool: its command, and each other field on a line.
fn given(input: &Value, shown: &HashSet<&str>) -> Vec<Line> {
    let Some(members) = input.as_object() else {
        return excerpt(&abridged(input, shown).to_string(), Part::Whole);
    };
    let command = ["command", "cmd"].into_iter().find_map(|name| Some((name, command(members.get(name)?)?)));
    let mut text = Vec::new();
    if let Some((_, command)) = &command {
        text.push(format!("$ {command}"));
    }
    let rest = members.iter().filter(|(name, _)| command.as_ref().is_none_or(|(used, _)| used != name));
    text.extend(rest.filter_map(|(name, value)| match value {
        Value::String(value) if is_shown(value, shown) => None,
        Value::String(value) => Some(format!("{name}: {value}")),
        value => Some(format!("{name}: {}", abridged(value, shown))),
    }));
    excerpt(&text.join("\n"), Part::Whole)
}

/// Returns a command. Some agents send it as a list of words.
fn command(value: &Value) -> Option<String> {
    match value {
        Value::String(command) => Some(command.clone()),
        Value::Array(words) if !words.is_empty() => {
            let words: Option<Vec<&str>> = words.iter().map(Value::as_str).collect();
            words.map(|words| words.join(" "))
        }
        _ => None,
    }
}

/// Returns the lines of the files in the diffs of a call, and the paths of these files.
fn lines_of_diffs(call: &ToolCall) -> HashSet<&str> {
    let mut shown = HashSet::new();
    for content in &call.content {
        if let Content::Diff { path, old_text, new_text, .. } = content {
            shown.insert(path.as_str());
            shown.extend(old_text.iter().flat_map(|text| text.lines()).chain(new_text.lines()));
        }
    }
    shown
}

/// Returns whether a text has only lines of the diffs. It may be a patch.
fn is_shown(text: &str, shown: &HashSet<&str>) -> bool {
    let marks = ["+", "-", " ", "Index: ", "--- ", "+++ "];
    let is_patch_only = |line: &str| {
        line.starts_with("@@ -") || line.starts_with("\\ ") || line.chars().all(|character| character == '=')
    };
    let mut lines = text.lines();
    !shown.is_empty()
        && lines.all(|line| {
            let unmarked = marks.iter().filter_map(|mark| line.strip_prefix(mark));
            is_patch_only(line)
                || unmarked.chain([line]).any(|line| shown.contains(line.trim_end_matches('\t')))
        })
}

/// Returns a value without the texts that the diffs show.
fn abridged(value: &Value, shown: &HashSet<&str>) -> Value {
    match value {
        Value::String(text) if is_shown(text, shown) => json!("…"),
        Value::Array(items) => items.iter().map(|item| abridged(item, shown)).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), abridged(value, shown))).collect()
        }
        other => other.clone(),
    }
}

/// Returns the lines of a text to show.
fn excerpt(text: &str, part: Part) -> Vec<Line> {
    let text = text.trim_end();
    if text.is_empty() {
        return Vec::new();
    }
    if part == Part::Whole {
        let Some((end, _)) = text.char_indices().nth(WHOLE_CHARS) else { return Line::all(Style::Dim, text) };
        let mut lines = Line::all(Style::Dim, &text[..end]);
        let more = format!("… {} more characters", text[end..].chars().count());
        lines.push(Line::new(Style::Warn, &more));
        return lines;
    }
    let total = text.lines().count();
    let skipped = total.saturating_sub(TOOL_LINES);
    let mut lines = Vec::new();
    if skipped > 0 {
        lines.push(Line::new(Style::Dim, &format!("… {skipped} lines before")));
    }
    // A line may be a whole minified file, so it is truncated.
    lines.extend(text.lines().skip(skipped).map(|line| Line::new(Style::Dim, &clipped(line))));
    lines
}

fn clipped(text: &str) -> String {
    match text.char_indices().nth(LINE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Shows a plan with the status of each step.
pub(super) fn plan(entries: &[PlanEntry]) -> Vec<Line> {
    let lines = entries.iter().map(|entry| match entry.status.as_deref() {
        Some("completed") => Line::new(Style::Good, "  ✔ ").with(Style::Dim, &entry.content),
        Some("in_progress") => Line::new(Style::Warn, "  ▸ ").with(Style::Normal, &entry.content),
        _ => Line::new(Style::Dim, "  ○ ").with(Style::Normal, &entry.content),
    });
    lines.collect()
}
