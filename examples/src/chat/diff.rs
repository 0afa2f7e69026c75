//! Shows the changes to a file.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};

use super::line::{Line, Style};

/// Larger texts are not compared; only their lines are counted.
const COMPARED_BYTES: usize = 1 << 20;
/// How long a comparison may take before it returns a coarser result.
const TIME: Duration = Duration::from_millis(200);

/// Shows the changes to a file in at most `limit` lines, with a title.
pub(super) fn diff_lines(path: &str, old: &str, new: &str, limit: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    if old.len() + new.len() > COMPARED_BYTES {
        let counts = format!("{path}  {} lines → {} lines", old.lines().count(), new.lines().count());
        return vec![Line::new(Style::Accent, &counts)];
    }
    let diff = TextDiff::configure().timeout(TIME).diff_lines(old, new);
    let (mut added, mut removed) = (0, 0);
    for (index, group) in diff.grouped_ops(2).iter().enumerate() {
        if index > 0 {
            lines.push(Line::new(Style::Dim, "  ⋮"));
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let (sign, style) = match change.tag() {
                ChangeTag::Equal => ("  ", Style::Dim),
                ChangeTag::Delete => ("- ", Style::Bad),
                ChangeTag::Insert => ("+ ", Style::Good),
            };
            added += usize::from(change.tag() == ChangeTag::Insert);
            removed += usize::from(change.tag() == ChangeTag::Delete);
            let text = change.value().trim_end_matches(['\r', '\n']);
            lines.push(Line::new(style, sign).with(style, text));
        }
    }
    let more = lines.len().saturating_sub(limit);
    if more > 0 {
        lines.truncate(limit);
        lines.push(Line::new(Style::Dim, &format!("  … {more} more lines")));
    }
    let title = Line::new(Style::Accent, path)
        .with(Style::Good, &format!("  +{added}"))
        .with(Style::Bad, &format!(" -{removed}"));
    lines.insert(0, title);
    lines
}

#[cfg(test)]
mod tests {
    use super::diff_lines;
    use crate::chat::line::{Line, Style};

    #[test]
    fn changes_are_shown_with_some_lines_around_them() {
        let old = (1..=20).map(|line| format!("line {line}\n")).collect::<String>();
        let new = old.replace("line 10\n", "line ten\n");
        let lines = diff_lines("a.txt", &old, &new, 40);
        let text: Vec<String> = lines.iter().map(Line::text).collect();
        assert_eq!(
            text,
            ["a.txt  +1 -1", "  line 8", "  line 9", "- line 10", "+ line ten", "  line 11", "  line 12"]
        );
        assert_eq!(lines[3], Line::new(Style::Bad, "- ").with(Style::Bad, "line 10"));
    }

    #[test]
    fn a_new_file_a_long_change_and_a_huge_one_are_shown_within_bounds() {
        let many = "x\n".repeat(500);
        let lines = diff_lines("n", "", &many, 10);
        assert_eq!(lines.len(), 12);
        assert_eq!(lines[11].text(), "  … 490 more lines");
        let huge = "y\n".repeat(1 << 20);
        let lines = diff_lines("h", "", &huge, 10);
        assert_eq!(lines[0].text(), "h  0 lines → 1048576 lines");
    }
}
