//! Shows a turn: finished lines, and lines that still change.

use std::time::Instant;

use sandbox_agent_sdk::update::{Chunk, Missed, PlanEntry, ToolCall, ToolStatus};
use sandbox_agent_sdk::{Content, Update, UpdateKind};

use super::card;
use super::line::{Line, Style};
use super::plain::Plain;

/// How many open tool calls are shown at a time.
const OPEN_CALLS: usize = 4;
/// How many steps of a plan are shown while it is running.
const PLAN_LINES: usize = 8;

/// The view of a turn. Finished lines are taken out once; the rest is redrawn each time.
#[derive(Debug, Default)]
pub(super) struct View {
    settled: Vec<Line>,
    /// Whether the text ended with empty lines. One of them is shown if more output follows.
    gap: bool,
    flow: Option<Flow>,
    calls: Vec<OpenCall>,
    plan: Vec<PlanEntry>,
}

/// Text that is being streamed.
#[derive(Debug)]
struct Flow {
    voice: Voice,
    message: Option<String>,
    plain: Plain,
    /// Whether anything except line breaks has arrived.
    begun: bool,
    /// Empty lines that are shown if the text continues.
    held: usize,
    /// The unfinished line.
    pending: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Voice {
    Agent,
    Thought,
    User,
}

#[derive(Debug)]
struct OpenCall {
    call: ToolCall,
    since: Instant,
}

impl View {
    /// Adds an update of the agent, for a screen of this width.
    pub(super) fn take(&mut self, update: &Update, width: usize) {
        match update.kind() {
            UpdateKind::Message(chunk) => self.stream(Voice::Agent, chunk, width),
            UpdateKind::Thought(chunk) => self.stream(Voice::Thought, chunk, width),
            UpdateKind::UserMessage(chunk) => self.stream(Voice::User, chunk, width),
            UpdateKind::ToolCall(call) | UpdateKind::ToolCallUpdate(call) => self.tool(call),
            UpdateKind::Plan(entries) => self.plan = entries.clone(),
            UpdateKind::Missed(Missed::Gap(gap)) => {
                self.note(&format!("{} events are missing here: the server no longer has them", gap.count()));
            }
            UpdateKind::Missed(Missed::Lagged(count)) => {
                self.note(&format!("{count} events were skipped here"))
            }
            UpdateKind::Notice(notice) => {
                let description = notice.description.as_deref().unwrap_or_default();
                self.note(&Plain::line(
                    format!("{}: {} {description}", notice.severity, notice.title).trim(),
                ));
            }
            // Modes, options and commands are shown on request.
            _ => {}
        }
    }

    /// Adds lines below everything so far.
    pub(super) fn put(&mut self, lines: impl IntoIterator<Item = Line>) {
        self.end_flow();
        for line in lines {
            self.close_gap();
            self.settled.push(line);
        }
    }

    fn close_gap(&mut self) {
        if std::mem::take(&mut self.gap) {
            self.settled.push(Line::default());
        }
    }

    fn note(&mut self, text: &str) {
        self.put([Line::new(Style::Warn, &format!("! {text}"))]);
    }

    /// Ends the turn: lines that still change become final.
    pub(super) fn end(&mut self) {
        self.end_flow();
        for open in std::mem::take(&mut self.calls) {
            self.put(card::tool(&open.call));
        }
        let plan = std::mem::take(&mut self.plan);
        self.put(card::plan(&plan));
        self.gap = false;
    }

    /// Takes the finished lines.
    pub(super) fn settled(&mut self) -> Vec<Line> {
        std::mem::take(&mut self.settled)
    }

    /// Returns the lines that still change: the unfinished line, the plan and the open tool calls.
    pub(super) fn moving(&self, spinner: &str) -> Vec<Line> {
        let mut lines: Vec<Line> = self.flow.iter().flat_map(Flow::unfinished).collect();
        let steps = card::plan(&self.plan);
        // Of a long plan, only the current part is shown.
        let current = self.plan.iter().position(|entry| entry.status.as_deref() != Some("completed"));
        let start = current.unwrap_or_default().saturating_sub(2).min(steps.len().saturating_sub(PLAN_LINES));
        lines.extend(steps.into_iter().skip(start).take(PLAN_LINES));
        for open in self.calls.iter().take(OPEN_CALLS) {
            lines.push(open.state_line(spinner));
        }
        if let Some(more) = self.calls.len().checked_sub(OPEN_CALLS + 1) {
            lines.push(Line::new(Style::Dim, &format!("  and {} more", more + 1)));
        }
        lines
    }

    fn stream(&mut self, voice: Voice, chunk: &Chunk, width: usize) {
        let other = match &chunk.content {
            Content::Text { text, .. } => return self.text(voice, chunk.message_id.as_deref(), text, width),
            Content::Image { mime_type, .. } | Content::Audio { mime_type, .. } => format!("[{mime_type}]"),
            Content::Link { uri, name, .. } => format!("{name}  {uri}"),
            Content::Resource { uri, .. } | Content::Blob { uri, .. } => format!("[{uri}]"),
            _ => "[content of an unknown kind]".to_owned(),
        };
        self.put([Line::new(Style::Accent, &other)]);
    }

    fn text(&mut self, voice: Voice, message: Option<&str>, text: &str, width: usize) {
        let same =
            |flow: &Flow| flow.voice == voice && (message.is_none() || flow.message.as_deref() == message);
        if !self.flow.as_ref().is_some_and(same) {
            self.end_flow();
        }
        let flow = self.flow.get_or_insert_with(|| Flow::new(voice, message));
        flow.plain.push(text, &mut flow.pending);
        // Many agents start with an empty line.
        if !flow.begun {
            flow.pending = flow.pending.trim_start_matches('\n').to_owned();
            flow.begun = !flow.pending.is_empty();
        }
        let rows = flow.take_rows(width);
        if !rows.is_empty() {
            self.close_gap();
            self.settled.extend(rows);
        }
    }

    fn end_flow(&mut self) {
        let Some(flow) = self.flow.take() else { return };
        let rest = flow.unfinished();
        if rest.is_empty() {
            self.gap |= flow.held > 0;
        } else {
            self.close_gap();
            self.settled.extend(rest);
        }
    }

    fn tool(&mut self, news: &ToolCall) {
        let known = self.calls.iter().position(|open| open.call.id == news.id);
        let index = known.unwrap_or_else(|| {
            self.calls.push(OpenCall { call: news.clone(), since: Instant::now() });
            self.calls.len() - 1
        });
        merge(&mut self.calls[index].call, news);
        if matches!(self.calls[index].call.status, Some(ToolStatus::Completed | ToolStatus::Failed)) {
            let open = self.calls.remove(index);
            self.put(card::tool(&open.call));
        }
    }
}

impl Flow {
    fn new(voice: Voice, message: Option<&str>) -> Self {
        let message = message.map(str::to_owned);
        Self { voice, message, plain: Plain::default(), begun: false, held: 0, pending: String::new() }
    }

    fn line(&self, text: &str) -> Line {
        match self.voice {
            Voice::Agent => Line::new(Style::Normal, text),
            Voice::Thought => Line::new(Style::Dim, text),
            Voice::User => Line::new(Style::User, "› ").with(Style::Normal, text),
        }
    }

    /// Returns the empty lines before the unfinished line, and then that line.
    fn unfinished(&self) -> Vec<Line> {
        if self.pending.is_empty() {
            return Vec::new();
        }
        let mut rows = vec![Line::default(); self.held];
        rows.push(self.line(&self.pending));
        rows
    }

    /// Takes the finished lines, and the full rows of the unfinished line.
    fn take_rows(&mut self, width: usize) -> Vec<Line> {
        let mut rows = Vec::new();
        let pending = std::mem::take(&mut self.pending);
        let mut lines: Vec<&str> = pending.split('\n').collect();
        let last = lines.pop().unwrap_or_default();
        for line in lines {
            if line.is_empty() {
                self.held += 1;
            } else {
                rows.extend(std::iter::repeat_n(Line::default(), std::mem::take(&mut self.held)));
                rows.push(self.line(line));
            }
        }
        let mut full = Line::new(Style::Normal, last).wrapped_so_far(width);
        self.pending = full.pop().map(|row| row.text()).unwrap_or_default();
        if !full.is_empty() {
            rows.extend(std::iter::repeat_n(Line::default(), std::mem::take(&mut self.held)));
            rows.extend(full.iter().map(|row| self.line(&row.text())));
        }
        rows
    }
}

impl OpenCall {
    fn state_line(&self, spinner: &str) -> Line {
        let (sign, style, state) = match &self.call.status {
            Some(ToolStatus::InProgress) => (spinner, Style::Accent, "running"),
            Some(ToolStatus::Pending) | None => ("◌", Style::Dim, "waiting"),
            Some(other) => (spinner, Style::Dim, other.as_str()),
        };
        let seconds = self.since.elapsed().as_secs();
        let state = if seconds > 0 { format!("  {state} {seconds}s") } else { format!("  {state}") };
        let title = card::tool_title(&self.call);
        Line::new(style, &format!("{sign} ")).with(Style::Normal, title).with(Style::Dim, &state)
    }
}

/// Merges an update of a tool call. Absent fields are unchanged.
fn merge(call: &mut ToolCall, news: &ToolCall) {
    if news.title.is_some() {
        call.title = news.title.clone();
    }
    if news.kind.is_some() {
        call.kind = news.kind.clone();
    }
    if news.status.is_some() {
        call.status = news.status.clone();
    }
    if !news.content.is_empty() {
        call.content = news.content.clone();
    }
    if !news.locations.is_empty() {
        call.locations = news.locations.clone();
    }
    if news.input.is_some() {
        call.input = news.input.clone();
    }
    if news.output.is_some() {
        call.output = news.output.clone();
    }
}
