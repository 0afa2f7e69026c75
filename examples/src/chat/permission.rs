//! Asks the user for a permission that the agent requests.

use sandbox_agent_sdk::requests::{PermissionKind, PermissionOption, PermissionReply, ReplyError};
use sandbox_agent_sdk::update::ToolKind;
use sandbox_agent_sdk::{PermissionDecision, PermissionRequest};

use super::args::Policy;
use super::card::{self, Part, Piece};
use super::line::{Line, Style};

/// How many lines of a diff are shown in a permission request.
const DIFF_LINES: usize = 10;

/// Decides a request by the policy, before the user is asked.
pub(super) fn decide(policy: Policy, request: &PermissionRequest) -> PermissionDecision {
    let kind = request.tool_call().and_then(|call| call.kind.as_ref());
    let edits = matches!(kind, Some(ToolKind::Edit));
    match policy {
        Policy::Allow => PermissionDecision::Reply(PermissionReply::Once),
        Policy::Edits if edits => PermissionDecision::Reply(PermissionReply::Once),
        Policy::Deny => PermissionDecision::Reply(PermissionReply::Reject),
        Policy::Ask | Policy::Edits => PermissionDecision::Ask,
    }
}

/// Returns the title of the request, in one line.
pub(super) fn title(request: &PermissionRequest) -> &str {
    request.tool_call().map_or("something", card::tool_title)
}

/// Returns the title of the request and its subject.
pub(super) fn body(request: &PermissionRequest) -> Vec<Piece> {
    let plain = |line: Line| Piece { line, is_file: false };
    let mut pieces = vec![plain(Line::new(Style::Warn, "? ").with(Style::Bold, title(request)))];
    if let Some(call) = request.tool_call() {
        pieces.extend(card::input(call).into_iter().map(plain));
        pieces.extend(card::content(call, DIFF_LINES, Part::Whole));
        if call.is_incomplete() {
            pieces.push(plain(Line::new(Style::Warn, "  The agent has reported more than is shown here.")));
        }
    }
    pieces
}

/// Returns the options of the request with their keys.
pub(super) fn keys(request: &PermissionRequest) -> Vec<Line> {
    let mut lines = Vec::new();
    for (index, option) in request.options().iter().enumerate().take(9) {
        let key = letter(request.options(), index).map_or(String::new(), |letter| format!(" or {letter}"));
        let number = format!("  {}{key:<5}  ", index + 1);
        lines.push(Line::new(Style::Warn, &number).with(Style::Normal, &option.name));
    }
    lines.push(Line::new(Style::Warn, "  Esc     ").with(Style::Normal, "refuse"));
    lines
}

/// Answers with a key. Returns `None` if the key has no meaning, otherwise the chosen option.
pub(super) fn answer(request: &PermissionRequest, key: char) -> Option<Result<Line, ReplyError>> {
    let options = request.options();
    let index = match key.to_digit(10) {
        Some(number) => (number as usize).checked_sub(1)?,
        None => (0..options.len()).find(|index| letter(options, *index) == Some(key))?,
    };
    let option = options.get(index)?;
    Some(request.choose(&option.id).map(|()| chosen(request, option)))
}

/// Refuses the request.
pub(super) fn refuse(request: &PermissionRequest) -> Result<Line, ReplyError> {
    request.refuse().map(|()| {
        Line::new(Style::Bad, "✗ ").with(Style::Normal, title(request)).with(Style::Dim, "  refused")
    })
}

fn chosen(request: &PermissionRequest, option: &PermissionOption) -> Line {
    use PermissionKind::{AllowAlways, AllowOnce};
    let (sign, style) = match &option.kind {
        Some(AllowOnce | AllowAlways) => ("✔ ", Style::Good),
        _ => ("✗ ", Style::Bad),
    };
    let name = format!("  {}", option.name);
    Line::new(style, sign).with(Style::Normal, title(request)).with(Style::Dim, &name)
}

/// Returns the letter for an option, if the option is the first of its kind.
fn letter(options: &[PermissionOption], index: usize) -> Option<char> {
    use PermissionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
    let kind = options[index].kind.as_ref()?;
    if options[..index].iter().any(|earlier| earlier.kind.as_ref() == Some(kind)) {
        return None;
    }
    match kind {
        AllowOnce => Some('y'),
        AllowAlways => Some('a'),
        RejectOnce => Some('n'),
        RejectAlways => Some('d'),
        _ => None,
    }
}
